"""The model card of an export: Markdown with the front matter that model hubs read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_kit import matrix_words
from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.run_logs import matrix_of, read_stages

STAGE_COLUMNS = (
    "steps", "prompts", "answers", "max_new_tokens", "learning_rate", "temperature", "kl_coef",
    "loss", "reward",
)  # fmt: skip
LIMITS = (
    "The scores are those of one run with one seed. An interval tells how much other held-out "
    "items would move a score, and nothing about another training.",
    "Answers were sampled at temperature 1 without top-p; other sampling gives other scores.",
    "The licence of the base model holds for what is made from it; the cards of base model and "
    "data say what else they are not fit for.",
)


def card(
    folder: Path,
    run: Mapping[str, Any],
    stage: str,
    *,
    base: str,
    merged: str | None,
    notes: Sequence[str] = (),
) -> str:
    """The text of README.md for the adapter of `stage`.

    `merged` is the dtype of the merged model, None without one; `notes` stand on top. The matrix
    ends with the row of `stage`, so that its metrics are those of this very model.
    """
    rows = read_stages(folder)
    place = [row.name for row in rows].index(stage)
    done = {row.name: len(row.steps) for row in rows[1 : place + 1]}
    sections = (
        front_matter(base, merged),
        f"# {base}, trained by Cascade RL up to `{stage}`",
        *notes,
        f"{base} was trained by reinforcement learning with LoRA on a base in "
        f"{run['policy']['bits']} bits, in {len(done)} stage(s): {' → '.join(done)}. "
        f"This is the policy after `{stage}`.",
        f"## How to load it\n\n{loading_section(run['policy'], base, merged)}",
        f"## Stages\n\n{stages_table(run['stages'], done)}",
        f"## Forgetting matrix\n\n{matrix_section(matrix_of(rows[: place + 1]), stage, run)}",
        f"## Data\n\n{data_section(run)}",
        f"## Versions\n\n{table(('package', 'version'), list(run['versions'].items()))}",
        f"## Limits\n\n{listed(LIMITS)}",
    )
    return "\n\n".join(sections) + "\n"


def front_matter(base: str, merged: str | None) -> str:
    """YAML; the base model only if its name can be a Hub id."""
    lines = ["---", "library_name: " + ("transformers" if merged else "peft")]
    lines += [f"base_model: {base}"] * (base.count("/") == 1 and not base.startswith("."))
    return "\n".join([*lines, "pipeline_tag: text-generation", "tags:", "- cascade-rl", "- lora",
                      "---"])  # fmt: skip


def loading_section(policy: Mapping[str, Any], base: str, merged: str | None) -> str:
    """Code that runs in the folder of the card, and what to know about it."""
    imports, where = "", f'"{base}"'
    if base == "micro":
        imports, where = "from cascade_kit.loading import MICRO\n", "MICRO"
    elif "/" not in base:
        where = f'"{base}"  # a local model; write its path'
    dtype, config = policy["dtype"], ""
    if policy["bits"] < 16:
        imports += "from transformers import BitsAndBytesConfig\n"
        config = f"quantization_config=BitsAndBytesConfig({quantised(policy)})"
    parts = [
        "The adapter belongs on the base as it was quantised in training:",
        f"```python\n{imports}from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"base = {where}\ntokenizer = AutoTokenizer.from_pretrained(base)\n"
        f'model = AutoModelForCausalLM.from_pretrained(\n    base, dtype="{dtype}", '
        f'{config}\n)\nmodel = PeftModel.from_pretrained(model, "adapter")\n```',
    ]
    if merged:
        parts += [
            f"The merged model has the adapter in its weights ({merged}). It was merged into the "
            "dequantised base: merged into the original weights it would be another model than "
            "the one that was trained and tested.",
            "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("merged")\n'
            'model = AutoModelForCausalLM.from_pretrained("merged")\n```',
        ]
    return "\n\n".join(parts)


def quantised(policy: Mapping[str, Any]) -> str:
    """The arguments of BitsAndBytesConfig for the base of a run; see loading.quantisation."""
    if policy["bits"] == 8:
        return "load_in_8bit=True"
    double = policy["device"].startswith("cuda")
    return (
        f'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant={double}, '
        f'bnb_4bit_compute_dtype="{policy["dtype"]}"'
    )


def stages_table(stages: Sequence[Mapping[str, Any]], done: Mapping[str, int]) -> str:
    """A row a stage: the steps that were done, and the settings."""
    known = {settings["name"]: settings for settings in stages}
    rows = []
    for name, steps in done.items():
        values = {**known.get(name, {}), "steps": steps}
        rows.append([name, *(values.get(column, "") for column in STAGE_COLUMNS)])
    return table(("stage", *STAGE_COLUMNS), rows)


def matrix_section(matrix: ForgettingMatrix | None, stage: str, run: Mapping[str, Any]) -> str:
    """Scores and changes with their intervals, and the metrics."""
    if matrix is None:
        return "Nothing has been evaluated yet."
    labels = run.get("labels") or {}
    names = [labels.get(domain, domain) for domain in matrix.domains]
    scores, changes = [], []
    for row, after in enumerate(matrix.stages):
        cells = zip(matrix.scores[row], matrix.interval[row], strict=True)
        scores.append([after, *(f"{s:.2f} ({matrix_words.range_text(i)})" for s, i in cells)])
        if matrix.change[row]:
            texts = [
                f"{matrix_words.signed(c.mean)} ({matrix_words.range_text((c.low, c.high), True)})"
                for c in matrix.change[row]
            ]
            changes.append([after, *texts])
    parts = [
        "Held-out scores after every stage, in brackets the 95 % interval.",
        table(("after", *names), scores),
    ]
    if changes:
        metrics = [
            (name, matrix_words.metric_text(value), matrix_words.METRIC_MEANING[name])
            for name, value in matrix.metrics.items()
        ]
        parts += [
            "Change against the row above on the same items, with its paired 95 % interval.",
            table(("after", *names), changes),
            table(("metric", "value", "meaning"), metrics),
        ]
    parts.append(matrix.summary())
    if labels:
        parts.append("A column labelled proxy is judged by a reward model, not by a known truth.")
    if matrix.stages[-1] != stage:
        parts.append(f"The row of `{stage}` is missing: not every domain was tested after it.")
    return "\n\n".join(parts)


def data_section(run: Mapping[str, Any]) -> str:
    """Where the problems came from, and how many were held out."""
    items = ", ".join(f"{name} {count}" for name, count in run["eval_items"].items())
    facts = [*run["data"], f"held-out items: {items}", f"seed {run['seed']}, started "
             f"{run['started']}"]  # fmt: skip
    return listed(facts)


def listed(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
