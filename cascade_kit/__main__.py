"""Command line: `python -m cascade_kit run`, `compare`, `score`, `doctor`."""

import argparse
import itertools
import sys
import time
from pathlib import Path

EPILOG = """examples:
  python -m cascade_kit run                                   the whole cascade on the laptop model
  python -m cascade_kit run --order math,code --steps 10      two stages, shorter
  python -m cascade_kit run --model Qwen/Qwen2.5-0.5B-Instruct --data my_rows/
  python -m cascade_kit score --domain math answers.jsonl     verdicts on recorded answers
  python -m cascade_kit doctor                                what this machine can do
"""
STAGE_NAMES = "rlhf,instruct,math,code,swe"


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
    run = commands.add_parser("run", help="train the stages in order and draw the matrix")
    add_run_arguments(run)
    run.set_defaults(command=run_command)
    compare = commands.add_parser("compare", help="several finished runs in one Markdown table")
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    compare.set_defaults(command=compare_command)
    score = commands.add_parser("score", help="verdicts on recorded answers, one a row")
    add_score_arguments(score)
    score.set_defaults(command=score_command)
    doctor = commands.add_parser("doctor", help="versions, device, 4-bit support, isolation, smoke")
    doctor.set_defaults(command=doctor_command)
    return parser


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    def whole(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None

    add = parser.add_argument
    add("--model", default="micro", metavar="NAME", help="micro (default: the embedded model), a Hugging Face folder, a .gguf file or a Hub id")  # fmt: skip  # noqa: E501
    add("--order", default=STAGE_NAMES, metavar="A,B", help=f"stages in order, each once (default: {STAGE_NAMES})")  # fmt: skip  # noqa: E501
    add("--data", type=Path, metavar="DIR", help="folder searched for JSONL rows (default: generated problems)")  # fmt: skip  # noqa: E501
    add("--steps", type=whole, metavar="N", help="optimiser steps a stage (default: the stage's)")
    add("--prompts", type=whole, metavar="P", help="prompts a step (default: the stage's)")
    add("--answers", type=whole, metavar="G", help="answers a prompt, at least 2")
    add("--max-new-tokens", type=whole, metavar="N", help="longest answer in tokens")
    add("--eval-items", type=whole, default=None, metavar="N", help="held-out items a domain (default: 240 generated ones, or 100 of --data)")  # fmt: skip  # noqa: E501
    add("--pairs", type=whole, metavar="N", help="preference pairs that train and test the reward model (default: all)")  # fmt: skip  # noqa: E501
    add("--seed", type=whole, default=0, help="of everything random (default: 0)")
    add("--bits", type=whole, default=4, help="4 (NF4, default), 8 (int8) or 16 (not quantised)")
    add("--rank", type=whole, default=16, help="LoRA rank (default: 16)")
    add("--out", type=Path, metavar="DIR", help="run folder (default: runs/MODEL-DATE-TIME)")
    add("--resume", action="store_true", help="continue the run in --out; finished stages are kept")
    add("--allow-unsafe", action="store_true", help="let model-written code run without isolation")


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
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


# ---- run ---------------------------------------------------------------------------------------


def run_command(arguments: argparse.Namespace) -> int:
    from cascade_kit import settings
    from cascade_kit.cascade import Run
    from cascade_kit.policy import load_policy, model_source

    if arguments.allow_unsafe:
        settings.set_allow_unsafe()
    stages, domains = chosen_stages(arguments)
    folder = arguments.out or fresh_folder(arguments.model)
    check_before_loading(arguments, folder)
    model_source(arguments.model)
    print(f"loading {arguments.model} in {arguments.bits} bits ...", flush=True)
    policy = load_policy(
        arguments.model, bits=arguments.bits, rank=arguments.rank, seed=arguments.seed
    )
    data = load(arguments, policy, domains)
    domains = [s for s in domains if data.eval.get(s.domain.name)]
    run = Run.create(
        folder,
        policy,
        data,
        stages,
        domains=domains,
        seed=arguments.seed,
        resume=arguments.resume,
    )
    print(describe(run), flush=True)
    started = time.perf_counter()
    try:
        watch(run)
    except KeyboardInterrupt:
        print(f"\nto go on: the same command with --resume --out {folder}", file=sys.stderr)
        raise
    print(f"\n{run.matrix()}")
    print(f"\nfinished in {(time.perf_counter() - started) / 60:.1f} minutes")
    print(f"matrix:  {folder / 'matrix.png'}\nreport:  {folder / 'report.html'}")
    return 0


def chosen_stages(arguments: argparse.Namespace):
    """The stages to train, and a stage for every domain to evaluate."""
    from cascade_kit.stage import ORDER, cascade

    wanted = {
        "steps": arguments.steps,
        "prompts": arguments.prompts,
        "answers": arguments.answers,
        "max_new_tokens": arguments.max_new_tokens,
    }
    overrides = {name: value for name, value in wanted.items() if value is not None}
    micro = arguments.model == "micro"
    order = [name.strip() for name in arguments.order.split(",") if name.strip()]
    return cascade(order, micro=micro, **overrides), cascade(ORDER, micro=micro, **overrides)


def fresh_folder(model: str) -> Path:
    from cascade_kit import settings

    name = f"{Path(model).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return settings.runs_folder() / name


def check_before_loading(arguments: argparse.Namespace, folder: Path) -> None:
    """What can be told to be wrong without loading a model."""
    from cascade_kit.checks import check_free
    from cascade_kit.data import load_data

    if arguments.resume and arguments.out is None:
        raise ValueError("--resume needs the run folder: give it as --out")
    if not arguments.resume:
        check_free(folder)
    if arguments.eval_items is not None and arguments.eval_items < 2:
        raise ValueError("--eval-items must be at least 2: an interval needs two items")
    if arguments.bits not in (4, 8, 16):
        raise ValueError(f"--bits {arguments.bits} is not possible; choose 4, 8 or 16")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError("--seed must be at least 0 and below 2**63")
    if arguments.resume and not (folder / "run.json").is_file():
        raise ValueError(f"{folder} holds no run.json: nothing to resume, leave out --resume")
    if arguments.rank < 1:
        raise ValueError("--rank must be at least 1")
    if arguments.pairs is not None and arguments.pairs < 1:
        raise ValueError("--pairs must be at least 1")
    if arguments.data is not None:
        load_data(arguments.data)  # again with the tokenizer's lengths once the model is there


def load(arguments: argparse.Namespace, policy, domains):
    """The rows of --data, or generated problems."""
    from dataclasses import replace

    from cascade_kit.cascade import micro_data
    from cascade_kit.data import load_data

    if arguments.data is None:
        data = micro_data(domains, eval_items=arguments.eval_items or 240, seed=arguments.seed)
    else:
        longest = max(stage.max_new_tokens for stage in domains)
        if longest >= policy.max_positions:
            raise ValueError(
                f"--max-new-tokens {longest} leaves no room for a prompt: the model has "
                f"{policy.max_positions} positions"
            )
        data = load_data(
            arguments.data,
            token_count=lambda prompt: len(policy.encode_prompt(prompt)),
            max_prompt_tokens=policy.max_positions - longest,
            seed=arguments.seed,
        )
    items = arguments.eval_items or (240 if arguments.data is None else 100)
    return replace(
        data,
        eval={name: rows[:items] for name, rows in data.eval.items()},
        train_pairs=data.train_pairs[: arguments.pairs],
        eval_pairs=data.eval_pairs[: arguments.pairs],
    )


def describe(run) -> str:
    """What is about to happen, with what it costs in rollouts."""
    policy = run.settings["policy"]
    lines = [
        f"model    {policy['model']}, {policy['bits']} bits, {policy['dtype']} on "
        f"{policy['device']}, {policy['trainable_parameters']:,} trainable parameters",
        *(f"data     {note}" for note in run.settings["data"]),
        f"run      {run.folder}",
    ]
    for stage in run.stages:
        lines.append(
            f"stage    {stage.name}: {stage.steps} steps x {stage.prompts} prompts x "
            f"{stage.answers} answers, up to {stage.max_new_tokens} tokens, "
            f"learning rate {stage.learning_rate:g}, KL {stage.kl_coef:g}, "
            f"reward {stage.reward.__name__}"
        )
    return "\n".join(lines)


def watch(run) -> None:
    """Run the cascade with one progress bar at a time."""
    from tqdm import tqdm

    phases = itertools.groupby(run.go(), key=lambda event: (event.kind, event.stage))
    for (kind, stage), events in phases:
        if kind == "finished":
            continue
        label = {"step": "train", "evaluated": "test after"}.get(kind, kind)
        with tqdm(desc=f"{label} {stage}", mininterval=1) as bar:
            for event in events:
                bar.total = event.total
                bar.set_postfix_str(postfix(event), refresh=False)
                bar.update(event.done - bar.n)


def postfix(event) -> str:
    if event.kind == "evaluated":
        return f"{event.domain} {event.score:.2f}"
    if event.record is not None:
        r = event.record
        return f"reward {r.reward_mean:.2f}, length {r.length_mean:.0f}, grad {r.grad_norm:.2f}"
    return f"pairs right {event.score:.2f}" if event.score is not None else ""


def compare_command(arguments: argparse.Namespace) -> int:
    from cascade_kit.compare import comparison

    print(comparison(arguments.runs))
    return 0


# ---- score -------------------------------------------------------------------------------------


def score_command(arguments: argparse.Namespace) -> int:
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


# ---- doctor ------------------------------------------------------------------------------------


def doctor_command(arguments: argparse.Namespace) -> int:
    """Print what this machine offers, then train two steps."""
    import torch

    from cascade_kit.cascade import micro_data, versions
    from cascade_kit.grpo import train
    from cascade_kit.policy import load_policy
    from cascade_kit.stage import cascade
    from cascade_kit.verifiers.sandbox import isolation

    for name, version in versions().items():
        print(f"{name:14} {version}")
    cuda = torch.cuda.is_available()
    print(f"{'device':14} {torch.cuda.get_device_name() if cuda else 'CPU'}")
    print(f"{'threads':14} {torch.get_num_threads()}")
    layer = isolation()
    print(f"{'isolation':14} {layer.name} ({layer.detail})")
    policy = load_policy()
    four_bit = sum(hasattr(m, "support_avx512bf16_for_cpu") for m in policy.model.modules())
    print(f"{'4-bit layers':14} {four_bit} (NF4), arithmetic in {policy.describe()['dtype']}")
    stage = cascade(["math"])[0].fast()
    before = policy.adapter_hash()
    data = micro_data([stage], eval_items=2)
    for record, _ in train(policy, stage, data.train["math"]):
        took = sum(record.seconds.values())
        print(
            f"{'smoke step ' + str(record.step):14} reward {record.reward_mean:.2f}, {took:.1f} s"
        )
    if policy.adapter_hash() == before:
        print("cascade-kit: the adapter did not change in two steps", file=sys.stderr)
        return 1
    print("all good: try  python -m cascade_kit run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
