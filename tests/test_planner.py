"""The planner against tensors that really exist and peaks that were really reached."""

import json
import sys
from pathlib import Path

import pytest
import torch

from cascade_kit import plan_parts
from cascade_kit.__main__ import main
from cascade_kit.decoding import Decoding, merged_copy
from cascade_kit.loading import MICRO, load_policy
from cascade_kit.logprobs import micro_batches
from cascade_kit.plan_inputs import find_device, read_config
from cascade_kit.plan_parts import Machine, Shape
from cascade_kit.plan_phases import standing
from cascade_kit.planner import plan
from cascade_kit.policy import POLICY
from cascade_kit.stage import cascade

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))
from step import Step, reached  # noqa: E402

# Planned over reached bytes.
CLOSE = pytest.approx(1.0, abs=0.1)


# ---- against real allocations --------------------------------------------------------------------


def stored(tensors) -> int:
    """Bytes of the storages behind tensors, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def frozen_tensors(policy) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(linear weights with their scales, everything else of the base model)."""
    linear, other = [], []
    base = policy.model.get_base_model()
    for name, module in base.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if "lora_" in name:
                continue
            if name.endswith(".base_layer") and key == "weight":
                linear.append(parameter.data)
                state = getattr(parameter, "quant_state", None)
                for part in (state, getattr(state, "state2", None)):
                    linear += [t for t in vars(part or object).values() if torch.is_tensor(t)]
            else:
                other.append(parameter.data)
    return linear, other


def step_on(policy, prompts: int, answers: int, length: int, new: int) -> Step:
    (stage,) = cascade(["math"])
    return Step(policy, stage.changed(prompts=prompts, answers=answers, max_new_tokens=new), length)


def ratios(step: Step) -> dict[str, float]:
    """Planned over reached bytes of every phase, without what stands."""
    return {name: found["ratio"] for name, found in step.peaks().items()}


def compare_standing(step: Step) -> None:
    """Every part that is there all the time, against the bytes of its tensors."""
    step.learn(step.sample())
    policy, parts = step.policy, standing(step.load)
    linear, other = frozen_tensors(policy)
    adapter = list(policy.adapter_parameters(POLICY).values())
    moments = [
        t for p in adapter for k, t in step.state.optimizer.state[p].items() if k.startswith("exp")
    ]
    assert parts["linear weights"] / stored(linear) == CLOSE
    assert parts["embeddings, head, norms"] / stored(other) == CLOSE
    assert parts["adapters"] == stored(adapter)
    assert parts["gradients"] == stored(p.grad for p in adapter)
    assert parts["optimiser"] == stored(moments)
    merged = merged_copy(policy, POLICY)
    own = {p.data_ptr() for p in policy.model.parameters()}
    copied = [p for p in merged.parameters() if p.data_ptr() not in own]
    assert parts["merged copy"] == stored(copied)


def compare_cache(step: Step) -> None:
    load = step.load
    decoding = Decoding(merged_copy(step.policy, POLICY), load.length)
    with torch.inference_mode():
        decoding.prefill([step.policy.encode_prompt("")] * step.stage.prompts)
        decoding.repeat(step.stage.answers)
    buffers = [t for layer in decoding.cache.layers for t in layer._buffers]
    rows = step.stage.prompts * step.stage.answers
    assert plan_parts.cache_bytes(load.shape, load.machine, rows, load.length) == stored(buffers)


@pytest.mark.parametrize(
    ("bits", "dtype"), [(4, "float32"), (4, "bfloat16"), (8, "float32"), (16, "float32")]
)
def test_what_stands_equals_the_tensors_of_micro(bits, dtype):
    step = step_on(load_policy(bits=bits, dtype=dtype), 2, 4, 60, 20)
    compare_standing(step)
    compare_cache(step)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("float32", (8, 8, 100, 48)),
        ("bfloat16", (8, 8, 100, 48)),
        ("float32", (2, 4, 900, 20)),  # prompts that fill most of a row
        ("float32", (2, 2, 900, 200)),
    ],
)
def test_peaks_of_micro_are_predicted(dtype, sizes):
    found = ratios(step_on(load_policy(dtype=dtype), *sizes))
    assert found == {"rollout": CLOSE, "update": CLOSE}


def test_the_reward_models_peak_is_predicted():
    (stage,) = cascade(["rlhf"])
    step = Step(load_policy(), stage.changed(prompts=4, answers=8, max_new_tokens=40), 300)
    assert ratios(step)["reward model"] == CLOSE


def test_recomputed_layers_are_predicted(monkeypatch):
    monkeypatch.setattr("cascade_kit.budgets.ACTIVATION_BYTES", 4 << 20)  # 200 tokens
    step = step_on(load_policy(), 2, 2, 900, 200)
    assert all(batch.recompute for batch in step.load.micro_batches())
    assert ratios(step)["update"] == CLOSE


