"""A plan in words and as HTML: a line a stage, the parts of the stage that needs most, remedies."""

from html import escape
from typing import Any

GIB = 1 << 30
PHASES = ("evaluation", "rollout", "reward model", "update")


def plan_words(plan: Any) -> str:
    """For a terminal."""
    stages, parts = _stage_rows(plan), _part_rows(plan)
    blocks = [_head(plan), _aligned(stages), _parts_title(plan), _aligned(parts), *_tail(plan)]
    return "\n".join(blocks)


def plan_html(plan: Any) -> str:
    """For a notebook."""
    tail = "".join(f"<p>{escape(line)}</p>" for line in _tail(plan))
    return (
        f"<div><p>{escape(_head(plan))}</p>{_table(_stage_rows(plan), 'Stages')}"
        f"{_table(_part_rows(plan), _parts_title(plan))}{tail}</div>"
    )


def _head(plan: Any) -> str:
    machine = plan.machine
    weights = "not quantised" if machine.bits == 16 else f"{machine.bits} bits"
    memory = plan.device.memory
    has = "" if memory is None else f" with {_size(memory)}"
    how = "a merged copy" if plan.merged else "the adapted layers"
    return (
        f"{plan.model}: {plan.shape.parameters / 1e6:,.0f} million parameters, {weights}, "
        f"{str(machine.dtype).removeprefix('torch.')}, LoRA rank {machine.rank}, decoding through "
        f"{how}, on {plan.device.name}{has}"
    )


def _stage_rows(plan: Any) -> list[list[str]]:
    rows = [["stage", "batch", *PHASES, "time", "verdict"]]
    for found in plan.stages:
        stage = found.stage
        rows.append(
            [
                stage.name,
                f"{stage.prompts} x {stage.answers} x ({found.prompt_tokens} + "
                f"{stage.max_new_tokens})",
                *(_phase_size(found, name) for name in PHASES),
                _duration(found.stage_seconds),
                f"fits, up to {found.longest} new tokens" if found.fits else "DOES NOT FIT",
            ]
        )
    return rows


def _phase_size(found: Any, name: str) -> str:
    return _size(sum(found.phases[name].values())) if name in found.phases else "-"


def _worst(plan: Any) -> Any:
    return max(plan.stages, key=lambda found: found.peak)


def _parts_title(plan: Any) -> str:
    return f"\nParts of {_worst(plan).stage.name}, the stage that needs most:"


def _part_rows(plan: Any) -> list[list[str]]:
    phases = _worst(plan).phases
    names = list(dict.fromkeys(name for found in phases.values() for name in found))
    rows = [["part", *phases]]
    for name in names:
        rows.append([name, *(_size(found.get(name, 0)) for found in phases.values())])
    return [*rows, ["sum", *(_size(sum(found.values())) for found in phases.values())]]


def _tail(plan: Any) -> list[str]:
    needed = f"{_size(plan.needed)} at the peak"
    if plan.machine.cuda:
        needed += (
            f" ({_size(plan.reserved)} reserved by torch, of which 5 % is an assumption about its "
            "allocator, and CUDA's own memory)"
        )
    else:
        needed += " (with the imported libraries)"
    lines = [f"\nNeeded: {needed}."]
    for found in plan.stages:
        if not found.fits:
            choices = "; or ".join(found.remedies)
            lines.append(f"{found.stage.name} does not fit: choose {choices}.")
    if plan.fits and plan.device.memory is not None:
        lines.append("Everything fits.")
    if any(found.seconds for found in plan.stages):
        lines.append(
            "Batches are prompts x answers x (prompt + new tokens), all as long as they may be. "
            "Times are rough estimates of training alone, without scoring and evaluation."
        )
    return lines


def _size(count: int) -> str:
    if not count:
        return "-"
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):.1f} MiB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 90:
        return f"~{seconds:.0f} s"
    return f"~{seconds / 60:.0f} min" if seconds < 5400 else f"~{seconds / 3600:.1f} h"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _table(rows: list[list[str]], title: str) -> str:
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows[1:]
    )
    caption = f"<caption>{escape(title.strip())}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
