"""Sessions on the embedded model: what continues from what, and what is moved aside."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_kit import settings
from cascade_kit.domains.math import MATH
from cascade_kit.problem import Problem, Score
from cascade_kit.session import data as session_data
from cascade_kit.session import open_session, own_stage
from cascade_kit.session.costs import Basis, costs_of, note_evaluation, recorded_evaluation
from cascade_kit.stage import ORDER, Stage

SMALL = {"steps": 2, "prompts": 2, "answers": 2, "max_new_tokens": 24}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setenv("CASCADE_FAST", "1")


def opened(stage, folder: Path, **options):
    session = open_session(stage, folder=folder, eval_items=2, **options)
    if not session.is_finished or options.get("again"):
        session.configure(**SMALL)
    return session


def completed(stage, folder: Path, **options):
    session = opened(stage, folder, **options)
    list(session.train())
    list(session.evaluate())
    return session


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder in which math and then code are finished; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("two") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASCADE_FAST", "1")
        completed("math", folder)
        completed("code", folder)
    return folder


@pytest.fixture
def copy(two, tmp_path):
    return shutil.copytree(two, tmp_path / "copy")


def run_json(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def weights(path: Path) -> bytes:
    return (path / "adapter" / "adapter_model.safetensors").read_bytes()


def shouting() -> tuple[Stage, list[Problem]]:
    """A domain of the reader's own: answers should be loud."""
    problems = [Problem(f"loud-{i}", "loud", f"Say {w}!") for i, w in enumerate("abcdefg")]

    def reward(problem: Problem, completion: str) -> Score:
        return Score(float("!" in completion), why="loud" if "!" in completion else "quiet")

    return own_stage("loud", problems, reward, **SMALL), problems


# ---- continuing --------------------------------------------------------------------------------


def test_a_stage_alone_starts_from_the_shipped_start(tmp_path, capsys):
    session = opened("math", tmp_path / "run")
    assert "math starts from the shipped start" in capsys.readouterr().out
    events = list(session.train())
    assert [(e.kind, e.stage, e.done, e.total) for e in events] == [
        ("step", "math", 1, 2),
        ("step", "math", 2, 2),
    ]
    tested = list(session.evaluate())
    assert [e.stage for e in tested] == ["sft"] * 5 + ["math"] * 5
    assert session.matrix().stages == ("sft", "math")
    assert session.finished == ["sft", "math"]
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} == {
        "run.json", "0-sft", "3-math", "matrix.json", "matrix.png", "report.html",
    }  # fmt: skip
    stored = run_json(folder)
    assert stored["order"] == list(ORDER)
    assert [(s["name"], s["steps"], s["prompts"]) for s in stored["stages"]] == [("math", 2, 2)]
    facts = json.loads((folder / "3-math" / "stage.json").read_text())
    assert (facts["continues"], facts["state"]) == ("sft", "finished")
    assert facts["settings"]["max_new_tokens"] == 24


def test_a_stage_continues_the_newest_finished_one_before_it(two, capsys):
    session = opened("swe", two)
    assert "swe continues from code, the newest finished stage" in capsys.readouterr().out
    assert session.continues == "code"
    loaded = session.policy.adapter_hash()
    session.policy.load_adapter(two / "4-code" / "adapter")
    assert session.policy.adapter_hash() == loaded
    assert json.loads((two / "4-code" / "stage.json").read_text())["continues"] == "math"


def test_a_finished_stage_is_loaded_and_shown_but_not_trained(two, capsys):
    before = weights(two / "3-math")
    session = opened("math", two)
    assert "math is finished (2 steps) and was loaded" in capsys.readouterr().out
    assert session.stage.max_new_tokens == 24  # as it was trained
    assert [e.record.step for e in session.train()] == [1, 2]
    assert "again=True" in capsys.readouterr().out
    assert weights(two / "3-math") == before
    assert [(e.stage, e.domain) for e in session.evaluate()] == [("math", d) for d in ORDER]
    assert session.matrix().stages == ("sft", "math", "code")


# ---- one true sequence -------------------------------------------------------------------------


