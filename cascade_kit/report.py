"""report.html: a whole run on one self-contained page.

Reads a run folder, finished or not, and needs no model. Pictures are embedded, every picture has a
table twin, and every text that comes from a model or a data file is escaped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cascade_kit import matrix_words
from cascade_kit.forgetting import Change, ForgettingMatrix
from cascade_kit.report_html import READING, STYLE, figure, folded, listed, quoted, table
from cascade_kit.run_logs import Row, StageFolder, item_scores, read_matrix, read_stages

TABLE_ROWS = 40  # longer step tables show every k-th step
STEP_COLUMNS = (
    "step", "reward_mean", "success_mean", "all_right", "all_wrong", "length_mean", "truncated",
    "grad_norm", "entropy", "kl",
)  # fmt: skip


def write_report(run_folder: Path | str, out: Path | str | None = None) -> Path:
    """Write `report.html` into the run folder (or to `out`) and return its path.

    Raises ValueError naming the file where the folder holds no run or a broken log.
    """
    folder = Path(run_folder)
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder} holds no run.json: give the folder that `run --out` wrote")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    stages = read_stages(folder)
    matrix = read_matrix(folder, stages)
    target = Path(out) if out else folder / "report.html"
    # A model may write half a surrogate pair, which UTF-8 cannot hold: it becomes "?".
    target.write_text(page(run, stages, matrix), encoding="utf-8", errors="replace")
    return target


def page(run: Row, stages: Sequence[StageFolder], matrix: ForgettingMatrix | None) -> str:
    """Return the whole HTML page."""
    sections = [
        ("run", "What this run is", run_section(run)),
        ("matrix", "The forgetting matrix", matrix_section(matrix, run.get("labels") or {})),
        ("training", "Training, stage by stage", training_section(stages)),
        ("proxy", "Proxy and true preference", proxy_section(stages)),
        ("answers", "Answers before and after", answers_section(stages, matrix)),
        ("metrics", "How to read the numbers", READING),
    ]
    sections = [section for section in sections if section[2]]
    title = f"Cascade run: {run.get('model', 'model not named')}"
    links = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{name}</h2>{content}</section>' for key, name, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{lead(stages, matrix)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{body}</main></body></html>\n'
    )


def lead(stages: Sequence[StageFolder], matrix: ForgettingMatrix | None) -> str:
    """Return the opening paragraph: how far the run came, and its finding."""
    trained = [stage.name for stage in stages[1:]]
    text = (
        f"One model was trained by reinforcement learning on {len(trained)} domain(s) in turn, "
        f"{' → '.join(trained)}, and re-tested on every domain after each. "
        if trained
        else "No stage of this run has been trained yet. "
    )
    if matrix is None:
        text += "No domain has been evaluated yet."
    else:
        text += matrix.summary()
        if len(matrix.stages) < len(stages):
            text += " The run is not finished: its last stages have no row yet."
    return f'<p class="lead">{escape(text)}</p>'


def run_section(run: Row) -> str:
    """Return run.json: its plain entries as a table, its nested ones (versions, ...) folded."""
    simple = {key: value for key, value in run.items() if not isinstance(value, dict | list)}
    nested = {key: value for key, value in run.items() if key not in simple}
    parts = [table("Run", ("setting", "value"), list(flat_entries(simple)))] if simple else []
    if nested:
        rows = table("run.json", ("setting", "value"), list(flat_entries(nested)))
        parts.append(folded("All settings and versions", rows))
    return "".join(parts)


def flat_entries(entry: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of nested mappings, and of lists of mappings."""
    if isinstance(entry, Mapping) and entry:
        for key, value in entry.items():
            yield from flat_entries(value, f"{name}.{key}" if name else str(key))
    elif isinstance(entry, list) and any(isinstance(value, Mapping) for value in entry):
        for index, value in enumerate(entry):
            label = value.get("name", index) if isinstance(value, Mapping) else index
            yield from flat_entries(value, f"{name}.{label}")
    elif name:
        yield name, json.dumps(entry) if isinstance(entry, list | dict) else entry


