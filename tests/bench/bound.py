"""How fast could a step be: bare forwards of transformers over an engine's own row schedule.

    python tests/bench/bound.py FILE [--repeats 3]        (or the same JSON on stdin)

Input: {"model": FOLDER, "device": "cpu", "repeats": 3, "schedules": {NAME: [GROUP, ...]}}, a group
being {"prompt": tokens, "answers": [tokens, ...], "flat": bool}. Output, in seconds and as medians
over the repeats: {NAME: {"decode", "update"}}.

  decode  every prompt prefilled once, then one bare forward a token over the rows still alive, with
          the dequantised 4-bit weights as a plain model and transformers' own growing cache
  update  forward and backward through NF4 + LoRA over exactly the needed tokens: prompt once per
          group, groups without spread left out, the loss at the answers' tokens only

No sampling, scoring, padding, masks, clipping, optimiser or copying of caches is timed, so an
engine that spends its time within the bound wastes nothing. This file shares no code with either
engine, and must not.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, DynamicCache
from transformers.utils import logging as transformers_logging

ACTIVATION_BYTES = 4 << 30  # of one forward with backward
HEAD_CHUNK = 1024  # positions whose logits exist at a time


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Seconds of bare forwards and backwards over the schedules of a JSON file.",
        epilog="Input and output are described at the top of this file.",
    )
    parser.add_argument("file", type=Path, nargs="?", help="the schedules (default: stdin)")
    parser.add_argument("--repeats", type=int, default=3, help="median over N (default: 3)")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    task = json.loads(args.file.read_text(encoding="utf-8") if args.file else sys.stdin.read())
    repeats = task.get("repeats", args.repeats)
    print(json.dumps(bounds(task["model"], task["device"], task["schedules"], repeats)))


def bounds(folder: str, device: str, schedules: dict, repeats: int) -> dict:
    """Median seconds of both parts for every schedule; the schedules take turns."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    bare, adapted = load(folder, device, plain=True), with_adapter(load(folder, device))
    times: dict[str, dict[str, list[float]]] = {
        name: {"decode": [], "update": []} for name in schedules
    }
    for repeat in range(repeats + 1):  # the first one warms up
        for name, groups in schedules.items():
            seconds = {"decode": decode(bare, groups), "update": update(adapted, groups)}
            for part in times[name] if repeat else ():
                times[name][part].append(seconds[part])
    return {
        name: {part: statistics.median(values) for part, values in parts.items()}
        for name, parts in times.items()
    }


def load(folder: str, device: str, *, plain: bool = False) -> torch.nn.Module:
    """The model in NF4; with `plain` those very weights dequantised again."""
    on_gpu = device.startswith("cuda")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        device_map={"": device},
        attn_implementation="sdpa",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=on_gpu,
            bnb_4bit_compute_dtype=dtype,
        ),
    )
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # it gives no gradient through the layer
    return (model.dequantize() if plain else model).requires_grad_(False).eval()


def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
    """LoRA (rank 16) on all linear layers, the only trainable parameters."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config).train()


def now(device: torch.device) -> float:
    """Seconds, once the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def decode(model: torch.nn.Module, groups: list[dict]) -> float:
    """Seconds to prefill every prompt once and to forward every further token of every answer.

    The prompts count as equally long, which is the same number of tokens without padding.
    """
    lengths = torch.tensor([n for group in groups for n in group["answers"]])  # (B,)
    answers = len(groups[0]["answers"])
    prompt = sum(group["prompt"] for group in groups) // len(groups)
    cache = DynamicCache(config=model.config)
    seconds = forward_seconds(model, random_ids(model, len(groups), prompt), cache)
    cache.batch_repeat_interleave(answers)
    for token in range(1, int(lengths.max())):
        alive = lengths > token
        if not alive.all():
            cache.batch_select_indices(alive.nonzero()[:, 0].to(model.device))
            lengths = lengths[alive]
        seconds += forward_seconds(model, random_ids(model, len(lengths), 1), cache)
    return seconds


def forward_seconds(model: torch.nn.Module, ids: torch.Tensor, cache: DynamicCache) -> float:
    """Seconds of one forward of ids (B, T) behind the cache, with the logits of the last token."""
    started = now(model.device)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return now(model.device) - started


def random_ids(model: torch.nn.Module, rows: int, length: int) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (rows, length), device=model.device)


def update(model: torch.nn.Module, groups: list[dict]) -> float:
    """Seconds of forward and backward over the tokens that carry a gradient.

    They are laid out as one plain causal row a group, all equally long: as many tokens as the
    groups have, less the rest of that division, and no padding.
    """
    needed = [group for group in groups if not group["flat"]]
    if not needed:
        return 0.0
    answer_tokens = sum(sum(group["answers"]) for group in needed)
    tokens = answer_tokens + sum(group["prompt"] for group in needed)
    length = tokens // len(needed)
    rows = max(1, tokens_per_forward(model.config) // length)
    seconds = 0.0
    for first in range(0, len(needed), rows):
        ids = random_ids(model, min(rows, len(needed) - first), length)
        in_loss = int(ids.numel() * answer_tokens / tokens)
        started = now(model.device)
        forward_backward(model.get_base_model(), ids, in_loss)
        seconds += now(model.device) - started
    model.zero_grad(set_to_none=True)
    return seconds


def tokens_per_forward(config) -> int:
    """How many tokens' activations fit the budget, at about 12 hidden and 4 MLP widths a layer."""
    width = 12 * config.hidden_size + 4 * config.intermediate_size
    return max(1, ACTIVATION_BYTES // (4 * width * config.num_hidden_layers))


def forward_backward(model: torch.nn.Module, ids: torch.Tensor, in_loss: int) -> None:
    """Gradients of the log-probabilities at `in_loss` positions of ids (B, L).

    The head goes forward and backward a chunk at a time, so that no logits are kept or recomputed.
    """
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state  # (B, L, H)
    leaf = hidden.detach().flatten(0, 1)[:in_loss].requires_grad_()  # (N, H)
    head = model.get_output_embeddings()
    for states, targets in zip(
        leaf.split(HEAD_CHUNK), ids.flatten()[:in_loss].split(HEAD_CHUNK), strict=True
    ):
        logits = head(states).float()
        (logits.logsumexp(-1) - logits.gather(-1, targets[:, None])[:, 0]).sum().backward()
    hidden.flatten(0, 1)[:in_loss].backward(leaf.grad)


if __name__ == "__main__":
    main()