def test_training_an_earlier_stage_moves_the_later_ones_aside(copy, capsys):
    session = opened("rlhf", copy)
    list(session.train())
    printed = capsys.readouterr().out
    (aside,) = copy.glob("replaced-*")
    assert f"Moved to {aside}: math, code" in printed
    assert {p.name for p in aside.iterdir()} == {
        "3-math", "4-code", "matrix.json", "matrix.png", "report.html",
    }  # fmt: skip
    assert session.matrix().stages == ("sft",)
    assert [s["name"] for s in run_json(copy)["stages"]] == ["rlhf"]
    assert (copy / "1-rlhf" / "reward_model" / "reward_model.json").exists()


def test_training_again_keeps_the_old_result_aside_and_the_reward_model(tmp_path, capsys):
    folder = tmp_path / "run"
    list(opened("rlhf", folder).train())
    head = (folder / "1-rlhf" / "reward_model" / "head.safetensors").read_bytes()
    old = weights(folder / "1-rlhf")
    session = opened("rlhf", folder, again=True)
    session.configure(steps=1)
    kinds = [event.kind for event in session.train()]
    assert kinds == ["step"]  # no second reward model
    (aside,) = folder.glob("replaced-*")
    assert weights(aside / "1-rlhf") == old
    assert weights(folder / "1-rlhf") != old
    assert (folder / "1-rlhf" / "reward_model" / "head.safetensors").read_bytes() == head
    assert run_json(folder)["stages"][0]["steps"] == 1
    assert [e.record.step for e in session.train()] == [1]  # finished: shown from the record


def test_a_stage_that_was_left_does_not_count(tmp_path, capsys):
    folder = tmp_path / "run"
    session = opened("math", folder)
    next(session.train())
    assert session.facts["state"] == "interrupted"
    assert session.finished == ["sft"]
    list(session.evaluate())
    assert "math is not finished, so it has no row yet" in capsys.readouterr().out
    assert session.matrix().stages == ("sft",)
    code = opened("code", folder)
    assert code.continues == "sft"
    list(code.train())
    assert code.finished == ["sft", "code"]
    (aside,) = folder.glob("replaced-*")
    assert (aside / "3-math" / "steps.jsonl").read_text().count("\n") == 1


def test_a_training_goes_on_exactly_where_it_was_left(two, tmp_path):
    """The optimiser's state too: the same bytes as without a pause, and looking changes nothing."""
    session = opened("math", tmp_path / "run")
    training = session.train()
    next(training)
    training.close()
    session.answers(session.problems(1), stage="sft")
    assert [e.record.step for e in session.train()] == [1, 2]
    assert weights(tmp_path / "run" / "3-math") == weights(two / "3-math")
    assert session.facts["state"] == "finished"


def test_other_settings_start_over(tmp_path, capsys):
    session = opened("math", tmp_path / "run")
    next(session.train())
    session.configure(steps=1)
    assert [e.record.step for e in session.train()] == [1]
    assert "starts over" in capsys.readouterr().out
    assert session.facts["settings"]["steps"] == 1


def test_a_training_whose_folder_was_moved_starts_over(tmp_path, capsys):
    """As when another notebook trained an earlier stage meanwhile."""
    session = opened("math", tmp_path / "run")
    next(session.train())
    list(opened("instruct", tmp_path / "run").train())
    assert [e.record.step for e in session.train()] == [1, 2]
    assert "starts over.\nTraining math from instruct." in capsys.readouterr().out
    assert session.facts["continues"] == "instruct"


def test_a_reward_model_whose_training_was_left_starts_fresh(tmp_path, monkeypatch):
    monkeypatch.setattr(session_data, "FAST_PAIRS", (64, 4))
    heads = []
    for name, leave in (("straight", False), ("left", True)):
        session = opened("rlhf", tmp_path / name)
        session.configure(steps=1)
        if leave:
            assert next(session.train()).kind == "reward model"
            session.configure(prompts=3)
        list(session.train())
        heads.append((tmp_path / name / "1-rlhf/reward_model/head.safetensors").read_bytes())
    assert heads[0] == heads[1]