def matrix_section(matrix: ForgettingMatrix | None, labels: Mapping[str, str]) -> str:
    """Return heat maps, the reading in words, trajectories and their table."""
    if matrix is None:
        return "<p>No row of the matrix is complete yet.</p>"
    from cascade_kit import plots

    notes = [f"The column of {domain} is labelled: {label}." for domain, label in labels.items()]
    parts = [
        figure(
            plots.figure_png(plots.plot_matrix(matrix, labels, stacked=True)),
            f"Heat map of the scores. {matrix.summary()} All numbers are in the tables below.",
            "Scores after every stage, and below them what each stage changed.",
            f'<div class="scroll">{matrix_words.html_tables(matrix, labels)}</div>',
        ),
        f"<h3>In words</h3>{listed(reading(matrix) + notes)}",
    ]
    if len(matrix.stages) > 1:
        rows = zip(matrix.domains, zip(*matrix.scores, strict=True), strict=True)
        twin = table(
            "Score of each domain after each stage",
            ("domain", *matrix.stages),
            [(domain, *scores) for domain, scores in rows],
        )
        parts.append(
            figure(
                plots.figure_png(plots.plot_trajectories(matrix, labels)),
                "Line chart of each domain's score over the stages, as in the table below.",
                "Each domain's score over the stages; the large marker is its own stage.",
                folded("The same as a table", twin),
            )
        )
    return "".join(parts)


def reading(matrix: ForgettingMatrix) -> list[str]:
    """Return plain sentences: what each stage gained, what clearly fell, and what may be chance."""
    if len(matrix.stages) == 1:
        return ["Only the start has been tested; nothing has changed yet."]
    gains, falls, small = [], [], 0
    for row, changes in enumerate(matrix.change):
        for column, cell in enumerate(changes or ()):
            stage, domain = matrix.stages[row], matrix.domains[column]
            place = matrix_words.standing(matrix, row, column)
            if place == "own":
                before, after = matrix.scores[row - 1][column], matrix.scores[row][column]
                verb = "raised" if cell.mean > 0 else "lowered"
                verb = verb if matrix_words.excludes_zero(cell) else "did not clearly move"
                gains.append(
                    f"{stage} {verb} its own score from {before:.2f} to {after:.2f} "
                    f"({change_text(cell)})."
                )
            elif cell.mean < 0 and matrix_words.excludes_zero(cell):
                when = ", before it was trained" if place == "before" else ""
                falls.append(f"{domain} fell after {stage}{when} ({change_text(cell)}).")
            elif cell.mean < 0:
                small += 1
    if not falls:
        falls = ["No stage clearly lowered another domain: no such interval lies below 0."]
    if small:
        falls.append(f"{small} more cell(s) fell by an amount that may be chance.")
    return gains + falls


def change_text(cell: Change) -> str:
    """Return "+0.31, 95 % interval +0.22 to +0.40, items: 70 rose, 8 fell"."""
    text = matrix_words.signed(cell.mean)
    bounds = matrix_words.range_text((cell.low, cell.high), signs=True)
    if bounds:
        text += f", 95 % interval {bounds}"
    if cell.lost is not None:
        text += f", items: {cell.gained} rose, {cell.lost} fell"
    return text


def training_section(stages: Sequence[StageFolder]) -> str:
    """Return the curves of every trained stage, each with its table of steps."""
    from cascade_kit import plots

    parts = []
    for stage in stages:
        if not stage.steps:
            continue
        finding = plots.training_finding(stage.steps, stage.name)
        parts.append(
            f"<h3>{escape(stage.name)}</h3><p>{escape(cost_text(stage.steps))}</p>"
            + figure(
                plots.figure_png(plots.plot_training(stage.steps, stage.name)),
                f"Training curves. {finding}.",
                "Points are single steps, lines the mean of the last five.",
                folded("The same as a table", steps_table(stage.steps, STEP_COLUMNS)),
            )
        )
    return "".join(parts)


def cost_text(steps: Sequence[Row]) -> str:
    """Return steps, seconds by phase and peak memory of a stage in one sentence."""
    seconds: dict[str, float] = {}
    for step in steps:
        for phase, value in (step.get("seconds") or {}).items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    phases = ", ".join(f"{phase} {value:.0f} s" for phase, value in seconds.items())
    peak = max((step.get("peak_memory_mb") or 0.0 for step in steps), default=0.0)
    text = f"{len(steps)} step(s)"
    text += f" in {sum(seconds.values()):.0f} s ({phases})" if seconds else ""
    return text + (f", peak memory {peak:.0f} MB." if peak else ".")


