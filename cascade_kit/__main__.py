"""The command line: `python -m cascade_kit run`, and with `--help` what else there is."""

import argparse
import sys

from cascade_kit.commands import compare, doctor, export, plan, preflight, run, score

COMMANDS = {
    "run": run,
    "plan": plan,
    "preflight": preflight,
    "compare": compare,
    "score": score,
    "export": export,
    "doctor": doctor,
}
EPILOG = """examples:
  python -m cascade_kit run                                   the whole cascade on the laptop model
  python -m cascade_kit run --order math,code --steps 10      two stages, shorter
  python -m cascade_kit run --model Qwen/Qwen2.5-0.5B-Instruct --data my_rows/
  python -m cascade_kit plan --model qwen2.5-7b --gpu t4      what would it need?
  python -m cascade_kit preflight --model FILE.gguf --stage math   would it learn anything?
  python -m cascade_kit export runs/NAME --out my_model --merged   adapter, model, card
  python -m cascade_kit score --domain math answers.jsonl     verdicts on recorded answers
  python -m cascade_kit doctor                                what this machine can do
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 for bad input (one line that says what to do)."""
    arguments = build_parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except (ValueError, OSError) as error:  # OSError: files, and models that are not there
        print(f"cascade-kit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cascade-kit: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cascade_kit",
        description="Cascade RL: one model, five domains in sequence, one forgetting matrix.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        sub = commands.add_parser(name, help=module.HELP)
        module.add_arguments(sub)
        sub.set_defaults(command=module.command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