# ---- another stage, another seed ---------------------------------------------------------------


def test_choosing_a_stage_is_opening_it(two, capsys):
    session = opened("swe", two)
    for name in ("code", "rlhf"):  # finished, and not
        capsys.readouterr()
        assert session.choose(name) is session.stage
        said = capsys.readouterr().out
        fresh = open_session(name, folder=two, eval_items=2)
        assert said == capsys.readouterr().out
        assert (session.name, session.stage) == (name, fresh.stage)
        assert session.run.settings == fresh.run.settings
        assert session.run.data == fresh.run.data
        assert session.policy.adapter_hash() == fresh.policy.adapter_hash()


def test_choosing_a_stage_closes_a_training_that_rests(two, tmp_path, capsys):
    session = opened("math", tmp_path / "run")
    training = session.train()
    next(training)
    session.choose("code")
    assert "The training of math that was left is closed.\ncode starts" in capsys.readouterr().out
    assert list(training) == []
    session.choose("math")
    assert session.facts["state"] == "interrupted"
    session.configure(**SMALL)
    second = session.train()
    assert next(second).record.step == 1  # from the beginning
    assert [e.record.step for e in session.train()] == [1, 2]
    second.close()
    assert session.facts["state"] == "finished"
    assert weights(tmp_path / "run" / "3-math") == weights(two / "3-math")


def test_choosing_a_seed_is_opening_a_new_folder_with_it(tmp_path):
    first, other = tmp_path / "first", tmp_path / "other"
    session = opened("math", first)
    drawn = session.policy.adapter_hash()
    session.costs()
    assert session.choose(seed=3).steps == SMALL["steps"]  # settings stay
    fresh = opened("math", other, seed=3)
    assert session.policy.adapter_hash() == fresh.policy.adapter_hash() != drawn
    assert weights(first / "0-sft") == weights(other / "0-sft")
    assert run_json(first) | {"started": ""} == run_json(other) | {"started": ""}
    for one in (session, fresh):
        next(one.train())
    answers = [(folder / "3-math" / "rollouts.jsonl").read_text() for folder in (first, other)]
    assert answers[0] == answers[1]
    assert session.facts["seed"] == 3


def test_the_seed_of_results_stays(copy, tmp_path):
    session = opened("math", tmp_path / "run")
    next(session.train())
    with pytest.raises(ValueError, match=r"open_session\('math', seed=1, folder=\.\.\.\)$"):
        session.choose(seed=1)
    with pytest.raises(ValueError, match="the kit has no stage 'poetry'; choose from rlhf"):
        session.choose("poetry")
    assert (session.name, session.run.seed) == ("math", 0)
    assert [e.record.step for e in session.train()] == [1, 2]  # goes on
    for trained in ("3-math", "4-code"):
        shutil.rmtree(copy / trained)
    with pytest.raises(ValueError, match="trained or evaluated with another seed"):
        opened("math", copy).choose("code", seed=1)


def test_a_session_with_the_seed_from_before_is_refused(tmp_path):
    stale = opened("math", tmp_path / "run")
    opened("code", tmp_path / "run").choose(seed=1)
    for work in (stale.train, stale.evaluate):
        with pytest.raises(ValueError, match=r"open_session\('math', seed=1\)"):
            next(work())
    with pytest.raises(ValueError, match=r"other settings \(seed\)"):
        stale.choose("code")


def test_an_own_stage_can_be_left_and_keeps_its_problems_with_another_seed(tmp_path):
    stage, problems = shouting()
    session = open_session(stage, folder=tmp_path / "run", problems=problems, eval_items=2)
    session.choose(seed=1)
    assert run_json(tmp_path / "run")["order"] == [*ORDER, "loud"]
    next(session.train())
    assert [p.id for p in session.run.data.train["loud"]] == [
        "loud-0",
        "loud-1",
        "loud-3",
        "loud-4",
        "loud-6",
    ]
    session.choose("math")
    fresh = opened("math", tmp_path / "run", seed=1)
    assert session.run.data == fresh.run.data
    assert [s.name for s in session.run.evaluated] == list(ORDER)
    with pytest.raises(ValueError, match="open one of your own with open_session"):
        session.choose("loud")