def test_the_chunk_of_logits_is_predicted():
    """With a vocabulary as large as Qwen's it is most of the update of a short answer."""
    from cascade_kit.logprobs import chunked_logps

    vocabulary, hidden = 151_936, 64
    head = torch.nn.Linear(hidden, vocabulary, bias=False).requires_grad_(False)
    states = torch.randn(300, hidden, requires_grad=True)
    ids = torch.zeros(300, dtype=torch.long)
    most = reached(lambda: chunked_logps(head, states, ids, 1.0))
    config = read_config("micro")
    config.vocab_size = vocabulary
    shape = Shape(config, ((hidden, hidden),), 0)
    assert plan_parts.chunk_bytes(shape, Machine(dtype=torch.float32), 300) / most == CLOSE


@pytest.mark.parametrize("answers", [2, 8])
def test_the_plans_batches_are_those_of_training(answers, monkeypatch):
    monkeypatch.setattr("cascade_kit.budgets.ACTIVATION_BYTES", 16 << 20)
    step = step_on(load_policy(), 3, answers, 100, 48)
    real = micro_batches(step.policy, [r for group in step.sample() for r in group])
    described = [[[len(row) for row in b.rows], b.recompute] for b in real]
    assert described == [
        [[len(row) for row in b.rows], b.recompute] for b in step.load.micro_batches()
    ]
    assert len(described) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "dtype"), [(16, "float32"), (4, "float32"), (4, "bfloat16")]
)  # fmt: skip
def test_smollm2_is_predicted(bits, dtype, smollm2):
    step = step_on(load_policy(smollm2, bits=bits, dtype=dtype), 2, 4, 100, 32)
    assert ratios(step) == {"rollout": CLOSE, "update": CLOSE}
    compare_standing(step)
    compare_cache(step)


# ---- by hand -------------------------------------------------------------------------------------


