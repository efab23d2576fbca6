"""`plan`: what a run will need in memory and time, without loading a model."""

import argparse
import json

from cascade_kit.commands.run import STAGE_NAMES, whole

HELP = "memory and time that a run will need, without loading a model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="micro", metavar="NAME", help="micro, a short name (qwen2.5-7b), a Hugging Face folder, a .gguf file or a Hub id")  # fmt: skip  # noqa: E501
    add("--gpu", default="t4", metavar="GPU", help="t4 (default), l4, a100, h100, cpu, or its memory: 16GB, or bytes")  # fmt: skip  # noqa: E501
    add("--order", "--stage", default=STAGE_NAMES, metavar="A,B", help=f"stages (default: {STAGE_NAMES})")  # fmt: skip  # noqa: E501
    add("--tier", choices=("micro", "easy", "real"), help="whose settings (default: micro for micro, real for others)")  # fmt: skip  # noqa: E501
    add("--steps", type=whole, metavar="N", help="optimiser steps a stage (default: the stage's)")
    add("--prompts", type=whole, metavar="P", help="prompts a step (default: the stage's)")
    add("--answers", type=whole, metavar="G", help="answers a prompt, at least 2")
    add("--max-new-tokens", type=whole, metavar="N", help="longest answer in tokens")
    add("--prompt-tokens", type=whole, metavar="N", help="longest prompt (default: what the stage allows, or 512)")  # fmt: skip  # noqa: E501
    add("--eval-items", type=whole, metavar="N", help="held-out items a domain (default: 240 for micro, 100)")  # fmt: skip  # noqa: E501
    add("--bits", type=whole, default=4, help="4 (NF4, default), 8 (int8) or 16 (not quantised)")
    add("--rank", type=whole, default=16, help="LoRA rank (default: 16)")
    add("--json", action="store_true", help="everything in bytes and seconds, as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 if something does not fit."""
    from cascade_kit.planner import plan
    from cascade_kit.stage import cascade

    names = ("steps", "prompts", "answers", "max_new_tokens")
    given = {name: getattr(arguments, name) for name in names}
    for name in ("prompt_tokens", "eval_items"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    order = [name.strip() for name in arguments.order.split(",") if name.strip()]
    tier = arguments.tier or ("micro" if arguments.model == "micro" else "real")
    stages = cascade(order, tier=tier, **{k: v for k, v in given.items() if v is not None})
    found = plan(
        arguments.model,
        arguments.gpu,
        stages,
        bits=arguments.bits,
        rank=arguments.rank,
        prompt_tokens=arguments.prompt_tokens,
        eval_items=arguments.eval_items,
    )
    print(json.dumps(found.as_json(), indent=1) if arguments.json else found)
    return 0 if found.fits else 1
