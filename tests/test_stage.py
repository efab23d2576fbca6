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
        ({"filter": "group"}, "'none', 'epoch' or 'batch'"),
        ({"max_prompt_tokens": 0}, "at least 1"),
        ({"noisy_files": -1}, "at least 0"),
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


def test_phases_are_printed_with_their_steps():
    math = cascade(["math"], tier="real")[0]
    first = "max_new_tokens=320, temperature=1.0, overlong_filter=True"
    assert f"; steps 1-15: {first}; steps 16-34: max_new_tokens=416, temperature=1.0" in str(math)
    assert f"<tr><th scope='row'>steps 1-15</th><td>{first}</td></tr>" in math._repr_html_()
    for text in (str(math), math._repr_html_()):
        assert "until" not in text and "{" not in text
    two = cascade(["math"], tier="real", steps=2)[0]  # no step is left to the last part
    assert str(two).endswith("; step 2: max_new_tokens=416, temperature=1.0")
    assert "steps 1-" not in str(MICRO_STAGES[0])


def test_phases_follow_what_is_overridden():
    (math,) = cascade(["math"], tier="real", max_new_tokens=256)
    assert [math.at(s).max_new_tokens for s in (1, 16, 35)] == [160, 208, 256]  # 320, 416, 512
    assert [math.at(s).temperature for s in (1, 16, 35)] == [1.0, 1.0, 0.8]
    (math,) = cascade(["math"], tier="real", temperature=0.7, overlong_filter=False)
    assert {(math.at(s).temperature, math.at(s).overlong_filter) for s in (1, 16, 35)} == {
        (0.7, False)
    }
    (swe,) = cascade(["swe"], tier="real", max_prompt_tokens=3000)
    assert [swe.at(s).max_prompt_tokens for s in (1, 21)] == [2000, 3000]  # 1024, 1536
    (open_end,) = cascade(["swe"], tier="real", max_prompt_tokens=None, noisy_files=0)
    assert [open_end.at(s).max_prompt_tokens for s in (1, 21)] == [None, None]
    assert swe.changed(phases=()).at(1).max_prompt_tokens == 3000
    for length in (1, 2, 7, 4096):  # what --max-new-tokens may be
        for stage in cascade(tier="real", max_new_tokens=length):
            assert all(1 <= stage.at(s).max_new_tokens <= length for s in range(1, 41))
