"""`run`: train the stages in order and draw the matrix."""

import argparse
import itertools
import sys
import time
from pathlib import Path

HELP = "train the stages in order and draw the matrix"
STAGE_NAMES = "rlhf,instruct,math,code,swe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stage_arguments(parser)
    add = parser.add_argument
    add("--eval-items", type=whole, default=None, metavar="N", help="held-out items a domain (default: 240 generated ones, or 100 of --data)")  # fmt: skip  # noqa: E501
    add("--pairs", type=whole, metavar="N", help="preference pairs that train and test the reward model (default: all)")  # fmt: skip  # noqa: E501
    add("--out", type=Path, metavar="DIR", help="run folder (default: runs/MODEL-DATE-TIME)")
    add("--resume", action="store_true", help="continue the run in --out: finished stages are kept, one that was cut off goes on from its checkpoint")  # fmt: skip  # noqa: E501
    add("--skip-preflight", action="store_true", help="train hopeless stages too: the look at some answers before a training only reports")  # fmt: skip  # noqa: E501


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def add_stage_arguments(parser: argparse.ArgumentParser) -> None:
    """What says which model is trained on what, for every command that asks it."""
    add = parser.add_argument
    add("--model", default="micro", metavar="NAME", help="micro (default: the embedded model), a Hugging Face folder, a .gguf file or a Hub id")  # fmt: skip  # noqa: E501
    add("--order", default=STAGE_NAMES, metavar="A,B", help=f"stages in order, each once (default: {STAGE_NAMES})")  # fmt: skip  # noqa: E501
    add("--data", action="append", default=[], metavar="SOURCE", help="rows to train on, may be given again: a folder or file (JSONL, JSON, CSV, Parquet), hub:OWNER/NAME[:CONFIG][@SPLIT], gym:TASK[:COUNT] (default: generated problems)")  # fmt: skip  # noqa: E501
    add("--eval-data", action="append", default=[], metavar="SOURCE", help="rows to evaluate on, of the same kinds; may be given again (default: a fifth of --data)")  # fmt: skip  # noqa: E501
    add("--steps", type=whole, metavar="N", help="optimiser steps a stage (default: the stage's)")
    add("--prompts", type=whole, metavar="P", help="prompts a step (default: the stage's)")
    add("--answers", type=whole, metavar="G", help="answers a prompt, at least 2")
    add("--max-new-tokens", type=whole, metavar="N", help="longest answer in tokens")
    add("--seed", type=whole, default=0, help="of everything random (default: 0)")
    add("--bits", type=whole, default=4, help="4 (NF4, default), 8 (int8) or 16 (not quantised)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="of the arithmetic (default: float32 on a CPU, bfloat16 on a GPU that has it, else float16)")  # fmt: skip  # noqa: E501
    add("--chat-template", metavar="NAME", help="plain, chatml or a Jinja file, for a base model without one (default: the model's)")  # fmt: skip  # noqa: E501
    add("--rank", type=whole, default=16, help="LoRA rank (default: 16)")
    add("--allow-unsafe", action="store_true", help="let model-written code run without isolation")


def command(arguments: argparse.Namespace) -> int:
    from cascade_kit import settings
    from cascade_kit.cascade import Run
    from cascade_kit.chat import template_text
    from cascade_kit.loading import load_policy, model_source
    from cascade_kit.run_data import run_data

    if arguments.allow_unsafe:
        settings.set_allow_unsafe()
    stages, domains = chosen_stages(arguments), chosen_stages(arguments, STAGE_NAMES)
    folder = arguments.out or fresh_folder(arguments.model)
    check_before_loading(arguments, folder)
    model_source(arguments.model)
    if arguments.chat_template is not None:
        template_text(arguments.chat_template)
    how = "not quantised" if arguments.bits == 16 else f"in {arguments.bits} bits"
    print(f"loading {arguments.model} {how} ...", flush=True)
    policy = load_policy(
        arguments.model,
        bits=arguments.bits,
        rank=arguments.rank,
        seed=arguments.seed,
        dtype=arguments.dtype,
        chat_template=arguments.chat_template,
    )
    data = run_data(
        policy,
        domains,
        arguments.data,
        eval_sources=arguments.eval_data,
        eval_items=arguments.eval_items,
        pairs=arguments.pairs,
        seed=arguments.seed,
    )
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
        watch(run, skip_preflight=arguments.skip_preflight)
    except KeyboardInterrupt:
        print(f"\nto go on: the same command with --resume --out {folder}", file=sys.stderr)
        raise
    print(f"\n{run.matrix()}")
    print(f"\nfinished in {(time.perf_counter() - started) / 60:.1f} minutes")
    print(f"matrix:  {folder / 'matrix.png'}\nreport:  {folder / 'report.html'}")
    return 0


def chosen_stages(arguments: argparse.Namespace, order: str | None = None):
    """The stages of an order of names, "a,b", with what the arguments override."""
    from cascade_kit.run_data import stages_for

    wanted = {
        "steps": arguments.steps,
        "prompts": arguments.prompts,
        "answers": arguments.answers,
        "max_new_tokens": arguments.max_new_tokens,
    }
    overrides = {name: value for name, value in wanted.items() if value is not None}
    names = [name.strip() for name in (order or arguments.order).split(",") if name.strip()]
    return stages_for(arguments.model, names, arguments.data, **overrides)


def fresh_folder(model: str) -> Path:
    from cascade_kit import settings

    name = f"{Path(model).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return settings.runs_folder() / name


def check_before_loading(arguments: argparse.Namespace, folder: Path | None = None) -> None:
    """What can be told to be wrong without loading a model."""
    from cascade_kit.checks import check_free

    if arguments.resume and arguments.out is None:
        raise ValueError("--resume needs the run folder: give it as --out")
    if folder and not arguments.resume:
        check_free(folder)
    if arguments.eval_items is not None and arguments.eval_items < 2:
        raise ValueError("--eval-items must be at least 2: an interval needs two items")
    if arguments.bits not in (4, 8, 16):
        raise ValueError(f"--bits {arguments.bits} is not possible; choose 4, 8 or 16")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError("--seed must be at least 0 and below 2**63")
    if folder and arguments.resume and not (folder / "run.json").is_file():
        raise ValueError(f"{folder} holds no run.json: nothing to resume, leave out --resume")
    if arguments.rank < 1:
        raise ValueError("--rank must be at least 1")
    if arguments.pairs is not None and arguments.pairs < 1:
        raise ValueError("--pairs must be at least 1")
    check_data(arguments)


def check_data(arguments: argparse.Namespace) -> None:
    """Reads the rows; again with the tokenizer's lengths once the model is there."""
    from cascade_kit.data import load_data
    from cascade_kit.run_data import are_generated

    if not are_generated(arguments.data):
        load_data(*arguments.data, eval_sources=arguments.eval_data, seed=arguments.seed)
    elif arguments.eval_data:
        raise ValueError("--eval-data needs rows to train on: give them as --data")


def describe(run) -> str:
    """What is about to happen, with what it costs in rollouts."""
    policy = run.settings["policy"]
    lines = [
        f"model    {policy['model']}, {policy['weights']}, {policy['dtype']} on "
        f"{policy['device']}, {policy['trainable_parameters']:,} trainable parameters",
        *prompt_lines(policy),
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


def prompt_lines(policy: dict) -> list[str]:
    """What the tokenizer's template does, as far as one must know it."""
    chat = policy["chat"]
    tail = chat["prompt"].rpartition("{prompt}")[2]
    ends = " ".join(policy["stop_tokens"])
    return [
        f"prompt   template {chat['template']}, ends with {tail!r}; answers end at {ends}; "
        f"BOS {chat['bos'] or 'none'}, pad {chat['pad'] or 'none'}",
        f"thinking {chat['thinking']}" + "".join(f"; note: {note}" for note in chat["notes"]),
    ]


def watch(run, *, skip_preflight: bool = False) -> None:
    """Run the cascade with one progress bar at a time; a pre-flight gives a line a finding.

    The first Ctrl-C or SIGTERM ends it after the step that is running, with a checkpoint.
    """
    from cascade_kit.interrupts import stopping

    work = run.go(skip_preflight=skip_preflight)
    phases = itertools.groupby(work, key=lambda event: (event.kind, event.stage))
    with stopping() as stop:
        for (kind, stage), events in phases:
            for event in shown(kind, stage, events):
                if stop.requested and event.kind != "finished":
                    work.close()
                    raise KeyboardInterrupt


def shown(kind: str, stage: str, events):
    """Pass the events of a phase on, showing each."""
    from tqdm import tqdm

    if kind in ("finished", "pre-flight"):
        for event in events:
            if event.report is not None:
                print(*preflight_lines(event.report), sep="\n", flush=True)
            yield event
        return
    label = {"step": "train", "evaluated": "test after"}.get(kind, kind)
    with tqdm(desc=f"{label} {stage}", mininterval=1) as bar:
        for event in events:
            bar.total = event.total
            bar.set_postfix_str(postfix(event), refresh=False)
            bar.update(event.done - bar.n)
            yield event


def preflight_lines(report) -> list[str]:
    """The verdict, and a line for everything to change."""
    took = sum(report.seconds.values())
    verdict = f"pre-flight of {report.stage} ({report.answers} answers, {took:.1f} s)"
    return [f"{verdict}: {report.verdict()}", *(f"  {finding}" for finding in report.warnings)]


def postfix(event) -> str:
    if event.kind == "evaluated":
        return f"{event.domain} {event.score:.2f}"
    if event.record is not None:
        r = event.record
        return f"reward {r.reward_mean:.2f}, length {r.length_mean:.0f}, grad {r.grad_norm:.2f}"
    return f"pairs right {event.score:.2f}" if event.score is not None else ""
