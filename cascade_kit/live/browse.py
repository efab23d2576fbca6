"""Rollout browser: the answers of a training prompt side by side, and before and after a stage.

It reads the run folder alone, so it works after a restart and for runs of the command line.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cascade_kit.forgetting import paired_change
from cascade_kit.live.answers import (
    ItemComparison,
    Rows,
    control,
    end_text,
    offer,
    page,
    run_folder,
    sentence,
    text_block,
)
from cascade_kit.records import FLAT
from cascade_kit.report import change_text
from cascade_kit.report_html import table
from cascade_kit.run_logs import Row, StageFolder, item_scores, read_lines, read_stages

TRAINING, HELD_OUT = "answers in training", "before and after, held-out items"
SPREADS = ("all", "mixed only", "flat")

Group = Sequence[Row]  # the lines of rollouts.jsonl with one step and one problem


def rollout_browser(source: Any, stage: str | None = None) -> Any:
    """Return a panel over the answers of a run: its folder, or an object with `.folder`.

    It opens at `stage`, else at the last one with answers. Raises ValueError for a folder that is
    no run or a stage that it does not have.
    """
    from ipywidgets import HTML

    folder = run_folder(source)
    stages = read_stages(folder)
    names = [entry.name for entry in stages[1:]]
    if stage is not None and stage not in names:
        known = ", ".join(names) or "none"
        raise ValueError(f"{folder} has no trained stage {stage!r}; it has: {known}")
    if not names:
        return HTML(page(sentence("This run has no trained stage yet; train one and run again.")))
    return _Browser(folder, stages, stage).box


def read_groups(folder: Path, stage: str) -> list[Group]:
    """Return the groups of one stage of a run in the order of training; none if it has no log."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for path in folder.glob("*-*"):
        if path.name.partition("-")[2] == stage:
            for row in read_lines(path / "rollouts.jsonl"):
                groups.setdefault((row["step"], row["problem_id"]), []).append(row)
    return list(groups.values())


def is_flat(group: Group) -> bool:
    """Tell whether all rewards of a group are equal, so that it has no gradient."""
    rewards = [row["reward"] for row in group]
    return max(rewards) - min(rewards) < FLAT


def is_cut(group: Group) -> bool:
    """Tell whether an answer of the group was cut at the length limit."""
    return any(row["stop"] != "stop" for row in group)


def chosen_groups(
    groups: Sequence[Group], step: int | None = None, spread: str = "all", cut: bool = False
) -> list[Group]:
    """Return the groups of a step (None: all) that are mixed or flat, or have a cut answer."""
    return [
        group
        for group in groups
        if (step is None or group[0]["step"] == step)
        and (spread == "all" or is_flat(group) == (spread == "flat"))
        and (not cut or is_cut(group))
    ]


def group_label(group: Group) -> str:
    """Return "step 3, math-1a2b3c4d: rewards 0 to 1" or "...: all rewards 1"."""
    rewards = [row["reward"] for row in group]
    low, high = f"{min(rewards):.3g}", f"{max(rewards):.3g}"
    words = f"all rewards {low}" if is_flat(group) else f"rewards {low} to {high}"
    return f"step {group[0]['step']}, {group[0]['problem_id']}: {words}"


def group_page(group: Group) -> str:
    """Return the prompt and its answers in columns, best reward first, with all their numbers."""
    ordered = sorted(group, key=lambda row: -row["reward"])
    parts = dict.fromkeys(name for row in group for name in row["parts"])
    rows = [
        ["answer", *(row["completion"] for row in ordered)],
        ["reward", *(row["reward"] for row in ordered)],
        ["advantage", *(f"{row['advantage']:+.2f}" for row in ordered)],
        ["score before shaping", *(row["value"] for row in ordered)],
        ["success", *(row["success"] for row in ordered)],
        *([f"part: {name}", *(row["parts"].get(name) for row in ordered)] for name in parts),
        ["verdict", *(row["why"] for row in ordered)],
        ["tokens", *(row["tokens"] for row in ordered)],
        ["end", *(end_text(row["stop"] == "stop") for row in ordered)],
    ]
    head = ("", *(f"sample {row['sample'] + 1}" for row in ordered))
    caption = f"{len(group)} answers to {group[0]['problem_id']}, best reward first"
    return (
        sentence(group_words(group))
        + text_block("prompt", group[0]["prompt"])
        + table(caption, head, rows)
    )


def group_words(group: Group) -> str:
    """Return what the step learnt from a group, in one sentence."""
    rewards = [row["reward"] for row in group]
    if is_flat(group):
        return f"All {len(group)} rewards are {rewards[0]:.3g}, so this group has no gradient."
    above = sum(row["advantage"] > 0 for row in group)
    below = sum(row["advantage"] < 0 for row in group)
    return (
        f"The mean reward is {fmean(rewards):.3g}: of {len(group)} answers {above} above it are "
        f"made more likely and {below} below it less likely."
    )