def steps_table(steps: Sequence[Row], columns: Sequence[str]) -> str:
    """Return at most about TABLE_ROWS evenly spaced steps, the last one always among them."""
    every = max(1, -(-len(steps) // TABLE_ROWS))
    shown = [step for index, step in enumerate(reversed(steps)) if index % every == 0][::-1]
    kept = [name for name in columns if any(step.get(name) is not None for step in steps)]
    caption = "Every step" if every == 1 else f"Every {every}th step, counted from the last"
    return table(caption, kept, [[step.get(name) for name in kept] for step in shown])


def proxy_section(stages: Sequence[StageFolder]) -> str:
    """Return reward-model score against true preference of the rlhf stage, if there is one."""
    from cascade_kit import plots

    steps = next((stage.steps for stage in stages if stage.name == "rlhf"), ())
    if not steps:
        return ""
    if not any("true_preference" in (step.get("parts") or {}) for step in steps):
        return (
            "<p>The true preference is not known for this data, so nothing here can tell whether "
            "a rising reward-model score is a better answer or a gamed reward model.</p>"
        )
    proxy, true = plots.proxy_and_true(steps)
    numbers = plots.column_of(steps, "step")
    rows = [
        {"step": int(step), "reward model (proxy)": float(a), "true preference": float(b)}
        for step, a, b in zip(numbers, proxy, true, strict=True)
    ]
    finding = plots.proxy_finding(numbers, proxy, true)
    return figure(
        plots.figure_png(plots.plot_proxy_vs_true(steps)),
        f"Two line charts over the steps: {finding}.",
        f"Over the rlhf stage: {finding}. A proxy that rises while the true preference falls is "
        "being gamed.",
        folded("The same as a table", steps_table(rows, tuple(rows[0]))),
    )


def answers_section(
    stages: Sequence[StageFolder], matrix: ForgettingMatrix | None, each: int = 3
) -> str:
    """Return answers to the same held-out items around each stage, and around the largest fall."""
    places = [(index, stage.name) for index, stage in enumerate(stages) if index]
    fall = matrix_words.largest_fall(matrix) if matrix else None
    if matrix and fall and (fall[0], matrix.domains[fall[1]]) not in places:
        places.append((fall[0], matrix.domains[fall[1]]))
    parts = []
    for index, domain in places:
        before = stages[index - 1].evals.get(domain, {})
        after = stages[index].evals.get(domain, {})
        pairs = telling_pairs(before, after, each)
        if pairs:
            parts.append(
                f"<h3>{escape(domain)}, before and after {escape(stages[index].name)}</h3>"
            )
            parts += [answer_pair(*pair) for pair in pairs]
    return "".join(parts)


def telling_pairs(
    before: Mapping[str, Row], after: Mapping[str, Row], each: int
) -> list[tuple[Row, Row]]:
    """Return up to `each` items answered both times: one that rose, one that fell, one equal."""
    kinds: dict[int, list[tuple[Row, Row]]] = {1: [], -1: [], 0: []}
    for item in before:
        if item in after:
            change = after[item]["score"] - before[item]["score"]
            kinds[(change > 0) - (change < 0)].append((before[item], after[item]))
    firsts = [pairs[0] for pairs in kinds.values() if pairs]
    others = [pair for pairs in kinds.values() for pair in pairs[1:]]
    return (firsts + others)[:each]


def answer_pair(before: Row, after: Row) -> str:
    """Return one item's two answers side by side: the sample whose score changed most."""
    earlier, later = item_scores(before), item_scores(after)
    changes = [abs(b - a) for a, b in zip(earlier, later, strict=False)]
    sample = changes.index(max(changes))
    prompt = quoted("prompt", before["prompt"]) if before.get("prompt") else ""
    answers = "".join(
        quoted(f"{when}, score {scores[sample]:.2f}", row["completions"][sample])
        for when, row, scores in (("before", before, earlier), ("after", after, later))
    )
    return f'<h4>Item {escape(str(before["id"]))}</h4>{prompt}<div class="pair">{answers}</div>'
