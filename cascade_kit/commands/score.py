"""`score`: verdicts on recorded answers."""

import argparse
import sys
from pathlib import Path

HELP = "verdicts on recorded answers, one a row"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("rows", type=Path, metavar="ROWS.jsonl", help="rows of a public format with a completion or response")  # fmt: skip  # noqa: E501
    add("--domain", required=True, metavar="DOMAIN", help="math, instruct, code, swe or preference")
    add("--out", type=Path, metavar="FILE", help="where the verdicts go (default: stdout)")
    add("--extract", default="auto", choices=("auto", "boxed", "last"), help="math: the last box, else the last stated answer (auto, default); only a box, as in training; no box")  # fmt: skip  # noqa: E501
    add("--official", action="store_true", help="instruct: with the faults of the official checker")
    add("--reward-model", type=Path, metavar="FOLDER", help="preference: RUN/1-rlhf/reward_model of a run (default: the longer answer wins)")  # fmt: skip  # noqa: E501
    add("--model", metavar="NAME", help="preference: the base model of --reward-model, if it moved")
    add("--workers", type=int, default=2, metavar="N", help="verdicts at a time (default: 2)")
    add("--keep-going", action="store_true", help="rows that cannot be scored get value null and the reason")  # fmt: skip  # noqa: E501
    add("--allow-unsafe", action="store_true", help="let model-written code run without isolation")


def command(arguments: argparse.Namespace) -> int:
    """Verdicts as JSON lines, then one line of summary; 2 if a row could not be scored."""
    from cascade_kit import settings
    from cascade_kit.score import (
        Options,
        answer_lengths,
        reward_model_scorer,
        score_file,
    )

    judge, pair_scorer = arguments.reward_model or "length-only baseline", answer_lengths
    if arguments.reward_model:
        pair_scorer = reward_model_scorer(arguments.reward_model, arguments.model)
    unsafe = arguments.allow_unsafe or settings.allow_unsafe()
    tally = score_file(
        arguments.domain,
        arguments.rows,
        arguments.out,
        Options(arguments.extract, arguments.official, unsafe, pair_scorer),
        workers=arguments.workers,
        keep_going=arguments.keep_going,
        pairs_name=f"pair accuracy ({judge})",
    )
    print(tally.words(), file=sys.stdout if arguments.out else sys.stderr)
    return 2 if tally.faults else 0