def test_a_7b_by_hand():
    """Qwen2.5-7B: 28 layers of 3584, 18944 and 4 key heads of 128; a vocabulary of 152064."""
    shape = Shape.of(read_config("qwen2.5-7b"))
    attention = 3584 * 3584 * 2 + 3584 * 512 * 2
    linear = 28 * (attention + 3 * 3584 * 18944)
    assert shape.linear == linear
    # Half a byte, a scale of a byte for 64, one of four for 256 scales: 0.51587... and the codes.
    machine = Machine(4, 32)
    weights = plan_parts.linear_bytes(shape, machine) - 28 * 7 * plan_parts.CODES
    assert weights / linear == pytest.approx(1 / 2 + 1 / 64 + 4 / 64 / 256, rel=1e-4)
    widths = 28 * (2 * 2 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert plan_parts.adapter_bytes(shape, machine) == 4 * 32 * widths
    # A token's keys and values: 28 layers x 2 x 4 heads x 128 x 2 bytes = 57,344.
    assert plan_parts.cache_bytes(shape, machine, 3, 5) == 15 * 57_344


@pytest.mark.parametrize(("model", "most"), [("qwen2.5-7b", 8.0e9), ("qwen2.5-1.5b", 4.5e9)])
@pytest.mark.parametrize("gpu", ["t4", "l4"])
def test_one_prompt_with_eight_answers_reaches_the_target(model, most, gpu):
    (stage,) = cascade(["math"], tier="real")
    stage = stage.changed(prompts=1, answers=8, max_new_tokens=256)
    found = plan(model, gpu, [stage], rank=32, prompt_tokens=256, eval_items=8)
    assert found.reserved <= most


def test_the_whole_cascade_of_a_7b_fits_16_gb():
    found = plan("qwen2.5-7b", "16GB")
    assert [stage.stage.name for stage in found.stages] == [
        "rlhf", "instruct", "math", "code", "swe",
    ]  # fmt: skip
    assert found.fits and found.needed < 16e9
    assert plan("qwen2.5-7b", "t4").fits


# ---- what it advises -----------------------------------------------------------------------------


def test_parts_add_up_and_the_peak_is_the_largest():
    found = plan("qwen3-1.7b", "l4")
    for stage in found.stages:
        assert stage.peak == max(sum(parts.values()) for parts in stage.phases.values())
        assert {"evaluation", "rollout", "update"} <= set(stage.phases)
        assert all(size >= 0 for parts in stage.phases.values() for size in parts.values())
    assert found.peak == max(stage.peak for stage in found.stages)
    assert found.peak < found.reserved < found.needed
    assert "reward model" in found.stages[0].phases
    assert "reward model" not in found.stages[2].phases


def test_every_part_grows_with_what_it_depends_on():
    base = plan("qwen2.5-1.5b", "l4", rank=16)
    assert plan("qwen2.5-1.5b", "l4", rank=64).peak > base.peak
    assert plan("qwen2.5-1.5b", "l4", bits=16).peak > plan("qwen2.5-1.5b", "l4", bits=8).peak
    assert plan("qwen2.5-1.5b", "l4", bits=8).peak > base.peak
    longer = plan("qwen2.5-1.5b", "l4", cascade(["math"], tier="real", max_new_tokens=16384))
    assert longer.peak > base.stages[2].peak
    assert plan("qwen2.5-1.5b", "l4", decoding="layers").peak < base.peak or not base.merged


@pytest.mark.parametrize("gpu", ["3.6GB", "3.4GB"])
def test_advice_that_is_followed_makes_the_stage_fit(gpu):
    (stage,) = cascade(["swe"], tier="real")
    (tight,) = plan("qwen2.5-1.5b", gpu, [stage]).stages
    assert not tight.fits and tight.longest is None and tight.remedies
    for remedy in tight.remedies:
        assert _follow(stage, remedy, gpu).fits, remedy


def _follow(stage, remedy: str, gpu: str):
    """The plan with the settings that a remedy names."""
    words = remedy.replace(" together", "").replace("--", "").replace("-", "_")
    settings = {}
    for part in words.split(", "):
        name, value, *_ = part.split()
        settings[name] = int(value)
    outside = {}
    for name in ("rank", "bits", "eval_items"):
        if name in settings:
            outside[name] = settings.pop(name)
    if "max_prompt_tokens" in settings:
        outside["prompt_tokens"] = settings.pop("max_prompt_tokens")
    return plan("qwen2.5-1.5b", gpu, [stage.changed(**settings)], **outside)


def test_where_no_setting_helps_another_model_is_named():
    (stage,) = cascade(["math"], tier="real")
    (found,) = plan("qwen2.5-7b", "3GB", [stage]).stages
    (remedy,) = found.remedies
    assert remedy.startswith("a smaller model: ")
    smaller = remedy.removeprefix("a smaller model: ")
    assert plan(smaller, "3GB", [stage]).fits
    assert plan("micro", "1MB", [stage]).stages[0].remedies == ("a device with more memory",)


def test_the_longest_answer_that_fits_is_the_longest():
    (stage,) = cascade(["math"], tier="real")
    (found,) = plan("qwen2.5-7b", "t4", [stage]).stages
    at = plan("qwen2.5-7b", "t4", [stage.changed(max_new_tokens=found.longest)])
    above = plan("qwen2.5-7b", "t4", [stage.changed(max_new_tokens=found.longest + 64)])
    assert at.fits and not above.fits


# ---- asking --------------------------------------------------------------------------------------


def test_the_command_prints_phases_and_exits_by_the_verdict(capsys):
    assert main(["plan", "--model", "qwen2.5-7b", "--gpu", "t4", "--stage", "math"]) == 0
    shown = capsys.readouterr().out
    assert "7,616 million parameters" in shown and "Everything fits." in shown
    assert main(["plan", "--model", "qwen2.5-7b", "--gpu", "4GB"]) == 1
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown and "math does not fit: choose" in shown


def test_json_holds_every_part_in_bytes(capsys):
    options = ["--model", "qwen3-0.6b", "--gpu", str(16 * 10**9), "--order", "code,swe", "--json"]
    assert main(["plan", *options, "--answers", "4", "--rank", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"] == 16 * 10**9 and found["rank"] == 8 and found["fits"] is True
    for stage in found["stages"]:
        assert stage["peak"] == max(sum(parts.values()) for parts in stage["phases"].values())
        assert stage["stage"]["answers"] == 4
        assert stage["seconds_per_step"] == {}  # of a memory alone nobody knows the speed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "qwen2.5-8b"], "nearest is qwen2.5-"),
        (["--model", "some/other-model"], "no configuration of some/other-model"),
        (["--gpu", "rtx9000"], "give t4, l4, a100, h100, cpu"),
        (["--gpu", "0GB"], "is not known"),
        (["--bits", "5"], "bits are 4, 8 or 16"),
        (["--model", "micro", "--max-new-tokens", "5000"], "leaves no room"),
    ],
)
def test_impossible_questions_are_answered_with_the_remedy(options, message, capsys):
    assert main(["plan", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_has_the_plan_of_its_model():
    assert plan(MICRO, "cpu", prompt_tokens=100).shape == plan("micro", "cpu").shape


@pytest.mark.slow
def test_a_gguf_file_is_planned_from_its_header(smollm2):
    found, preset = plan(smollm2, "l4"), plan("smollm2-135m", "l4")
    assert found.peak == pytest.approx(preset.peak, rel=0.01)


def test_memory_may_be_given_in_words_or_bytes():
    assert find_device("16GB").memory == find_device(16 * 10**9).memory == 16 * 10**9
    assert find_device("1.5 GiB").memory == 3 << 29
    assert find_device("cpu").dtype == torch.float32


def test_a_notebook_shows_tables_that_a_screen_reader_can_read():
    shown = plan("qwen2.5-7b", "3GB")._repr_html_()
    assert shown.count("<caption>") == 2 and "scope='col'" in shown and "scope='row'" in shown
    assert "DOES NOT FIT" in shown and "a smaller model" in shown


def test_a_context_as_short_as_the_models_bounds_what_fits():
    (stage,) = cascade(["math"])
    (found,) = plan("micro", "cpu", [stage]).stages
    assert found.prompt_tokens + found.longest <= 4096
