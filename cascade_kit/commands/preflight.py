"""`preflight`: a look at some answers before a training."""

import argparse
import json
from pathlib import Path

from cascade_kit.commands.run import add_stage_arguments, check_before_loading, chosen_stages

HELP = "sample some answers and say whether training would learn anything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stage_arguments(parser)
    add = parser.add_argument
    add("--stage", dest="order", default=argparse.SUPPRESS, metavar="A", help="one stage, the same as --order A")  # fmt: skip  # noqa: E501
    add("--json", type=Path, metavar="FILE", help="where the reports go as well")
    # What `run` alone asks, so that the checks before loading are the same.
    parser.set_defaults(eval_items=2, pairs=None, resume=False, out=None)


def command(arguments: argparse.Namespace) -> int:
    """Print a report a stage, all on the start's weights; 1 if a stage is refused, else 0."""
    from cascade_kit import settings
    from cascade_kit.checks import check_data, check_lengths
    from cascade_kit.loading import load_policy, model_source
    from cascade_kit.preflight import preflight
    from cascade_kit.run_data import run_data

    if arguments.allow_unsafe:
        settings.set_allow_unsafe()
    stages = chosen_stages(arguments)
    check_before_loading(arguments)
    model_source(arguments.model)
    policy = load_policy(
        arguments.model, bits=arguments.bits, rank=arguments.rank, seed=arguments.seed
    )
    data = run_data(
        policy, stages, arguments.data, eval_items=arguments.eval_items, seed=arguments.seed
    )
    check_data(data, stages, [])
    check_lengths(policy, data, stages)
    reports = []
    for stage in stages:
        problems = data.train[stage.domain.name]
        report = preflight(policy, stage, problems, seed=arguments.seed, generated=data.generated)
        print(report, flush=True)
        reports.append(report)
    if arguments.json:
        content = {"model": policy.name, "stages": [report.to_json() for report in reports]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(report.refused for report in reports))
