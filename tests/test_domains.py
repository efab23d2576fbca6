"""Generated problems: deterministic, disjoint, solvable; rewards that can be called by hand."""

import doctest
import importlib
import random

import pytest

from cascade_kit.domains import SPLITS
from cascade_kit.domains.rlhf import RLHF, has_foreign_script
from cascade_kit.micro.demonstrations import SLIPS, demonstrate
from cascade_kit.problem import Problem, Score
from cascade_kit.stage import MICRO_STAGES

DOMAINS = [stage.domain for stage in MICRO_STAGES]
every_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: d.name)


@every_domain
@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_problems_are_deterministic_and_splits_disjoint(domain, difficulty):
    splits = {split: domain.problems(split, 60, seed=1, difficulty=difficulty) for split in SPLITS}
    assert splits["eval"] == domain.problems("eval", 60, seed=1, difficulty=difficulty)
    prompts = [{p.prompt for p in problems} for problems in splits.values()]
    assert all(len(p) == 60 for p in prompts)
    assert not (prompts[0] & prompts[1] or prompts[0] & prompts[2] or prompts[1] & prompts[2])
    other = domain.problems("eval", 60, seed=2, difficulty=difficulty)
    assert [p.id for p in other] != [p.id for p in splits["eval"]]


@every_domain
def test_bad_arguments_name_the_remedy(domain):
    with pytest.raises(ValueError, match="choose one of sft, train, eval"):
        domain.problems("test", 1)
    with pytest.raises(ValueError, match="is not 1, 2 or 3"):
        domain.problems("eval", 1, difficulty=4)


def test_more_problems_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="has only about .* ask for fewer than 5000"):
        RLHF.problems("eval", 5000)
    assert 40 < len(RLHF.problems("eval", 5000, fewer=True)) < 5000


@every_domain
def test_the_teacher_is_right_without_slips_and_slips_at_its_rate(domain, monkeypatch):
    problems = domain.problems("train", 150)
    if domain.name == "rlhf":
        pytest.skip("open requests have no right answer")
    rate = SLIPS[domain.name]
    monkeypatch.setitem(SLIPS, domain.name, 0.0)
    rng = random.Random(0)
    right = domain.score(problems, [demonstrate(p, rng) for p in problems])
    assert [s.why for s in right if s.value != 1.0] == []
    monkeypatch.setitem(SLIPS, domain.name, rate)
    noisy = domain.score(problems, [demonstrate(p, rng) for p in problems])
    solved = sum(s.success for s in noisy) / len(noisy)
    assert 0.8 * (1 - rate) < solved < 1 - rate + 0.2


@pytest.mark.parametrize("name", ["rlhf", "instruct", "math", "code", "swe"])
def test_the_examples_in_the_reward_docstrings_hold(name):
    module = importlib.import_module(f"cascade_kit.domains.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted >= 2
    assert outcome.failed == 0


def test_scores_give_their_success():
    assert Score(-1.0).success == 0.0
    assert Score(3.0).success == 1.0
    assert Score(0.4, success=0.9).success == 0.9
    assert Score(3.7, success=None).success is None
    assert "&lt;b&gt;" in Score(1.0, why="<b>")._repr_html_()


def test_foreign_scripts_are_told_from_names_and_mathematics():
    assert has_foreign_script("The sea is 海.")
    assert has_foreign_script("мир")
    assert not has_foreign_script("Café naïve Łódź, π ≈ 3.14, α + β, 5 € – “quoted” … ✓ 😀")


def test_an_open_request_without_a_true_preference_is_never_scored_silently():
    problem = Problem("real", "rlhf", "Hello?")
    with pytest.raises(ValueError, match="scored by a reward model"):
        RLHF.reward(problem, "Hi.")
    assert RLHF.score([problem], ["Hi."])[0].success is None
