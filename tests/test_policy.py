"""Loading, adapters and decoding weights, on the real embedded model and real bitsandbytes."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_kit.decoding import merged_copy
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.domains.math import MATH
from cascade_kit.grpo import train
from cascade_kit.loading import MICRO, load_policy, model_source
from cascade_kit.policy import POLICY, base_weight, lora_layers
from cascade_kit.rollout import rollouts
from cascade_kit.stage import cascade


def trainable(policy) -> set[str]:
    """Names of the adapters that have trainable parameters."""
    names = (n for n, p in policy.model.named_parameters() if p.requires_grad)
    return {name.split(".")[-2] for name in names}


def perturb(policy, adapter: str = POLICY) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.adapter_parameters(adapter).items():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture()
def policy():
    loaded = load_policy()
    perturb(loaded)
    return loaded


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 900, (4, 40), generator=torch.Generator().manual_seed(0))


def test_micro_is_the_same_function_in_4_and_in_32_bits(ids):
    plain = AutoModelForCausalLM.from_pretrained(MICRO)
    policy = load_policy()
    assert all(
        type(layer.get_base_layer()).__name__ == "Linear4bit"
        for _, layer in lora_layers(policy.model)
    )
    with torch.no_grad():
        assert torch.equal(policy.model(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_gradients_stay_exact_after_generating_in_eval_mode(ids):
    """bitsandbytes' CPU fast path would lose them here (see load_policy)."""
    policy = load_policy()
    perturb(policy)
    exact = load_policy(bits=16)
    with torch.no_grad():
        exact_layers = dict(lora_layers(exact.model.get_base_model()))
        for name, layer in lora_layers(policy.model.get_base_model()):
            weight = base_weight(layer.get_base_layer(), torch.float32)
            exact_layers[name].get_base_layer().weight.copy_(weight)
        for a, b in zip(
            policy.adapter_parameters(POLICY).values(),
            exact.adapter_parameters(POLICY).values(),
            strict=True,
        ):
            b.copy_(a)
    policy.model.eval()
    with torch.no_grad():
        policy.model.generate(input_ids=ids[:, :8], max_new_tokens=4, do_sample=False)
        policy.model(input_ids=ids)
    found = []
    for p in (policy, exact):
        logps = p.model(input_ids=ids).logits.log_softmax(-1)
        chosen = logps[:, :-1].gather(-1, ids[:, 1:, None])
        gradients = torch.autograd.grad(chosen.mean(), p.adapter_parameters(POLICY).values())
        found.append((chosen.detach(), gradients))
    (logps, gradients), (exact_logps, exact_gradients) = found
    torch.testing.assert_close(logps, exact_logps, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(gradients, exact_gradients, strict=True):
        assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def test_exactly_one_adapter_is_trainable_before_inside_and_after(policy):
    assert trainable(policy) == {"policy"}
    policy.add_adapter("reference", copy_of=POLICY)
    policy.add_adapter("reward_model")
    assert trainable(policy) == {"policy"}
    with policy.using("reference"):
        assert policy.model.active_adapter == "reference"
        assert trainable(policy) == {"policy"}
    with policy.using("reward_model", train=True):
        assert trainable(policy) == {"reward_model"}
    with pytest.raises(RuntimeError, match="on purpose"), policy.using("reference"):
        raise RuntimeError("on purpose")
    assert policy.model.active_adapter == POLICY
    assert trainable(policy) == {"policy"}
    policy.remove_adapter("reference")
    assert trainable(policy) == {"policy"}


def test_a_copied_reference_is_the_policy_and_stays_when_the_policy_moves(policy, ids):
    policy.add_adapter("reference", copy_of=POLICY)
    assert policy.adapter_hash("reference") == policy.adapter_hash(POLICY)
    with torch.no_grad():
        before = policy.model(input_ids=ids).logits
        for parameter in policy.adapter_parameters(POLICY).values():
            parameter.mul_(1.5)
        with policy.using("reference"):
            assert torch.equal(policy.model(input_ids=ids).logits, before)
        assert not torch.equal(policy.model(input_ids=ids).logits, before)


def test_an_unknown_adapter_is_named(policy):
    message = "no adapter named 'teacher'; this policy has policy"
    with pytest.raises(ValueError, match=message), policy.using("teacher"):
        pass


def test_the_decoding_weights_are_the_update_path(policy, ids):
    with torch.no_grad():
        through_layers = policy.model(input_ids=ids).logits.log_softmax(-1)
        decoded = merged_copy(policy, POLICY)(input_ids=ids).logits.log_softmax(-1)
        assert (through_layers - decoded).abs().max() < 1e-4
        perturbed = policy.adapter_hash()
        for parameter in policy.adapter_parameters(POLICY).values():
            parameter.mul_(0.5)
        again = policy.model(input_ids=ids).logits.log_softmax(-1)
        decoded = merged_copy(policy, POLICY)(input_ids=ids).logits.log_softmax(-1)
        assert (again - decoded).abs().max() < 1e-4
    assert policy.adapter_hash() != perturbed


def test_the_decoder_shares_what_is_not_linear(policy):
    embedding = policy.model.get_base_model().get_input_embeddings().weight
    copy = merged_copy(policy, POLICY)
    assert copy.get_input_embeddings().weight.data_ptr() == embedding.data_ptr()


def test_the_merged_copys_memory_is_stated(policy):
    own = sum(
        module.weight.numel() * 4
        for name, module in merged_copy(policy, POLICY).named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    assert policy.merged_bytes() == own
    assert policy.describe()["decoding"] == f"merged copy, {own / 2**20:.0f} MiB"


def test_a_copy_that_is_too_large_is_not_made(monkeypatch):
    monkeypatch.setattr("cascade_kit.budgets.MERGED_BYTES", 1 << 20)
    policy = load_policy()
    assert policy.decoding == "layers"
    rollouts(policy, MATH.problems("eval", 1), 1, max_new_tokens=2, key="k")
    assert policy.merged is None


def test_plain_peft_loads_a_saved_adapter(policy, ids, tmp_path):
    from peft import PeftModel

    policy.save_adapter(tmp_path / "adapter")
    plain = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(MICRO), tmp_path / "adapter"
    )
    with torch.no_grad():
        difference = plain(input_ids=ids).logits - policy.model(input_ids=ids).logits
    assert difference.abs().max() < 1e-4
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "micro"
    assert str(MICRO) not in (tmp_path / "adapter" / "adapter_config.json").read_text()


def test_a_reloaded_adapter_is_byte_equal(policy, tmp_path):
    policy.save_adapter(tmp_path / "adapter")
    other = load_policy(seed=5)
    other.load_adapter(tmp_path / "adapter")
    assert other.adapter_hash() == policy.adapter_hash()
    assert trainable(other) == {"policy"}


def test_an_adapter_of_another_rank_is_refused(policy, tmp_path):
    policy.save_adapter(tmp_path / "adapter")
    with pytest.raises(ValueError, match="does not fit this policy"):
        load_policy(rank=4).load_adapter(tmp_path / "adapter")
    with pytest.raises(ValueError, match="name an adapter folder"):
        policy.load_adapter(tmp_path)


@pytest.mark.parametrize("bits", [8, 16])
def test_other_precisions_sample_and_train(bits):
    policy = load_policy(bits=bits)
    (stage,) = cascade(["instruct"])
    stage = stage.changed(steps=2, prompts=4, answers=8, max_new_tokens=32)
    problems = INSTRUCT.problems("train", 8)
    for record, answers in train(policy, stage, problems):  # the copy is filled anew for step 2
        assert all(a.rollout.completion_ids for a in answers)
        assert record.logprob_gap < (1e-3 if bits == 16 else 0.05)
        assert record.grad_norm > 0
    assert trainable(policy) == {"policy"}


def test_bad_settings_name_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="choose 4, 8 or 16"):
        load_policy(bits=3)
    with pytest.raises(ValueError, match="config.json"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match="no model at"):
        model_source(tmp_path / "nothing")


def test_a_model_without_chat_template_is_refused(tmp_path):
    from transformers import AutoTokenizer

    AutoModelForCausalLM.from_pretrained(MICRO).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(MICRO)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no chat template"):
        load_policy(tmp_path)


def test_the_prompt_is_one_chat_turn(policy):
    text = policy.tokenizer.decode(policy.encode_prompt("What is 1 + 1?"))
    assert text == "<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\n"