# ---- the reader's own domain -------------------------------------------------------------------


def test_an_own_stage_adds_a_column_to_every_row(copy):
    stage, problems = shouting()
    session = open_session(stage, folder=copy, problems=problems, eval_items=2)
    assert session.continues == "code"
    assert [p.id for p in session.problems()] == ["loud-2", "loud-5"]  # every third
    list(session.train())
    assert [e.stage for e in session.evaluate()] == ["sft", "math", "code", *["loud"] * 6]
    matrix = session.matrix()
    assert matrix.stages == ("sft", "math", "code", "loud")
    assert set(matrix.domains) == {*ORDER, "loud"}
    assert run_json(copy)["order"] == [*ORDER, "loud"]
    reopened = opened("code", copy)  # a session that does not know the domain keeps the column
    list(reopened.evaluate())
    assert reopened.matrix().stages == ("sft", "math", "code", "loud")
    list(opened("code", copy, again=True).train())
    (aside,) = copy.glob("replaced-*")
    assert (aside / "0-sft" / "eval" / "loud.jsonl").exists()
    assert (aside / "6-loud").is_dir()
    assert reopened.matrix().stages == ("sft", "math")
    assert set(reopened.matrix().domains) == set(ORDER)
    assert run_json(copy)["order"] == list(ORDER)


def test_a_second_own_stage_takes_the_place_of_the_first(copy):
    stage, problems = shouting()
    session = open_session(stage, folder=copy, problems=problems, eval_items=2)
    list(session.train())
    calm = [replace(p, id=f"calm-{i}", domain="calm") for i, p in enumerate(problems)]
    other = own_stage("calm", calm, stage.domain.reward, **SMALL)
    second = open_session(other, folder=copy, problems=calm, eval_items=2)
    assert second.continues == "code"
    list(second.train())
    assert second.finished == ["sft", "math", "code", "calm"]
    (aside,) = copy.glob("replaced-*")
    assert (aside / "6-loud").is_dir()


# ---- looking -----------------------------------------------------------------------------------


def test_answers_of_a_stage_leave_the_policy_as_it_is(two):
    session = opened("code", two)
    now = session.policy.adapter_hash()
    problems = session.problems(2)
    before = session.answers(problems, stage="math", samples=2)
    after = session.answers(problems)
    assert session.policy.adapter_hash() == now
    assert [len(group) for group in before] == [2, 2]
    assert (before[0][0].stage, after[0][0].stage) == ("math", "")
    assert before[0][0].problem == problems[0]
    assert before[0][0].score == session.stage.domain.reward(problems[0], before[0][0].text)
    # The same as in the evaluation of that stage.
    lines = (two / "3-math" / "eval" / "code.jsonl").read_text().splitlines()
    assert [json.loads(line)["completions"][0] for line in lines] == [g[0].text for g in before]
    (short,) = session.answers(problems[0], stage="math", max_new_tokens=3)
    assert (short[0].tokens, short[0].stopped) == (3, False)


def test_a_chat_is_not_scored_and_can_be_drawn_again(two):
    session = opened("code", two)
    (first,) = session.answers("What is 2 + 3?")
    (other,) = session.answers("What is 2 + 3?", draw=1, samples=2)
    assert first[0].score is None
    assert first == session.answers(["What is 2 + 3?"])[0]
    assert len(other) == 2
    assert first[0].text not in [reply.text for reply in other]


def test_costs_come_from_recorded_steps_or_from_one_that_is_tried(two, tmp_path):
    recorded = opened("math", two).costs()
    assert recorded.answers == 8
    assert recorded.evaluation_seconds > 0
    assert "the 2 steps recorded in" in recorded.basis
    session = opened("rlhf", tmp_path / "run")
    before = session.policy.adapter_hash()
    tried = session.costs()
    assert session.policy.adapter_hash() == before
    assert "reference" not in session.policy.model.peft_config
    assert "tried and thrown away; the reward model is trained before" in tried.basis
    assert tried.seconds > 0
    assert tried.evaluation_seconds is None
    assert not (tmp_path / "run" / "1-rlhf").exists()