def groups_words(stage: str, groups: Sequence[Group], shown: Sequence[Group]) -> str:
    """Return the counts of a stage's groups in one sentence."""
    if not groups:
        return f"Stage {stage} has no answers on disk; train it and run this cell again."
    flat, cut = sum(map(is_flat, groups)), sum(map(is_cut, groups))
    steps = len({group[0]["step"] for group in groups})
    return (
        f"{stage}: {len(groups)} groups in {steps} steps, {len(groups) - flat} mixed and {flat} "
        f"flat, {cut} with a truncated answer; {len(shown)} match the filters."
    )


class _Browser:
    """The widgets of the panel and what they show at the moment."""

    def __init__(self, folder: Path, stages: Sequence[StageFolder], stage: str | None) -> None:
        from ipywidgets import HTML, Checkbox, Dropdown, VBox

        self._folder, self._stages = folder, stages
        self._groups: list[Group] = []
        self._shown: list[Group] = []
        names = [entry.name for entry in stages[1:]]
        logged = [entry.name for entry in stages[1:] if entry.steps]
        start = stage or (logged or names)[-1]
        self._stage = control(Dropdown, "Stage", options=names, value=start)
        self._view = control(Dropdown, "Show", options=(TRAINING, HELD_OUT))
        self._step = control(Dropdown, "Step")
        self._spread = control(Dropdown, "Group spread", options=SPREADS)
        self._cut = control(Checkbox, "Truncated only", value=False)
        self._group = control(Dropdown, "Group")
        self._counts, self._page = HTML(), HTML()
        self._domain = control(Dropdown, "Domain")
        self._change, self._items = HTML(), ItemComparison()
        filters = [self._step, self._spread, self._cut, self._group]
        self._training = VBox([*filters, self._counts, self._page])
        self._held_out = VBox([self._domain, self._change, self._items.box])
        self.box = VBox([self._stage, self._view, self._training, self._held_out])
        self._stage.observe(self._open_stage, "value")
        self._view.observe(self._switch, "value")
        for widget in (self._step, self._spread, self._cut):
            widget.observe(self._filter, "value")
        self._group.observe(self._draw, "value")
        self._domain.observe(self._compare, "value")
        self._switch()
        self._open_stage()

    def _switch(self, _: Any = None) -> None:
        training = self._view.value == TRAINING
        self._training.layout.display = "" if training else "none"
        self._held_out.layout.display = "none" if training else ""

    def _open_stage(self, _: Any = None) -> None:
        stage = self._stage.value
        self._groups = read_groups(self._folder, stage)
        steps = sorted({group[0]["step"] for group in self._groups})
        offer(self._step, [("all", None), *((str(step), step) for step in steps)])
        self._filter()
        domains = sorted(
            self._stages[self._place()].evals, key=lambda name: name != stage
        )  # its own first
        offer(self._domain, domains)
        self._compare()

    def _filter(self, _: Any = None) -> None:
        self._shown = chosen_groups(
            self._groups, self._step.value, self._spread.value, self._cut.value
        )
        self._counts.value = page(
            sentence(groups_words(self._stage.value, self._groups, self._shown))
        )
        offer(self._group, [(group_label(group), i) for i, group in enumerate(self._shown)])
        self._draw()

    def _draw(self, _: Any = None) -> None:
        index = self._group.value
        self._page.value = page(group_page(self._shown[index])) if index is not None else ""

    def _place(self) -> int:
        return [entry.name for entry in self._stages].index(self._stage.value)

    def _compare(self, _: Any = None) -> None:
        domain, after = self._domain.value, self._stages[self._place()]
        earlier = [entry for entry in self._stages[: self._place()] if domain in entry.evals]
        self._items.box.layout.display = "" if earlier else "none"
        if not earlier:
            late = after.name if domain is None else "The stage before"
            words = f"{late} has not been evaluated yet; evaluate it and run this cell again."
            self._change.value = page(sentence(words))
            return
        before = earlier[-1]
        answers = {
            f"after {before.name}": before.evals[domain],
            f"after {after.name}": after.evals[domain],
        }
        self._items.show(answers)
        self._change.value = page(sentence(change_words(domain, *answers.values())))


def change_words(domain: str, before: Rows, after: Rows) -> str:
    """Return what a stage did to one domain's held-out items, in one sentence."""
    scores = [{item: item_scores(row) for item, row in rows.items()} for rows in (before, after)]
    return f"{domain}: {change_text(paired_change(*scores))}."
