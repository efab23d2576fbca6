"""The embedded model keeps its promises: size, grid, room to learn in every domain."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cascade_kit.evaluate import evaluate
from cascade_kit.loading import MICRO, load_policy
from cascade_kit.micro.train import StraightThroughNF4, linear_layers
from cascade_kit.stage import MICRO_STAGES


def test_it_is_small_and_long_enough():
    assert sum(path.stat().st_size for path in MICRO.iterdir()) <= 12 * 2**20
    model = AutoModelForCausalLM.from_pretrained(MICRO)
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert AutoConfig.from_pretrained(MICRO).max_position_embeddings >= 4096
    assert set(load_file(MICRO / "model.safetensors"))  # no pickle


def test_its_linear_weights_lie_on_the_nf4_grid():
    grid = StraightThroughNF4()
    layers = linear_layers(AutoModelForCausalLM.from_pretrained(MICRO))
    assert len(layers) == 4 * 7
    for layer in layers:
        assert torch.equal(grid.snap(layer.weight.data), layer.weight.data)


def test_its_tokenizer_splits_digits_and_survives_a_round_trip():
    tokenizer = AutoTokenizer.from_pretrained(MICRO)
    assert [t.strip("Ġ") for t in tokenizer.tokenize("2048")] == list("2048")
    text = "def f(x):\n    return x * 12  # naïve — 海, \\boxed{3}\n<<<<<<< SEARCH"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("stage", MICRO_STAGES, ids=lambda s: s.name)
def test_the_start_solves_some_but_not_most_of_every_domain(stage):
    policy = load_policy()
    problems = stage.domain.problems("eval", 120, difficulty=stage.difficulty)
    rows = evaluate(policy, stage.domain, problems, max_new_tokens=stage.max_new_tokens)
    assert 0.2 <= sum(row.score for row in rows) / len(rows) <= 0.7