def test_costs_by_hand():
    stage = Stage(name="math", domain=MATH, steps=10, prompts=4, answers=5, max_new_tokens=30)
    costs = costs_of(stage, Basis(seconds=0.5, tokens=40.0, words="a test"))
    assert (costs.steps, costs.answers, costs.tokens, costs.seconds) == (10, 200, 6000, 100.0)
    assert str(costs) == (
        "10 steps, 200 answers, about 6,000 tokens and 100 s, judging by a test. "
        "Evaluation comes on top; it has not been timed in this run folder yet."
    )
    assert "<p>10 steps" in costs._repr_html_()
    timed = costs_of(stage, Basis(0.5, 40.0, "a test"), evaluation_seconds=150.0)
    assert str(timed).endswith("Evaluation comes on top: about 2 min for each row of the matrix.")


def test_an_evaluation_is_as_long_as_the_newest_rows_took(tmp_path):
    first, second = tmp_path / "0-sft", tmp_path / "1-math"
    for folder in (first, second):
        (folder / "eval").mkdir(parents=True)
    note_evaluation(first, "math", 2.0)
    assert recorded_evaluation([first, second], ["math", "code"]) is None
    note_evaluation(first, "code", 3.0)
    note_evaluation(second, "math", 4.5)
    assert recorded_evaluation([first, second], ["math", "code"]) == 7.5


def test_a_session_shows_itself(two):
    session = opened("math", two)
    assert "finished sft, math, code" in repr(session)
    assert "<th scope='row'>continues from</th><td>sft</td>" in session._repr_html_()


# ---- settings and errors -----------------------------------------------------------------------


@pytest.mark.parametrize(("value", "short"), [("", False), ("0", False), ("1", True)])
def test_fast_mode_has_a_folder_of_its_own(monkeypatch, tmp_path, value, short):
    monkeypatch.setenv("CASCADE_FAST", value)
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    assert settings.fast() is short
    assert settings.notebook_folder() == tmp_path / ("notebooks-fast" if short else "notebooks")


def test_what_cannot_be_opened_is_one_line_and_writes_nothing(tmp_path):
    stage, problems = shouting()
    folder = tmp_path / "run"
    for arguments, message in [
        ({"stage": "poetry"}, "unknown stage 'poetry'; choose from rlhf, instruct"),
        ({"stage": replace(stage, name="other")}, "give both the same name"),
        ({"stage": stage, "problems": problems[:5]}, "5 problems are too few: write at least 6"),
        ({"stage": stage, "problems": [problems[0]] * 6}, "the same id"),
        ({"stage": stage, "problems": MATH.problems("train", 6)}, "write domain='loud'"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_session(**arguments, folder=folder)
    assert not folder.exists()


def test_a_folder_with_other_settings_is_refused(two, tmp_path):
    with pytest.raises(ValueError, match="2 held-out rlhf items there, 3 now"):
        open_session("math", folder=two, eval_items=3)
    with pytest.raises(ValueError, match=r"other settings \(seed\)"):
        open_session("math", folder=two, eval_items=2, seed=1)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is no run folder"):
        open_session("math", folder=tmp_path)
    (tmp_path / "run.json").write_text('{"order": ["code", "math"]}')
    with pytest.raises(ValueError, match=r"another order \(code, math\)"):
        open_session("math", folder=tmp_path)


def test_wrong_settings_are_named(two):
    session = opened("math", two)
    with pytest.raises(ValueError, match="no setting 'step'; choose from"):
        session.configure(step=3)
    with pytest.raises(ValueError, match="'poetry' is not finished; choose from sft, math, code"):
        session.answers("Hello", stage="poetry")
    session.stage = replace(session.stage, name="code")
    with pytest.raises(ValueError, match="this session is for 'math'"):
        next(session.train())
