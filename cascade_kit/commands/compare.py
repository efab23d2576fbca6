"""`compare`: several finished runs in one table."""

import argparse
from pathlib import Path

HELP = "several finished runs in one Markdown table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")


def command(arguments: argparse.Namespace) -> int:
    from cascade_kit.compare import comparison

    print(comparison(arguments.runs))
    return 0
