"""The easy tier: problems for small real models, with worked examples as earlier turns."""

from dataclasses import replace

import pytest

from cascade_kit.domains.easy import EXAMPLES
from cascade_kit.grpo import train
from cascade_kit.live.sandbox import problem_page, right_answer
from cascade_kit.loading import load_policy
from cascade_kit.records import Answer
from cascade_kit.rollout import rollouts
from cascade_kit.run_data import PAIRS, run_data, stages_for, tier_of
from cascade_kit.stage import EASY_STAGES

DOMAINS = [stage.domain for stage in EASY_STAGES]
every_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: d.name)


@every_domain
@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_problems_are_deterministic_and_splits_disjoint(domain, difficulty):
    held_out = domain.problems("eval", 12, difficulty=difficulty)
    assert held_out == domain.problems("eval", 12, difficulty=difficulty)
    train = domain.problems("train", 20, difficulty=difficulty)
    assert not {p.prompt for p in held_out} & {p.prompt for p in train}
    assert len({p.id for p in [*held_out, *train]}) == 32


@every_domain
def test_no_example_is_a_question(domain):
    """Else its answer could be copied."""
    shown = {user for user, _ in EXAMPLES[domain.name]}
    asked = domain.problems("train", 200, fewer=True) + domain.problems("eval", 60)
    assert not shown & {p.prompt for p in asked}
    assert all(p.examples == EXAMPLES[domain.name] for p in asked)


@every_domain
def test_right_answers_earn_the_full_reward(domain):
    if domain.name == "rlhf":
        pytest.skip("open requests have no right answer")
    problems = domain.problems("eval", 60)
    scores = domain.score(problems, [right_answer(p) for p in problems])
    assert [s.why for s in scores if s.success != 1.0] == []
    wrong = domain.score(problems, ["I, er, do, not, know"] * len(problems))
    assert sum(s.success for s in wrong) < 0.2 * len(wrong)


@pytest.mark.parametrize("name", ["math", "code", "swe"])
def test_the_answers_of_the_examples_have_a_form_that_is_read(name):
    """An example's answer is wrong for another problem, but never unreadable."""
    domain = next(d for d in DOMAINS if d.name == name)
    problem = domain.problems("eval", 1)[0]
    said = [answer for _, answer in EXAMPLES[name]]
    reasons = " ".join(s.why for s in domain.score([problem] * len(said), said))
    assert "no " not in reasons or name == "swe", reasons


def test_bugs_have_at_most_300_tokens(policy):
    problems = next(d for d in DOMAINS if d.name == "swe").problems("eval", 60)
    alone = [policy.tokenizer(p.prompt, add_special_tokens=False) for p in problems]
    assert max(len(ids["input_ids"]) for ids in alone) <= 300


def test_examples_are_earlier_turns_of_the_dialogue(policy):
    problem = DOMAINS[2].problems("eval", 1)[0]
    text = policy.tokenizer.decode(policy.encode_prompt(problem.prompt, problem.examples))
    turns = [t for example in problem.examples for t in example]
    places = [text.index(turn) for turn in (*turns, problem.prompt)]
    assert places == sorted(places)
    assert text.count("<|im_start|>assistant") == len(problem.examples) + 1
    without = policy.encode_prompt(problem.prompt)
    assert policy.encode_prompt(problem.prompt, problem.examples)[-len(without) :] == without


def test_the_examples_are_recorded_and_shown(policy):
    problem = DOMAINS[2].problems("eval", 1)[0]
    (group,) = rollouts(policy, [problem], 1, max_new_tokens=4, key="test")
    score = DOMAINS[2].score([problem], [group[0].text])[0]
    row = Answer(group[0], score, 0.0, 0.0).row(1)
    assert row["examples"] == problem.examples
    assert problem.examples[0][1] in problem_page(problem)
    plain = Answer(replace(group[0], problem=replace(problem, examples=())), score, 0.0, 0.0)
    assert "examples" not in plain.row(1)


def test_other_models_get_the_easy_tier_unless_rows_are_named():
    assert tier_of("micro") == "micro"
    assert tier_of("folder/of/a/model") == tier_of("other", ["easy"]) == "easy"
    assert tier_of("other", ["rows/"]) == "real"
    assert [s.domain for s in stages_for("other")] == DOMAINS


def test_pairs_are_on_the_requests_of_the_tier(policy):
    policy.name = "not micro"
    data = run_data(policy, EASY_STAGES, eval_items=4)
    assert (len(data.train_pairs), len(data.eval_pairs)) == PAIRS["easy"]
    asked = {p.prompt for p in DOMAINS[0].problems("train", 2000, fewer=True)}
    assert {p.prompt for p in data.train_pairs} <= asked
    assert not {p.prompt for p in data.train_pairs} & {p.prompt for p in data.eval_pairs}


def test_a_stage_trains(policy):
    """`micro` never saw such dialogues and solves none of them: what counts is that it runs."""
    stage = replace(EASY_STAGES[1].fast(), max_new_tokens=16)
    problems = stage.domain.problems("train", 8)
    records = [record for record, _ in train(policy, stage, problems)]
    assert [r.step for r in records] == [1, 2]
    assert records[0].logprob_gap is None or records[0].logprob_gap < 1e-3


@pytest.fixture
def policy():
    policy = load_policy()
    yield policy
    policy.close()
