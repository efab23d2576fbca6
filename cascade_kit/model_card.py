"""The model card of an exported run: what it is, what it can do by the matrix, how to load it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_kit.run_logs import read_matrix, read_stages

SHOWN = ("steps", "prompts", "answers", "max_new_tokens", "learning_rate", "temperature", "kl_coef")


def model_card(
    run: Path, settings: Mapping[str, Any], finished: Sequence[str], stage: str, merged: str | None
) -> str:
    """Markdown with the front matter of model hubs; `merged` is the dtype of the merged model."""
    policy, order = settings["policy"], settings["order"]
    missing = [name for name in order if name not in finished]
    trained = finished[: finished.index(stage) + 1]
    parts = [
        front_matter(settings["model"]),
        f"# {settings['model']} after {', '.join(trained)}\n",
        "A LoRA adapter trained by Cascade RL: one model, one domain after the other, by on-policy "
        f"GRPO on a base in {policy['bits']} bits. It is what stage `{stage}` left.\n",
    ]
    if missing:
        parts.append(
            f"**The run is not finished**: {', '.join(missing)} had not been trained when this was "
            "exported.\n"
        )
    parts += [
        "## Load it\n",
        how_to_load(settings["model"], policy, merged),
        "## How it was trained\n",
        stages_table(settings, trained),
        f"Seed {settings['seed']}; {'; '.join(settings['data'])}. "
        + ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
        + ".\n",
        "## What it can do, and what the cascade cost\n",
        matrix_words(run),
        "## Limits\n",
        "The scores are shares of held-out items of the run's own data, on one seed; they say "
        "nothing about other tasks. Rewards came from verifiers and, for preferences, from a small "
        "reward model, which a policy can learn to please without getting better.\n",
    ]
    return "\n".join(parts)


def front_matter(model: str) -> str:
    base = f"base_model: {model}\n" if "/" in model else ""
    return f"---\nlibrary_name: peft\n{base}tags:\n- cascade-rl\n- grpo\n- lora\n---\n"


def how_to_load(model: str, policy: Mapping[str, Any], merged: str | None) -> str:
    base = "path/to/the/embedded/model  # cascade_kit.loading.MICRO" if model == "micro" else model
    quantised = {
        4: 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")',
        8: "BitsAndBytesConfig(load_in_8bit=True)",
    }.get(policy["bits"])
    lines = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM"]
    if quantised:
        lines[1] += ", BitsAndBytesConfig"
    lines += [
        "",
        f'base = "{base}"' if "#" not in base else f'base = "{base.split("  #")[0]}"',
        f"model = AutoModelForCausalLM.from_pretrained(base, quantization_config={quantised})"
        if quantised
        else "model = AutoModelForCausalLM.from_pretrained(base)",
        'model = PeftModel.from_pretrained(model, "path/to/this/folder")',
    ]
    text = "```python\n" + "\n".join(lines) + "\n```\n"
    if quantised:
        text += (
            f"\nThe adapter belongs to the base in {policy['bits']} bits: on the original weights "
            "it is a slightly other model.\n"
        )
    if merged:
        text += (
            f"\n`merged/` holds base and adapter in one model in {merged}, which needs neither "
            'peft nor bitsandbytes: `AutoModelForCausalLM.from_pretrained(".../merged")`.\n'
        )
    return text


def stages_table(settings: Mapping[str, Any], trained: Sequence[str]) -> str:
    rows = [f"| stage | reward | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 2) + "|"]
    for stage in settings["stages"]:
        if stage["name"] in trained:
            values = " | ".join(f"{stage[key]}" for key in SHOWN)
            rows.append(f"| {stage['name']} | {stage['reward']} | {values} |")
    return "\n".join(rows) + "\n"


def matrix_words(run: Path) -> str:
    """The matrix as a table with intervals, the metrics, and the finding in a sentence."""
    matrix = read_matrix(run, read_stages(run))
    if matrix is None:
        return "Nothing was evaluated in this run.\n"
    rows = [f"| after | {' | '.join(matrix.domains)} |", "|---" * (len(matrix.domains) + 1) + "|"]
    for stage, scores, intervals in zip(matrix.stages, matrix.scores, matrix.interval, strict=True):
        cells = []
        for domain, score, interval in zip(matrix.domains, scores, intervals, strict=True):
            text = f"{score:.2f}"
            if interval is not None:
                text += f" ({interval[0]:.2f} to {interval[1]:.2f})"
            cells.append(f"**{text}**" if stage == domain else text)
        rows.append(f"| {stage} | {' | '.join(cells)} |")
    metrics = [
        f"{name} {value:+.3f}" for name, value in matrix.metrics.items() if isinstance(value, float)
    ]
    return (
        "\n".join(rows)
        + "\n\nShare of held-out items, with 95 % intervals; bold is what the row trained. "
        + f"{', '.join(metrics)}. {matrix.summary()}\n"
    )
