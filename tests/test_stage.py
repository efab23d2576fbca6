"""Stages are data: validated, printable, and what the README says they are."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cascade_kit import shaping
from cascade_kit.domains.rlhf import has_foreign_script
from cascade_kit.session.data import recorded_stage
from cascade_kit.shaping import GroupScores
from cascade_kit.stage import MICRO_STAGES, ORDER, REAL_STAGES, cascade


def test_both_cascades_have_the_five_stages_in_the_published_order():
    assert tuple(s.name for s in MICRO_STAGES) == ORDER
    assert tuple(s.name for s in REAL_STAGES) == ORDER
    assert all(s.domain.name == s.name for s in (*MICRO_STAGES, *REAL_STAGES))


def test_real_learning_rates_are_ten_times_the_papers():
    paper = {"rlhf": 2e-6, "instruct": 2e-6, "math": 2e-6, "code": 4e-6, "swe": 2.5e-6}
    for stage in REAL_STAGES:
        assert stage.learning_rate == pytest.approx(10 * paper[stage.name])


def test_only_rlhf_uses_the_toolbox_for_small_reward_models():
    for stage in (*MICRO_STAGES, *REAL_STAGES):
        small = stage.name == "rlhf"
        assert stage.needs_reward_model == small
        assert stage.kl_coef == (1e-3 if small else 0.0)
        assert stage.loss == ("sequence" if small else "token")


def test_order_and_overrides():
    stages = cascade(["code", "math"], steps=3, answers=4)
    assert [(s.name, s.steps, s.answers) for s in stages] == [("code", 3, 4), ("math", 3, 4)]
    assert cascade(["math"], tier="real")[0].max_new_tokens == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": 1}, "an advantage compares the answers of a group"),
        ({"prompts": 0}, "use at least 1"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"temperature": -1.0}, "above 0"),
        ({"kl_coef": -0.1}, "at least 0"),
        ({"loss": "mean"}, "'token' or 'sequence'"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(MICRO_STAGES[0], **changes)


def test_a_stage_prints_its_settings():
    stage = MICRO_STAGES[0]
    for text in (str(stage), stage._repr_html_()):
        assert "learning_rate" in text
        assert "0.001" in text
        assert "preference_tanh" in text
    assert stage.settings()["reward"] == shaping.preference_tanh.__name__


def test_fast_is_short():
    assert [(s.steps, s.prompts, s.answers) for s in map(lambda s: s.fast(), MICRO_STAGES)] == [
        (2, 4, 4)
    ] * 5


def test_a_language_switch_costs_what_the_paper_says():
    scores = GroupScores(
        values=np.array([[1.0, 0.0, 1.0]]), code_switch=np.array([[False, False, True]])
    )
    assert shaping.verifier_or_minus_one(scores).tolist() == [[1.0, 0.0, -1.0]]
    assert shaping.verifier_or_zero(scores).tolist() == [[1.0, 0.0, 0.0]]
    assert shaping.verifier(scores).tolist() == [[1.0, 0.0, 1.0]]
    rewards = {s.name: s.reward for s in REAL_STAGES}
    assert rewards["math"] is shaping.verifier_or_minus_one
    assert rewards["code"] is shaping.verifier_or_zero


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("x ∈ ℝ, so ℓ ≤ π", False), ("𝑥 + 𝑦, naïve Ω", False), ("因此 x = 2", True),
        ("значит, 4", True), ("次", True), ("שלוש", True), ("x² · 3 → 5", False),
        ("⅓ of it, step ②, part Ⅳ", False), ("x₁ᵀ aᵢ", False), ("ﬁnd /ˈfəʊ/ 😀", False),
        ("x̄ + ŷ", False), ("한", True), ("नमस्ते", True),
    ],
)  # fmt: skip
def test_mathematics_is_no_foreign_script(text, foreign):
    assert has_foreign_script(text) == foreign


def test_settings_with_phases_are_plain_json_and_come_back():
    for stage in REAL_STAGES:
        stored = json.loads(json.dumps(stage.settings()))
        assert recorded_stage(stage, stored) == stage
        assert "until" in str(stage) or not stage.phases
