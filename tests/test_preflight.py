"""The pre-flight: what it measures on `micro`, provoked faults, and that it changes nothing."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cascade_kit import decoding, rollout, shaping
from cascade_kit.__main__ import main
from cascade_kit.cascade import Event, Run
from cascade_kit.domains.math import MATH
from cascade_kit.loading import load_policy
from cascade_kit.policy import POLICY
from cascade_kit.preflight import (
    Preflight,
    PreflightRefused,
    drawn,
    exact_interval,
    nothing_to_judge,
    preflight,
)
from cascade_kit.problem import Problem, Score
from cascade_kit.run_data import generated_data, run_data, stages_for
from cascade_kit.session import open_session
from cascade_kit.stage import EASY_STAGES, MICRO_STAGES, cascade


@pytest.fixture(scope="module")
def policy():
    return load_policy()


@pytest.fixture(scope="module")
def problems():
    return MATH.problems("train", 200)


@pytest.fixture
def stage():
    return cascade(["math"])[0]


def rewarding(stage, reward):
    return replace(stage, domain=replace(stage.domain, reward=reward))


def levels(report: Preflight) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"refuse": [], "warn": [], "note": []}
    for finding in report.findings:
        found[finding.level].append(finding.what)
    return found


# ---- a healthy stage -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["instruct", "math", "code", "swe"])
def test_the_stages_of_micro_may_run(policy, name):
    (stage,) = cascade([name])
    report = preflight(policy, stage, stage.domain.problems("train", 100))
    assert not report.refused and report.faults == ()
    assert (report.prompts, report.answers, report.draws) == (4, 32, 1)
    assert report.interval[0] <= report.pass_rate <= report.interval[1]
    assert 0 < report.spread <= 1 and 1 <= report.distinct <= 8
    assert 0 <= report.gap < 1e-4 < report.tolerance
    assert report.template_tail.endswith("assistant\n") and len(report.template_tail) == 40
    assert report.estimate_seconds > sum(report.seconds.values())
    report.insist()  # does not raise


def test_the_same_seed_finds_the_same(policy, stage, problems):
    reports = [preflight(policy, stage, problems, seed=s) for s in (3, 3, 4)]
    same = [replace(r, seconds={}, estimate_seconds=0.0) for r in reports]
    assert same[0] == same[1] != same[2]


def test_draws_are_of_other_prompts_and_of_about_32_answers(stage, problems):
    first, second = (drawn(problems, stage, 0, draw) for draw in (0, 1))
    assert len(first) == len(second) == 4 and not {p.id for p in first} & {p.id for p in second}
    assert len(drawn(problems, replace(stage, answers=16), 0, 0)) == 2
    assert len(drawn(problems[:3], stage, 0, 2)) == 3


def test_intervals_are_exact():
    low, high = exact_interval([0.0] * 32)
    assert low == 0.0 and high == pytest.approx(1 - 0.025 ** (1 / 32))
    low, high = exact_interval([0.5] * 32)
    assert 0.2 < low < 0.5 < high < 0.8


@pytest.mark.parametrize("stage", MICRO_STAGES[1:], ids=lambda s: s.name)
def test_an_answer_without_anything_to_judge_is_found(stage):
    problem = stage.domain.problems("eval", 1)[0]
    (score,) = stage.domain.score([problem], ["I do not know"])
    assert nothing_to_judge(score) == (stage.name != "instruct")


# ---- nothing is changed --------------------------------------------------------------------------


def test_policy_and_random_streams_are_as_before(stage, problems):
    policy = load_policy()

    def state():
        flags = [p.requires_grad for p in policy.model.parameters()]
        modes = [m.training for m in policy.model.modules()]
        grads = [p.grad for p in policy.adapter_parameters(POLICY).values()]
        return policy.adapter_hash(), policy.model.active_adapter, flags, modes, grads

    def drawing(problem, completion):
        torch.rand(1)
        return Score(float(random.random() < 0.5))

    before, streams = state(), (random.getstate(), torch.get_rng_state())
    preflight(policy, rewarding(stage, drawing), problems)
    assert state() == before
    assert random.getstate() == streams[0] and torch.equal(torch.get_rng_state(), streams[1])


def test_a_run_with_and_without_it_trains_the_same_bytes(tmp_path, monkeypatch):
    stages = cascade(["math"], steps=2, prompts=4, answers=4)
    data = generated_data(stages, eval_items=2)

    def trained(name):
        run = Run.create(tmp_path / name, load_policy(), data, stages)
        kinds = [event.kind for event in run.go()]
        place = tmp_path / name / "1-math"
        weights = place / "adapter" / "adapter_model.safetensors"
        return kinds, weights.read_bytes(), (place / "rollouts.jsonl").read_bytes()

    kinds, *looked = trained("with")
    assert kinds.count("pre-flight") == 1 and kinds.index("pre-flight") < kinds.index("step")
    report = json.loads((tmp_path / "with" / "1-math" / "preflight.json").read_text())
    assert report["refused"] is False and report["answers"] == 32
    monkeypatch.setattr(Run, "checked", lambda self, stage, skip: Event("nothing", stage.name))
    kinds, *blind = trained("without")
    assert "pre-flight" not in kinds and not [*tmp_path.glob("without/*/preflight.json")]
    assert looked == blind


# ---- provoked faults -----------------------------------------------------------------------------


def test_everything_truncated_is_refused(policy, stage, problems):
    report = preflight(policy, replace(stage, max_new_tokens=1), problems)
    assert levels(report)["refuse"] == ["all 32 answers are cut at 1 tokens"]
    assert report.draws == 1  # other prompts would not help
    with pytest.raises(PreflightRefused, match="raise max_new_tokens.*--skip-preflight, or skip_p"):
        report.insist()


@pytest.mark.parametrize(("value", "remedy"), [(0.0, "--data easy"), (1.0, "difficulty=3")])
def test_a_constant_reward_is_refused_after_three_draws(policy, stage, problems, value, remedy):
    constant = rewarding(stage, lambda problem, completion: Score(value, why="always"))
    report = preflight(policy, constant, problems)
    assert (report.draws, report.prompts, report.spread) == (3, 12, 0.0)
    assert f"{int(96 * value)} of 96 answers pass" in levels(report)["refuse"][0]
    with pytest.raises(PreflightRefused, match=remedy):
        report.insist()
    known = preflight(policy, constant, problems, generated=True)
    assert not known.refused and "the reward is flat" in levels(known)["warn"][0]


def test_a_rare_reward_is_found_by_another_draw(policy, stage, problems):
    asked = {p.id for p in drawn(problems, stage, 0, 1)}
    counts = iter(range(1000))

    def rare(problem, completion):
        return Score(float(problem.id in asked and next(counts) == 0))

    report = preflight(policy, rewarding(stage, rare), problems)
    assert (report.draws, report.refused) == (2, False)
    assert report.pass_rate == pytest.approx(1 / 64) and report.spread == pytest.approx(1 / 8)
    assert "the start is below 10 %" in " ".join(levels(report)["warn"])


def test_a_reward_that_raises_on_a_row_is_a_warning_that_names_it(policy, stage, problems):
    bad = drawn(problems, stage, 0, 0)[2]

    def reward(problem, completion):
        if problem.id == bad.id:
            raise ZeroDivisionError("no gold")
        return MATH.reward(problem, completion)

    report = preflight(policy, rewarding(stage, reward), problems)
    assert not report.refused and report.scored == 24
    assert {f.problem_id for f in report.faults} == {bad.id} and len(report.faults) == 8
    assert f"the reward raises on {bad.id}: ZeroDivisionError: no gold" in levels(report)["warn"]


def nan(problem: Problem, completion: str) -> Score:
    return Score(float("nan"))


def broken(problem: Problem, completion: str) -> Score:
    raise KeyError("answer")


@pytest.mark.parametrize(
    ("reward", "said"), [(broken, "KeyError: 'answer'"), (nan, "is not a finite number")]
)
def test_a_reward_that_never_works_is_refused(policy, stage, problems, reward, said):
    report = preflight(policy, rewarding(stage, reward), problems)
    assert said in levels(report)["refuse"][0] and report.pass_rate is None
    assert all(example.reward is None for example in report.examples)


def test_a_batch_reward_of_the_wrong_length_is_refused(policy, stage, problems):
    one = replace(stage.domain, score_batch=lambda problems, completions: [Score(1.0)])
    report = preflight(policy, replace(stage, domain=one), problems)
    assert "no group can be scored: ValueError" in levels(report)["refuse"][0]


def test_another_temperature_behind_our_back_is_refused(policy, stage, problems, monkeypatch):
    draw = rollout.draw_tokens
    monkeypatch.setattr(rollout, "draw_tokens", lambda logits, u: draw(logits / 0.5, u))
    report = preflight(policy, stage, problems)
    assert report.gap > 0.1 and "log-probabilities differ" in levels(report)["refuse"][0]


def test_a_stale_decoding_copy_is_refused(stage, problems, monkeypatch):
    policy = load_policy()
    assert not preflight(policy, stage, problems).refused  # makes the copy
    monkeypatch.setattr(decoding, "merged_copy", lambda policy, adapter: policy.merged)
    with torch.no_grad():
        for parameter in policy.adapter_parameters(POLICY).values():
            parameter += 0.02
    assert "log-probabilities differ" in levels(preflight(policy, stage, problems))["refuse"][0]


def test_a_generation_config_has_no_say(stage, problems):
    policy = load_policy()
    before = preflight(policy, stage, problems)
    policy.model.generation_config.temperature = 0.01
    policy.model.generation_config.top_p = 0.1
    after = preflight(policy, stage, problems)
    assert (after.pass_rate, after.distinct, after.gap) == (
        before.pass_rate, before.distinct, before.gap
    )  # fmt: skip
    assert "temperature=0.01, top_p=0.1: not used" in " ".join(levels(after)["note"])


def test_a_reward_model_decides_what_is_flat(policy):
    rlhf = MICRO_STAGES[0]
    problems = rlhf.domain.problems("train", 40)
    alone = preflight(policy, rlhf, problems)
    assert alone.spread is None and not alone.refused
    assert "needs a reward model" in levels(alone)["note"][0]
    same = preflight(policy, rlhf, problems, reward_model=lambda answers: [0.5] * len(answers))
    lengths = preflight(policy, rlhf, problems, reward_model=lambda a: [len(x.text) for x in a])
    assert lengths.spread == 1.0 and not lengths.refused
    assert same.spread < 0.5  # only where a change of script was punished
    assert rlhf.reward is shaping.preference_tanh


def test_without_problems_it_is_an_error(policy, stage):
    with pytest.raises(ValueError, match="no training problems"):
        preflight(policy, stage, [])


def test_reports_are_escaped_and_complete(policy, stage, problems):
    asked = [replace(p, id=f"x{i}", prompt=f"<b>{p.prompt}") for i, p in enumerate(problems[:4])]
    report = preflight(policy, stage, asked)
    page = report._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;" in page and "log-prob gap" in page
    assert "log-prob gap" in str(report) and len(report.examples) == 3
    assert json.loads(json.dumps(report.to_json()))["stage"] == "math"


# ---- command line and session --------------------------------------------------------------------

SHORT = "--steps 1 --prompts 2 --answers 2 --eval-items 4".split()


def test_the_command_tells_and_its_exit_code_too(tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main(["preflight", "--stage", "math", "--json", str(file)]) == 0
    assert "Pre-flight of math: may run" in capsys.readouterr().out
    assert [s["stage"] for s in json.loads(file.read_text())["stages"]] == ["math"]
    assert main(["preflight", "--order", "math,code", "--max-new-tokens", "1"]) == 1
    assert capsys.readouterr().out.count("refuse: all") == 2
    assert main(["preflight", "--stage", "poetry"]) == 2


def test_a_run_refuses_unless_told_otherwise(tmp_path, capsys):
    out = tmp_path / "run"
    options = ["--order", "math", "--max-new-tokens", "1", *SHORT, "--out", str(out)]
    assert main(["run", *options]) == 2
    assert "refuses stage 'math': all 4 answers are cut" in capsys.readouterr().err
    assert not (out / "1-math" / "steps.jsonl").exists()
    assert json.loads((out / "1-math" / "preflight.json").read_text())["refused"]
    assert main(["run", *options, "--resume", "--skip-preflight"]) == 0
    assert "  refuse: all 4 answers are cut at 1 tokens" in capsys.readouterr().out
    seen = (out / "1-math" / "preflight.json").stat().st_mtime_ns
    assert main(["run", *options, "--resume"]) == 0  # finished stages are not looked at again
    assert (out / "1-math" / "preflight.json").stat().st_mtime_ns == seen


def test_a_session_heeds_its_pre_flight(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_FAST", "1")
    session = open_session("math", folder=tmp_path / "run", eval_items=2)
    before = session.policy.adapter_hash()
    session.configure(steps=1, max_new_tokens=1)
    assert session.preflight().refused
    with pytest.raises(PreflightRefused, match="skip_preflight=True"):
        next(session.train())
    session.configure(max_new_tokens=24)
    assert not session.preflight().refused and session.policy.adapter_hash() == before
    assert [event.kind for event in session.train()] == ["step"]


# ---- a real model --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2_on_the_easy_tier_and_on_gsm8k(smollm2, shared: Path):
    policy = load_policy(smollm2)
    data = run_data(policy, EASY_STAGES, eval_items=2)
    for stage in EASY_STAGES:
        problems = data.train[stage.name]
        assert not preflight(policy, stage, problems, generated=True).refused, stage.name
    sources = [str(shared / "data" / "gsm8k")]
    (stage,) = stages_for(str(smollm2), ["math"], sources, phases=(), max_new_tokens=160)
    rows = run_data(policy, [stage], sources).train["math"]
    with pytest.raises(PreflightRefused, match="the reward is flat.*0 of 96 answers pass"):
        preflight(policy, stage, rows).insist()
