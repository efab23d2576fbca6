"""Chat templates, thinking switches and dtypes, on small models made here (scenarios of issues)."""

import subprocess
import sys

import pytest
import torch

from cascade_kit import grpo
from cascade_kit.chat import read_chat
from cascade_kit.domains import Domain
from cascade_kit.loading import MICRO, default_dtype, load_policy
from cascade_kit.logprobs import answer_logps
from cascade_kit.loss_scale import GROWS_AFTER, START, LossScale
from cascade_kit.problem import Problem, Score
from cascade_kit.rollout import Rollout, rollouts
from cascade_kit.stage import Stage
from cascade_kit.verifiers.thinking import answer_part

QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
CASCADE_1 = (
    "{# ends user turns with /think or /no_think #}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CASCADE_2 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + NO_SYSTEM


def tokenizer(template: str | None = None):
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(MICRO)
    if template is not None:
        found.chat_template = template
    return found


def tiny(folder, template=None, *, change=lambda tokenizer, model: None):
    """A 2-layer Qwen2 with random weights and micro's tokenizer, as a model folder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    words = tokenizer(template)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    change(words, model)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def ask(chat, thinking=None, words="Hi"):
    return chat.text([{"role": "user", "content": words}], thinking)


# ---- thinking ------------------------------------------------------------------------------------


def test_an_argument_of_the_template_switches_thinking():
    chat = read_chat(tokenizer(QWEN3))
    assert (chat.switch, chat.argument) == ("argument", "enable_thinking")
    assert ask(chat, False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert ask(chat, True) == ask(chat) and "<think>" not in ask(chat)


def test_flags_end_the_users_turn_and_earlier_turns_are_without_thinking():
    chat = read_chat(tokenizer(CASCADE_1))
    assert chat.switch == "flags"
    turns = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]
    text = chat.text(turns, True)
    assert "One? /no_think<|im_end|>" in text and "Two? /think<|im_end|>" in text
    assert "Two? /no_think<|im_end|>" in chat.text(turns, False)
    assert "/no_think" not in chat.text(turns)


def test_an_empty_block_forbids_thinking_where_the_template_opens_one():
    chat = read_chat(tokenizer(CASCADE_2))
    assert chat.switch == "block"
    assert ask(chat, False).endswith("assistant\n<think></think>")
    assert ask(chat, True).endswith("assistant\n<think>\n")
    assert chat.opening(True).strip() == "<think>" and chat.opening(False) == ""


def test_half_of_a_batch_thinks_and_always_the_same_half():
    chat = read_chat(tokenizer(QWEN3))
    ids = [f"p{i}" for i in range(8)]
    modes = chat.choose("half", ids, "0/rlhf/1")
    assert sorted(modes) == [False] * 4 + [True] * 4
    assert modes == chat.choose("half", ids, "0/rlhf/1")
    assert modes != chat.choose("half", ids, "0/rlhf/2")
    assert chat.choose("off", ids, "x") == [False] * 8
    assert chat.choose(None, ids, "x") == [None] * 8


def test_without_a_switch_half_and_off_change_nothing_and_on_is_refused():
    chat = read_chat(tokenizer())
    assert chat.switch is None
    assert chat.choose("half", ["a", "b"], "x") == chat.choose("off", ["a", "b"], "x") == [None] * 2
    with pytest.raises(ValueError, match="needs a switch"):
        chat.check_mode("on")


def test_a_stage_trains_with_its_switch(tmp_path):
    policy = load_policy(tiny(tmp_path, QWEN3), bits=16)
    length = Domain("math", lambda rng, d: None, lambda p, text: Score(float(len(text) % 7)))
    problems = [Problem(f"p{i}", "math", f"Say {i}.") for i in range(4)]
    stage = Stage(
        name="math", domain=length, steps=1, prompts=4, answers=2, max_new_tokens=4,
        thinking="half",
    )  # fmt: skip
    ((_, answers),) = grpo.train(policy, stage, problems)
    prompts = {policy.tokenizer.decode(a.rollout.prompt_ids) for a in answers}
    assert sum("</think>" in prompt for prompt in prompts) == 2


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("4", "4"),
        ("<think>2 + 2</think>4", "4"),
        ("2 + 2</think>\n\n4", "4"),
        ("<think>a</think><think>b</think>5", "5"),
        ("<think>2 + 2 is", ""),
    ],
)
def test_rewards_look_after_the_thought(completion, answer):
    assert answer_part(completion).strip() == answer


def test_a_thought_that_was_asked_for_and_never_ends_is_no_answer():
    assert answer_part("so \\boxed{4}", thinking=True) == ""
    assert answer_part("so \\boxed{4}", thinking=False) == "so \\boxed{4}"


# ---- templates -----------------------------------------------------------------------------------


def test_a_template_without_system_role_works_and_is_known():
    chat = read_chat(tokenizer(NO_SYSTEM))
    assert not chat.system_role and read_chat(tokenizer()).system_role
    assert ask(chat) == ask(read_chat(tokenizer()))


def test_exactly_one_bos(tmp_path):
    """The template writes it, and the tokenizer would add another one."""

    def with_bos(words, model):
        words.bos_token = "<|im_start|>"
        words.chat_template = WITH_BOS.replace("<|im_start|>{{ m.role", "{{ m.role")

    policy = load_policy(tiny(tmp_path, change=with_bos), bits=16)
    ids = policy.encode_prompt("Hi")
    bos = policy.tokenizer.bos_token_id
    assert ids[0] == bos and ids[1] != bos


def test_a_base_model_is_given_a_choice(tmp_path):
    def forget(words, model):
        words.chat_template = None

    folder = tiny(tmp_path, change=forget)
    with pytest.raises(ValueError, match="--chat-template plain, chatml or FILE"):
        load_policy(folder, bits=16)
    plain = load_policy(folder, bits=16, chat_template="plain")
    text = plain.tokenizer.decode(plain.encode_prompt("Now?", [("One?", "1")]))
    assert text.endswith("Now?\nAssistant:")
    assert f"Assistant: 1{plain.tokenizer.eos_token}" in text
    chatml = load_policy(folder, bits=16, chat_template="chatml")
    assert ask(chatml.chat) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[-1].content }} =>", encoding="utf-8")
    assert ask(load_policy(folder, bits=16, chat_template=str(own)).chat) == "Hi =>"
    with pytest.raises(ValueError, match="cannot be read"):
        load_policy(folder, bits=16, chat_template=str(tmp_path / "missing.jinja"))


# ---- scenarios -----------------------------------------------------------------------------------


def test_s07_pad_that_is_eos_leaves_the_end_token_in_the_loss(tmp_path):
    def same(words, model):
        words.pad_token = words.eos_token

    policy = load_policy(tiny(tmp_path, change=same), bits=16)
    assert policy.tokenizer.pad_token_id == policy.tokenizer.eos_token_id
    prompt, eos = tuple(policy.encode_prompt("Hi")), policy.tokenizer.eos_token_id

    def rollout(ids):
        return Rollout(Problem("p", "math", "Hi"), 0, prompt, ids, (0.0,) * len(ids), 0.0, True, "")

    short, long = rollout((5, eos)), rollout((6, 7, 8, 9, eos))
    logps = answer_logps(policy, [[short, long]], 1.0)
    assert len(logps) == 7  # the true lengths, both end tokens counted, no padding
    alone = torch.cat([answer_logps(policy, [[r]], 1.0) for r in (short, long)])
    assert torch.allclose(logps, alone, atol=1e-5)
    logps.sum().backward()
    assert any(p.grad.abs().sum() > 0 for p in policy.adapter_parameters("policy").values())


def test_s08_any_of_several_end_tokens_ends_an_answer(tmp_path):
    def two(words, model):
        model.generation_config.eos_token_id = [words.eos_token_id, 40, 41]

    policy = load_policy(tiny(tmp_path, change=two), bits=16)
    assert policy.stop_ids >= {policy.tokenizer.eos_token_id, 40, 41}
    problems = [Problem(f"p{i}", "math", f"Say {i}.") for i in range(16)]
    groups = rollouts(policy, problems, 4, max_new_tokens=120, key="x")
    answers = [answer for group in groups for answer in group]
    ended = [a for a in answers if a.stopped]
    assert {a.completion_ids[-1] for a in ended} & {40, 41}
    for a in answers:  # nothing after the end, and none of them inside
        assert not set(a.completion_ids[:-1]) & policy.stop_ids


@pytest.mark.parametrize(
    ("capability", "wanted"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)]
)
def test_s17_the_device_decides_the_dtype(monkeypatch, capability, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert default_dtype("cuda") == wanted
    assert default_dtype("cpu") == torch.float32


def test_s17_the_dtype_is_shown_and_can_be_chosen(tmp_path):
    folder = tiny(tmp_path)
    assert load_policy(folder, bits=16).describe()["dtype"] == "float32"
    policy = load_policy(folder, bits=16, dtype="bfloat16")
    assert policy.describe()["dtype"] == "bfloat16"
    lora = policy.adapter_parameters("policy").values()
    assert {p.dtype for p in lora} == {torch.float32}
    with pytest.raises(ValueError, match="--dtype int4 is not possible"):
        load_policy(folder, dtype="int4")


MISSING = """
import sys
sys.modules["bitsandbytes"] = None  # as if it were not installed
import cascade_kit
from cascade_kit.loading import load_policy
try:
    load_policy("micro")
except ValueError as error:
    print(error)
policy = load_policy("micro", bits=16)
print(policy.describe()["dtype"], policy.bits)
"""


def test_s20_without_bitsandbytes_there_is_one_message_and_16_bits_work():
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    message, loaded = done.stdout.strip().splitlines()
    assert "needs bitsandbytes" in message and "pip install bitsandbytes" in message
    assert "--bits 16" in message
    assert loaded == "float32 16"


# ---- float16 -------------------------------------------------------------------------------------


def test_small_gradients_survive_float16_by_the_scale():
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=1.0)

    def loss():  # its gradient, 1e-8, is 0 in float16
        return (parameter.half() * torch.full((4,), 1e-4).half()).mean() * 4e-4

    loss().backward()
    assert parameter.grad.abs().max() == 0
    parameter.grad = None
    scale = LossScale(torch.float16)
    scale.backward(loss())
    norm = scale.step(optimizer, [parameter], 1.0)
    assert norm == pytest.approx(2e-8, rel=0.05)  # 1e-8 in each of four
    assert scale.factor == START and scale.good_steps == 1


def test_an_overflow_skips_the_step_and_halves_the_scale():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scale = LossScale(torch.float16)
    scale.backward((parameter.half() * 1000).sum().float() * 100)
    norm = scale.step(optimizer, [parameter], 1.0)
    assert norm != norm and parameter.item() == 1.0
    assert scale.factor == START / 2
    optimizer.zero_grad()
    scale.good_steps = GROWS_AFTER - 1
    scale.backward(parameter.sum())
    scale.step(optimizer, [parameter], 1.0)
    assert scale.factor == START


def test_other_dtypes_need_no_scale():
    assert LossScale(torch.float32).factor is None and LossScale(torch.bfloat16).factor is None
