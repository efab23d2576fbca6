"""`export`: a stage's adapter, a whole model and a model card out of a run."""

import argparse
from pathlib import Path

HELP = "adapter, merged model and model card of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run folder, finished or not")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write; it must not exist")
    add("--stage", metavar="NAME", help="whose adapter (default: the last finished stage)")
    add("--merged", action="store_true", help="also a whole model folder: the adapter merged into the dequantised base")  # fmt: skip  # noqa: E501
    add("--model", metavar="NAME", help="where the base model is, if the run used a local one that moved; a Hub id is written into the card")  # fmt: skip  # noqa: E501
    add("--dtype", default="auto", choices=("auto", "bfloat16", "float16", "float32"), help="of the merged weights (default: the run's if it has 16 bits, else bfloat16)")  # fmt: skip  # noqa: E501


def command(arguments: argparse.Namespace) -> int:
    from cascade_kit.export import export

    exported = export(
        arguments.run,
        arguments.out,
        stage=arguments.stage,
        merged=arguments.merged,
        model=arguments.model,
        dtype=arguments.dtype,
    )
    print(exported)
    return 0
