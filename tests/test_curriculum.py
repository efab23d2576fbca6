"""The curriculum by hand: epochs, what the filters leave out, phases, and going on from a state."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_kit import grpo
from cascade_kit.curriculum import EASY_AGAIN, HARD_AGAIN, Curriculum
from cascade_kit.data import load_data
from cascade_kit.domains import Domain
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.domains.math import MATH
from cascade_kit.domains.swe import SWE, ask_repair, with_noise
from cascade_kit.loading import load_policy
from cascade_kit.policy import REFERENCE
from cascade_kit.problem import Problem, Score
from cascade_kit.stage import Phase, Stage, cascade
from cascade_kit.verifiers.swe_tree import node_id

POOL = [Problem(f"p{i}", "math", "x" * (i + 1)) for i in range(12)]
STAGE = Stage(name="math", domain=MATH, prompts=4, steps=30)


def ids(problems):
    return [p.id for p in problems]


# ---- epochs ------------------------------------------------------------------------------------


def test_without_a_filter_the_order_is_a_seeded_shuffle_an_epoch():
    curriculum = Curriculum(POOL, STAGE, 7)
    for epoch in range(3):
        order = list(POOL)
        random.Random(f"7/math/epoch {epoch}").shuffle(order)
        for place in (0, 4, 8):
            assert curriculum.draw(STAGE, 4) == order[place : place + 4]


def test_what_is_left_over_of_an_epoch_is_not_used():
    curriculum = Curriculum(POOL[:10], STAGE, 0)
    first = [ids(curriculum.draw(STAGE, 4)) for _ in range(2)]
    assert len({i for batch in first for i in batch}) == 8
    order = list(POOL[:10])
    random.Random("0/math/epoch 1").shuffle(order)
    assert curriculum.draw(STAGE, 4) == order[:4]


@given(size=st.integers(1, 30), prompts=st.integers(1, 30), seed=st.integers(0, 99))
def test_an_epoch_holds_no_problem_twice(size, prompts, seed):
    pool = [Problem(f"p{i}", "math", "x") for i in range(size)]
    curriculum = Curriculum(pool, STAGE, seed)
    steps = size // min(size, prompts)
    for _ in range(3):
        epoch = [i for _ in range(steps) for i in ids(curriculum.draw(STAGE, prompts))]
        assert len(epoch) == len(set(epoch)) == steps * min(size, prompts)
        assert len(epoch) > size - prompts  # less than a step is left over


@given(
    size=st.integers(1, 12),
    kept=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    cut=st.integers(0, 2),
)
def test_a_step_tries_no_problem_twice(size, kept, cut):
    """Steps of four prompts in which the batch filter keeps some of each draw."""
    keeps = iter(kept)
    curriculum = Curriculum(POOL[:size], STAGE, 0)
    for step in range(3):
        tried, lacking = [], 4
        for _ in range(4):
            if step == cut:  # also in a process that goes on here
                state, curriculum = curriculum.state(), Curriculum(POOL[:size], STAGE, 0)
                curriculum.restore(json.loads(json.dumps(state)))
            batch = ids(curriculum.draw(STAGE, lacking, tried))
            assert len(batch) == min(lacking, size - len(tried))
            tried += batch
            lacking -= min(len(batch), next(keeps))
            if not lacking or len(tried) == size:
                break
        assert len(tried) == len(set(tried))


def test_two_problems_with_one_id_are_refused():
    with pytest.raises(ValueError, match="same id; give each its own"):
        Curriculum([*POOL, POOL[3]], STAGE, 0)


def test_a_pool_smaller_than_a_step_is_drawn_whole():
    assert sorted(ids(Curriculum(POOL[:3], STAGE, 0).draw(STAGE, 4))) == ["p0", "p1", "p2"]


# ---- the epoch filter --------------------------------------------------------------------------


def epoch_of(curriculum, stage):
    """The ids of the next epoch, drawn four at a time until it is used up."""
    found = ids(curriculum.draw(stage, 4))
    while curriculum._position + 4 <= len(curriculum._order):
        found += ids(curriculum.draw(stage, 4))
    return found


def test_solved_always_or_never_is_left_out_of_the_next_epoch():
    stage = replace(STAGE, filter="epoch")
    pool = [Problem(f"p{i}", "math", "x") for i in range(4000)]
    rates = {p.id: (0.0, 0.25, 0.75, 1.0)[i % 4] for i, p in enumerate(pool)}
    curriculum = Curriculum(pool, stage, 0)
    epoch_of(curriculum, stage)
    curriculum.tell(rates)
    second = epoch_of(curriculum, stage)
    counts = {rate: sum(rates[i] == rate for i in second) for rate in (0.0, 0.25, 0.75, 1.0)}
    assert counts[0.25] + counts[0.75] >= 2000 - 3  # all, but for what a last full step leaves
    assert counts[0.0] == pytest.approx(1000 * HARD_AGAIN, abs=40)  # four standard deviations
    assert counts[1.0] == pytest.approx(1000 * EASY_AGAIN, abs=13)
    assert curriculum.left_out == 4000 - len(curriculum._order)


def test_four_problems_by_hand():
    """After the first epoch p0 is hard, p1 easy, p2 half solved, p3 unseen."""
    stage = replace(STAGE, filter="epoch", prompts=1)
    epochs = {}
    for seed in range(200):
        curriculum = Curriculum(POOL[:4], stage, seed)
        assert sorted(epoch_of(curriculum, stage)) == ["p0", "p1", "p2", "p3"]
        assert (curriculum.left_out, curriculum.readmitted) == (0, 0)
        curriculum.tell({"p0": 0.0, "p1": 1.0, "p2": 0.5})
        rng = random.Random(f"{seed}/math/filter 1")
        hard, easy = rng.random() < 0.1, rng.random() < 0.01
        expected = ["p0"] * hard + ["p1"] * easy + ["p2", "p3"]
        curriculum.draw(stage, 1)
        assert sorted(curriculum._order) == expected
        assert curriculum.left_out == 2 - hard - easy
        assert curriculum.readmitted == hard + easy
        other = Curriculum(POOL[:4], stage, seed)
        other.restore(json.loads(json.dumps(curriculum.state())))
        assert (other.left_out, other.readmitted) == (2 - hard - easy, hard + easy)
        epochs[hard, easy] = epochs.get((hard, easy), 0) + 1
    assert epochs[False, False] > 150 and epochs[True, False] > 5  # both were met


def test_prompts_over_the_cap_are_not_counted_as_left_out():
    stage = replace(STAGE, filter="epoch", max_prompt_tokens=6, prompts=2)
    curriculum = Curriculum(POOL, stage, 0)
    curriculum.draw(stage, 2)
    assert (len(curriculum._order), curriculum.left_out) == (6, 0)


def test_one_that_was_left_out_comes_back_by_its_newest_rate():
    stage = replace(STAGE, filter="epoch", prompts=1)
    curriculum = Curriculum(POOL, stage, 3)
    seen = []
    for _ in range(300):
        for problem in curriculum.draw(stage, 1):
            seen.append(problem.id)
            curriculum.tell({problem.id: 0.0 if problem.id == "p0" else 0.5})
    share = seen.count("p0") / (len(seen) / 12)  # 1 if it came in every epoch
    assert 0.02 < share < 0.35


def test_a_step_is_filled_up_when_the_filter_leaves_too_few():
    stage = replace(STAGE, filter="epoch")
    curriculum = Curriculum(POOL, stage, 0)
    for _ in range(6):  # two epochs, all solved
        batch = curriculum.draw(stage, 4)
        assert len(set(ids(batch))) == 4
        curriculum.tell({p.id: 1.0 for p in batch})
    assert curriculum.left_out == 8


@given(
    rates=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=40, max_size=40),
    cut=st.integers(0, 19),
    kind=st.sampled_from(["none", "epoch"]),
)
def test_another_process_goes_on_from_the_state(rates, cut, kind):
    # Where the cap of the first steps ends, an epoch begins.
    stage = replace(
        STAGE, filter=kind, prompts=3, steps=20, phases=(Phase(until=0.7, max_prompt_tokens=7),)
    )
    told = iter(rates * 2)

    def draws(curriculum, count, step=0):
        for now in range(step + 1, step + count + 1):
            batch = curriculum.draw(stage.at(now), 3)
            curriculum.tell({p.id: next(told) for p in batch})
            yield ids(batch), curriculum.left_out, curriculum.readmitted

    whole = list(draws(Curriculum(POOL, stage, 5), 20))
    told = iter(rates * 2)
    first = Curriculum(POOL, stage, 5)
    before = list(draws(first, cut))
    second = Curriculum(POOL, stage, 5)
    second.restore(json.loads(json.dumps(first.state())))
    assert before + list(draws(second, 20 - cut, cut)) == whole


def test_a_state_of_other_problems_is_refused():
    curriculum = Curriculum(POOL, STAGE, 0)
    curriculum.draw(STAGE, 4)
    with pytest.raises(ValueError, match="other problems .* same data"):
        Curriculum(POOL[:5], STAGE, 0).restore(curriculum.state())


# ---- phases ------------------------------------------------------------------------------------


def test_a_phase_holds_up_to_its_share_of_the_steps():
    stage = replace(
        STAGE, steps=10, max_new_tokens=40, temperature=0.8,
        phases=(
            Phase(until=0.3, max_new_tokens=24, overlong_filter=True, temperature=1.0),
            Phase(until=0.7, max_new_tokens=32),
        ),
    )  # fmt: skip
    at = [stage.at(step) for step in range(1, 11)]
    assert [s.max_new_tokens for s in at] == [24] * 3 + [32] * 4 + [40] * 3
    assert [s.overlong_filter for s in at] == [True] * 3 + [False] * 7
    assert [s.temperature for s in at] == [1.0] * 3 + [0.8] * 7
    assert all(s.phases == () and s.steps == 10 for s in at)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((Phase(until=0.5), Phase(until=0.5)), "each larger than the one before"),
        ((Phase(until=1.0),), "between 0 and 1"),
        ((Phase(until=0.5, max_new_tokens=512),), "more than the stage's 256"),
        ((Phase(until=0.5, temperature=-1.0),), "above 0"),
        ((Phase(until=0.5, noisy_files=2),), "needs max_prompt_tokens"),
    ],
)
def test_impossible_phases_are_refused(phases, message):
    with pytest.raises(ValueError, match=message):
        replace(STAGE, phases=phases)


def test_prompts_over_the_cap_wait_for_their_phase():
    stage = replace(
        STAGE,
        steps=6,
        prompts=3,
        max_prompt_tokens=9,
        phases=(Phase(until=0.5, max_prompt_tokens=4),),
    )
    curriculum = Curriculum(POOL, stage, 0)
    drawn = [curriculum.draw(stage.at(step), 3) for step in range(1, 7)]
    assert {len(p.prompt) for batch in drawn[:3] for p in batch} <= set(range(1, 5))
    assert sorted(len(p.prompt) for batch in drawn[3:] for p in batch) == list(range(1, 10))
    with pytest.raises(ValueError, match="every prompt has more than max_prompt_tokens=2"):
        Curriculum(POOL[5:], replace(STAGE, max_prompt_tokens=2), 0).draw(
            replace(STAGE, max_prompt_tokens=2), 1
        )


def test_the_papers_phases_of_math_and_swe():
    math, swe = cascade(["math", "swe"], tier="real")
    assert [math.at(s).overlong_filter for s in (1, 15, 16, 34, 35, 40)] == [True] * 2 + [False] * 4
    assert [math.at(s).temperature for s in (1, 34, 35)] == [1.0, 1.0, 0.8]
    lengths = [math.at(s).max_new_tokens for s in (1, 16, 35)]
    assert [n / lengths[-1] for n in lengths] == pytest.approx([24 / 40, 32 / 40, 1], abs=0.03)
    assert [swe.at(s).max_prompt_tokens for s in (1, 20, 21)] == [1024, 1024, 1536]  # 16 to 24
    assert [swe.at(s).overlong_filter for s in (20, 21)] == [True, False]


# ---- noisy files -------------------------------------------------------------------------------

FILES = {f"{name}.py": f"{name} = 1\n" for name in "abcdef"}
REPAIR = Problem(
    "swe-1", "swe", ask_repair("a is wrong", FILES, ["a.py"]),
    {"issue": "a is wrong", "files": FILES, "shown": ["a.py"], "gold_files": FILES},
)  # fmt: skip


def shown_files(problem):
    return [line[4:] for line in problem.prompt.splitlines() if line.startswith("### ")][:-1]


def test_noise_is_added_up_to_the_count_and_never_changes():
    noisy = with_noise(REPAIR, 3, lambda _: True)
    assert len(shown_files(noisy)) == 4 and "a.py" in shown_files(noisy)
    assert noisy == with_noise(REPAIR, 3, lambda _: True)
    assert noisy.target == REPAIR.target and noisy.id == REPAIR.id
    assert set(shown_files(with_noise(REPAIR, 99, lambda _: True))) == set(FILES)


def test_noise_never_shows_the_tests():
    hidden = {
        "tests/data.py": "x", "test_a.py": "x", "pkg/test/b.py": "x", "conftest.py": "x",
        "pkg/a_test.py": "x", "empty.py": "\n",
    }  # fmt: skip
    plain = {"a.py": "x", "testing.py": "x", "pkg/latest.py": "x", "contest.py": "x"}
    target = {"issue": "a is wrong", "files": plain | hidden, "shown": ["a.py"]}
    noisy = with_noise(Problem("s", "swe", "", target), 99, lambda _: True)
    assert set(shown_files(noisy)) == set(plain)


def test_noise_of_real_rows_shows_no_test_that_the_reward_runs(shared):
    data = load_data(shared / "data" / "swe_mini_exec")
    problems = [*data.train["swe"], *data.eval["swe"]]
    assert len(problems) > 5
    for problem in problems:
        noisy = with_noise(problem, 99, lambda _: True)
        tests = {*problem.target["fail_to_pass"], *problem.target["pass_to_pass"]}
        run = {node_id(test, problem.target["files"]).partition("::")[0] for test in tests}
        assert run and not run & set(shown_files(noisy))
        assert set(problem.target["shown"]) <= set(shown_files(noisy))


def test_noise_stops_at_the_length():
    limit = len(REPAIR.prompt) + 70
    noisy = with_noise(REPAIR, 5, lambda problem: len(problem.prompt) <= limit)
    assert 1 < len(shown_files(noisy)) < 6
    assert len(noisy.prompt) <= limit


def test_noise_leaves_room_for_the_answer():
    stage = Stage(
        name="swe", domain=SWE, prompts=1, max_new_tokens=50, noisy_files=5, max_prompt_tokens=9999
    )
    room = len(REPAIR.prompt) + 70 + 50
    (noisy,) = Curriculum([REPAIR], stage, 0, positions=room).draw(stage, 1)
    assert 1 < len(shown_files(noisy)) < 6
    assert len(noisy.prompt) + 50 <= room


def test_the_curriculum_adds_noise_as_the_phase_says():
    stage = Stage(
        name="swe", domain=SWE, steps=2, prompts=1, noisy_files=5, max_prompt_tokens=9999,
        phases=(Phase(until=0.5, noisy_files=0),),
    )  # fmt: skip
    curriculum = Curriculum([REPAIR], stage, 0)
    assert curriculum.draw(stage.at(1), 1) == [REPAIR]
    assert len(shown_files(curriculum.draw(stage.at(2), 1)[0])) == 6


def test_a_generated_problem_stays_as_it_is():
    (problem,) = SWE.problems("train", 1)
    assert with_noise(problem, 3, lambda _: True) is problem


# ---- on the embedded model ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return load_policy("micro")


def test_the_batch_filter_leaves_only_groups_with_a_gradient(policy):
    stage = replace(
        cascade(["instruct"])[0], steps=2, prompts=4, answers=2, max_new_tokens=24, filter="batch"
    )
    for record, answers in grpo.train(policy, stage, INSTRUCT.problems("train", 60)):
        assert len(answers) == 8
        assert all(a.advantage != 0 for a in answers)
        assert record.all_right == record.all_wrong == 0.0
        assert record.refilled > 0  # with two answers most groups are flat at first


def test_the_batch_filter_gives_up_where_nothing_has_a_gradient(policy):
    flat = Domain("math", MATH.generate, lambda problem, completion: Score(1.0))
    stage = Stage(
        name="math", domain=flat, steps=1, prompts=2, answers=2, max_new_tokens=4, filter="batch"
    )
    ((record, answers),) = grpo.train(policy, stage, MATH.problems("train", 20))
    assert record.refilled == 2 * (grpo.MOST_DRAWS - 1)
    assert (record.all_right, record.grad_norm, len(answers)) == (1.0, 0.0, 4)


def test_the_batch_filter_fills_no_step_with_one_problem_twice(policy):
    stage = replace(
        cascade(["instruct"])[0], steps=3, prompts=4, answers=2, max_new_tokens=24, filter="batch"
    )
    refilled = 0
    for record, answers in grpo.train(policy, stage, INSTRUCT.problems("train", 6)):
        rows = [(a.rollout.problem.id, a.rollout.sample) for a in answers]
        assert len(set(rows)) == len(rows) <= 8
        assert record.refilled <= 2  # six problems, four of them at first
        refilled += record.refilled
    assert refilled > 0


def test_the_epoch_filter_hears_what_was_solved(policy):
    half = Domain("math", MATH.generate, lambda problem, _: Score(float(int(problem.id[-1]) < 5)))
    pool = [replace(p, id=f"math-{i:03}") for i, p in enumerate(MATH.problems("train", 20))]
    stage = Stage(
        name="math", domain=half, steps=10, prompts=4, answers=2, max_new_tokens=1, filter="epoch"
    )
    records = [record for record, _ in grpo.train(policy, stage, pool)]
    assert [r.left_out for r in records[:5]] == [0] * 5  # one epoch over twenty
    assert all(r.left_out >= 12 for r in records[5:])


def test_records_tell_the_settings_of_their_phase(policy):
    stage = Stage(
        name="math", domain=MATH, steps=2, prompts=2, answers=2, max_new_tokens=6, temperature=0.5,
        phases=(Phase(until=0.5, max_new_tokens=3, temperature=1.0),),
    )  # fmt: skip
    steps = list(grpo.train(policy, stage, MATH.problems("train", 20)))
    assert [(r.max_new_tokens, r.temperature) for r, _ in steps] == [(3, 1.0), (6, 0.5)]
    longest = [max(len(a.rollout.completion_ids) for a in answers) for _, answers in steps]
    assert longest == [3, 6]


def test_the_recipes_of_the_paper_train_on_the_embedded_model(policy):
    """Every phase of every stage, at lengths that the phases follow."""
    stages = cascade(
        ["instruct", "math", "code", "swe"], tier="real", steps=4, prompts=2, answers=2,
        max_new_tokens=16,
    )  # fmt: skip
    for stage in stages:
        pool = stage.domain.problems("train", 4)
        records = [record for record, _ in grpo.train(policy, stage, pool)]
        expected = [stage.at(step) for step in (1, 2, 3, 4)]
        assert [r.max_new_tokens for r in records] == [s.max_new_tokens for s in expected]
        assert [r.max_prompt_tokens for r in records] == [s.max_prompt_tokens for s in expected]
        assert [r.temperature for r in records] == [s.temperature for s in expected]
        assert all(r.logprob_gap is None or r.logprob_gap < 1e-4 for r in records)
        if stage.name == "math":
            assert [r.max_new_tokens for r in records] == [10, 10, 13, 16]


def test_a_pool_that_cannot_be_drawn_from_leaves_no_reference_behind(policy):
    pool = MATH.problems("train", 4)
    stage = replace(cascade(["math"])[0], kl_coef=0.1)
    with pytest.raises(ValueError, match="same id"):
        next(grpo.train(policy, stage, [*pool, pool[0]]))
    assert REFERENCE not in policy.model.peft_config
