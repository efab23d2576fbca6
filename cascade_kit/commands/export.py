"""`export`: the adapter of a run, a merged model and a model card."""

import argparse
from pathlib import Path

HELP = "write a run's adapter, a merged model and a model card"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run folder")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    add("--stage", metavar="NAME", help="a finished stage (default: the last one)")
    add("--merged", action="store_true", help="also the whole model in 16 bits, in DIR/merged")
    add("--model", metavar="PATH", help="where the run's base model is (default: as in the run)")
    add("--dtype", default="bfloat16", help="of --merged: bfloat16 (default), float16 or float32")


def command(arguments: argparse.Namespace) -> int:
    from cascade_kit.export import export

    folder = export(
        arguments.run,
        arguments.out,
        stage=arguments.stage,
        merged=arguments.merged,
        model=arguments.model,
        dtype=arguments.dtype,
    )
    print(f"adapter:  {folder}\ncard:     {folder / 'README.md'}")
    if arguments.merged:
        print(f"merged:   {folder / 'merged'}")
    return 0
