"""Short names of models: their shapes give the published numbers of parameters."""

import pytest

from cascade_kit.loading import model_source
from cascade_kit.presets import hub_id, presets


@pytest.mark.parametrize("name", list(presets()))
def test_the_shape_of_a_preset_has_the_published_parameters(name):
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    preset = presets()[name]
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**preset.config))
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == preset.parameters


def test_the_models_of_the_issue_have_names():
    families = {name.rsplit("-", 1)[0] for name in presets()}
    assert {"smollm2", "qwen2.5", "qwen3", "llama-3.2"} <= families
    assert len(presets()) >= 9


def test_a_short_name_means_its_id_and_other_names_stay():
    assert hub_id("Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert hub_id("org/other") == model_source("org/other") == "org/other"
    assert model_source("qwen2.5-0.5b") == "Qwen/Qwen2.5-0.5B-Instruct"
