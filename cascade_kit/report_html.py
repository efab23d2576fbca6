"""The parts of the report's page that know HTML but no run: style, tables, figures, answers."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

TEXT_LIMIT = 1200  # characters shown of one prompt or answer

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 63rem; padding: 1rem; color: #1b1b1b; background: #fff;
  font: 1.05rem/1.55 Georgia, "Times New Roman", serif; }
h1, h2, h3, h4, table, summary, nav { font-family: system-ui, "Segoe UI", Helvetica, sans-serif; }
h1 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; }
h4 { margin: 1.2rem 0 .2rem; font-size: .95rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; }
p, ul, dl { max-width: 46rem; }
.lead { font-size: 1.2rem; }
figure { margin: 1.5rem 0; }
figcaption { color: #444; font-size: .95rem; }
.scroll { overflow-x: auto; }
.scroll img { display: block; height: auto; max-width: 100%; min-width: 36rem; }
table { border-collapse: collapse; font-size: .85rem; margin: .8rem 0;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; color: #444; }
th, td { border: 1px solid #ddd; padding: .25rem .55rem; text-align: left; vertical-align: top; }
thead th { background: #f3f3f0; }
td { overflow-wrap: anywhere; min-width: 2.5rem; }
small { color: #444; }
summary { cursor: pointer; padding: .5rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f3; padding: .6rem;
  margin: .2rem 0; font-size: .85rem; line-height: 1.4; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } body { font-size: 1rem; } }
"""

READING = """
<p>A <strong>score</strong> is the mean over held-out items of one domain; each item's score is the
mean of its sampled answers (temperature 1). The same items and the same random numbers are used
after every stage, so a <strong>change</strong> compares like with like, item by item.</p>
<p>Write R(i, d) for the score on domain d after stage i, and T for the number of stages.</p>
<dl>
<dt>ACC</dt><dd>Mean of R(T, d) over the trained domains: where the run ended.</dd>
<dt>BWT (backward transfer)</dt><dd>Mean of R(T, d) minus the score right after d's own stage, over
all trained domains but the last. Below 0: later stages took something away.</dd>
<dt>FWT (forward transfer)</dt><dd>Mean of the score just before d's own stage minus its score at
the start, over all trained domains but the first. Above 0: earlier stages already helped. The
original definition compares with a random model; here the start is the fine-tuned one.</dd>
<dt>Forgetting</dt><dd>Mean over the same domains as BWT of the best score after any earlier stage
minus R(T, d). Lower is better.</dd>
<dt>Largest drop before training</dt><dd>The largest fall within one stage on a domain that had not
been trained yet. BWT and forgetting cannot see it.</dd>
</dl>
<h3>What the numbers do not say</h3>
<ul>
<li>The intervals cover the choice of items and the luck of sampling. They do not cover another
training seed: run several seeds before believing a small effect.</li>
<li>Each interval holds for its own cell at 95 %. In a table of 25 changes, about one may exclude 0
by chance alone.</li>
<li>With one right-or-wrong answer an item the intervals are exact and therefore a little wide; no
flipped item does not mean no change. With several answers an item they are approximate.</li>
<li>ACC, BWT, FWT and forgetting are means over few domains: read the cells before the means.</li>
<li>A score near 1 cannot rise and a score near 0 cannot fall; a flat row there is not proof of
anything. A proxy column is judged by a reward model, not by people.</li>
</ul>
"""


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an escaped table in a scrolling box; the first cell of a row is its header."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{show(first)}</th>'
        + "".join(f"<td>{show(value)}</td>" for value in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def show(value: Any) -> str:
    """Return one value as escaped text: numbers to four digits, missing ones as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))


def folded(summary: str, content: str) -> str:
    """Return content behind a line to click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(png: bytes, alt: str, caption: str, twin: str) -> str:
    """Return an embedded picture with its caption, followed by `twin`: the same numbers as HTML."""
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><div class="scroll"><img src="data:image/png;base64,{data}" '
        f'alt="{escape(alt)}"></div><figcaption>{escape(caption)}</figcaption></figure>{twin}'
    )


def listed(lines: Iterable[str]) -> str:
    """Return an escaped bullet list."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def quoted(heading: str, text: str) -> str:
    """Return a model's or a data file's text, escaped, cut after TEXT_LIMIT characters."""
    left_out = len(text) - TEXT_LIMIT
    shown = escape(text[:TEXT_LIMIT]) or "<em>(empty)</em>"
    more = f" <small>… {left_out} more characters</small>" if left_out > 0 else ""
    return f"<div><small>{escape(heading)}</small><pre>{shown}{more}</pre></div>"
