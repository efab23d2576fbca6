"""Ours against TRL's GRPOTrainer on the same work: seconds a step, samples a second, peak memory.

    python tests/bench/vs_trl.py [--model micro|PATH] [--pairs 5] [--scaling] [--json FILE]

Same model in NF4, same LoRA, prompts, reward and sampling. The engines run in child processes that
take turns, and the order is swapped from pair to pair, so that whatever else the machine does meets
both. Each child warms up for one step. After a pair, bound.py measures bare forwards and backwards
over the rows of each engine's median step: the share of the bound says how much of a step is
needed work. A share above 100 % means that the measurement is wrong, and the exit code is 1.

Peak memory is that of the process above what its imports take, or that of a GPU's allocator.
Scaling rows use forced lengths, one pair each, and rewards that leave no group flat.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = {"ours": "ours.py", "trl": "peer.py", "bound": "bound.py"}
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "trl", "accelerate")

# Rows of --scaling: what grows, its value, and the work. TRL updates on all answers at once, which
# takes about 5 GB at 512-token prompts; smaller micro-batches take the same CPU time.
SCALING = (
    *(("answers", n, {"prompts": 8, "answers": n}) for n in (4, 8, 16)),
    ("prompt", 32, {"prompt_tokens": 32}),
    ("prompt", 512, {"prompt_tokens": 512}),
    ("prompt", 2048, {"prompt_tokens": 2048, "prompts": 2}),
    *(("vocabulary", n, {"prompts": 4, "steps": 1}) for n in (768, 32_000, 151_936)),
    ("vocabulary", 151_936, {"prompts": 4, "steps": 1, "max_new_tokens": 64}),
)


class ChildFailed(Exception):
    """A child process ended badly; the message says which and why."""


# ---- the command line --------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vs_trl.py",
        description="Measure GRPO steps of this kit against TRL's GRPOTrainer on the same work.",
        epilog="A share of the bound above 100 %% or a failed child gives exit code 1.",
    )
    add = parser.add_argument
    add("--model", default="micro", help="'micro' or a model folder or .gguf file (default: micro)")
    add("--pairs", type=int, default=5, help="runs of each engine, 5 or more for a result")
    add("--steps", type=int, help="measured steps a run, after one warm-up (micro: 5, else 2)")
    add("--prompts", type=int, help="prompts a step (micro: 16, else 4)")
    add("--answers", type=int, default=8, help="answers a prompt (default: 8)")
    add("--max-new-tokens", type=int, default=48, help="longest answer (default: 48)")
    add(
        "--lengths", choices=("natural", "forced"), default="natural",
        help="answers end where the model ends them, or all have --max-new-tokens",
    )  # fmt: skip
    add("--prompt-tokens", type=int, help="fill every prompt up to so many tokens")
    add(
        "--reward", choices=("domain", "alternating"),
        help="the math verifier's score (default for micro), or every second answer right, which "
        "leaves no group without gradient (default for other models and with --prompt-tokens)",
    )  # fmt: skip
    add("--micro-batch", type=int, help="answers in one of TRL's updates (default: all at once)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where both run (default: cpu)")
    add("--bound-repeats", type=int, default=3, help="the bound is a median of N (default: 3)")
    add("--threads", type=int, help="default: OMP_NUM_THREADS, else the number of cores")
    add("--scaling", action="store_true", help="rows for more answers, prompts, vocabulary (micro)")
    add("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments with their defaults filled in; exit code 2 and one line for an impossible one."""
    options = parser()
    args = options.parse_args(argv)
    micro = args.model == "micro"
    args.steps = args.steps if args.steps is not None else (5 if micro else 2)
    args.prompts = args.prompts if args.prompts is not None else (16 if micro else 4)
    solvable = micro and args.prompt_tokens is None  # micro solves nothing behind long filler
    args.reward = args.reward or ("domain" if solvable else "alternating")
    if args.threads is None:
        args.threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    least = {"pairs": 1, "steps": 1, "prompts": 1, "answers": 2, "max_new_tokens": 1, "threads": 1}
    least["bound_repeats"] = 1
    least |= {
        name: 1 for name in ("prompt_tokens", "micro_batch") if getattr(args, name) is not None
    }
    for name, value in least.items():
        if getattr(args, name) < value:
            options.error(f"--{name.replace('_', '-')} must be at least {value}")
    if args.micro_batch and (args.prompts * args.answers) % args.micro_batch:
        options.error("--micro-batch must divide --prompts times --answers")
    if not micro and not Path(args.model).expanduser().exists():
        options.error(f"no model at {args.model}: give 'micro', a model folder or a .gguf file")
    if args.json and not args.json.resolve().parent.is_dir():
        options.error(f"--json {args.json}: its folder does not exist; create it first")
    return args


def job_of(args: argparse.Namespace) -> dict:
    """The work as the children read it."""
    names = ("prompts", "answers", "max_new_tokens", "steps", "reward", "prompt_tokens")
    return {name: getattr(args, name) for name in names} | {
        "name": Path(args.model).name,
        "model": args.model if args.model == "micro" else str(Path(args.model).expanduser()),
        "device": args.device,
        "forced": args.lengths == "forced",
        "micro_batch": args.micro_batch,
        "seed": 1,
    }


# ---- child processes ---------------------------------------------------------------------------


def environment(threads: int, device: str) -> dict[str, str]:
    """The same threads for everybody, and no downloads."""
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    if device == "cpu":
        settings["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **settings}


def run_child(who: str, task: dict, threads: int, device: str) -> dict:
    """Run one script on a task in a process of its own; its result."""
    with tempfile.TemporaryDirectory() as folder:
        task_file, result_file = Path(folder, "task.json"), Path(folder, "result.json")
        task_file.write_text(json.dumps(task), encoding="utf-8")
        command = [sys.executable, str(HERE / SCRIPTS[who]), str(task_file)]
        command += [str(result_file)] if who != "bound" else []
        done = subprocess.run(
            command, env=environment(threads, device), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
            raise ChildFailed(f"{SCRIPTS[who]} ended with exit code {done.returncode}:\n{tail}")
        if who == "bound":
            return json.loads(done.stdout.strip().splitlines()[-1])
        return json.loads(result_file.read_text(encoding="utf-8"))


def run_pair(job: dict, number: int, threads: int, label: str) -> dict[str, dict]:
    """Both engines on one job, ours first in odd pairs."""
    pair = {}
    for who in ("ours", "trl") if number % 2 else ("trl", "ours"):
        pair[who] = run_child(who, job, threads, job["device"])
        memory = pair[who]["memory_mb"]["above_imports"]
        print(
            f"{label} {who:>5}: {seconds_of(pair[who]):.3f} s a step, {memory:,.0f} MB above "
            f"imports, {mean_tokens(pair[who]):.1f} tokens an answer",
            flush=True,
        )
    return pair


def run_bound(pair: dict[str, dict], threads: int, device: str, repeats: int) -> dict[str, dict]:
    """Seconds of both parts of the bound for the median step of each engine."""
    task = {
        "model": pair["ours"]["source"],
        "device": device,
        "repeats": repeats,
        "schedules": {who: pair[who]["schedules"][median_step(pair[who])] for who in pair},
    }
    return run_child("bound", task, threads, device)


# ---- figures -----------------------------------------------------------------------------------


def seconds_of(child: dict) -> float:
    """Seconds a step: the median of the measured steps."""
    return statistics.median(child["seconds"])


def median_step(child: dict) -> int:
    """The step that took the median time (the faster of the two in the middle)."""
    seconds = child["seconds"]
    return seconds.index(statistics.median_low(seconds))


def mean_tokens(child: dict) -> float:
    """Tokens an answer, over all measured steps."""
    groups = [group for step in child["schedules"] for group in step]
    return statistics.mean(n for group in groups for n in group["answers"])


def flat_share(child: dict) -> float:
    """Share of groups without spread, over all measured steps."""
    return statistics.mean(group["flat"] for step in child["schedules"] for group in step)


def bound_share(child: dict, bound: dict[str, float]) -> float:
    """The bound of the child's median step over what that step took."""
    return (bound["decode"] + bound["update"]) / child["seconds"][median_step(child)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def report(job: dict, pairs: Sequence[dict], threads: int) -> dict:
    """Everything measured, from the raw results of the pairs."""
    seconds = {who: [seconds_of(pair[who]) for pair in pairs] for who in ("ours", "trl")}
    ratios = [trl / ours for ours, trl in zip(seconds["ours"], seconds["trl"], strict=True)]
    middle = {who: statistics.median(values) for who, values in seconds.items()}
    samples = job["prompts"] * job["answers"]

    def memory(who: str, name: str) -> float:
        return statistics.median(pair[who]["memory_mb"][name] for pair in pairs)

    def both(figure) -> dict[str, float]:
        return {who: statistics.median(figure(pair, who) for pair in pairs) for who in seconds}

    peak = {who: memory(who, "above_imports") for who in seconds}
    return {
        "model": job["name"],
        "seconds_per_step": {**middle, "ratio": spread(ratios)},
        "samples_per_second": {
            **{who: samples / value for who, value in middle.items()},
            "ratio": spread(ratios),
        },
        "peak_memory_mb": {**peak, "ratio": peak["ours"] / peak["trl"]},
        "bound_share": both(lambda pair, who: bound_share(pair[who], pair["bound"][who])),
        "imports_mb": {who: memory(who, "imports") for who in seconds},
        "peak_with_imports_mb": {who: memory(who, "peak") for who in seconds},
        "work": {
            **{name: value for name, value in job.items() if name not in ("name", "model", "seed")},
            "mean_tokens": both(lambda pair, who: mean_tokens(pair[who])),
            "flat_groups": both(lambda pair, who: flat_share(pair[who])),
            "pairs": len(pairs),
        },
        "threads": threads,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "configuration": {who: pairs[0][who]["configuration"] for who in seconds},
        "pairs": [without_paths(pair) for pair in pairs],
    }


def without_paths(pair: dict) -> dict:
    """A pair's raw results less what stands elsewhere or names this machine."""
    drop = ("source", "configuration")
    return {
        who: {name: value for name, value in result.items() if name not in drop}
        for who, result in pair.items()
    }


def versions() -> dict[str, str]:
    """Installed versions, read without importing anything."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


def over_bound(figures: dict) -> list[str]:
    """One line for each engine whose share of the bound is above 100 %, which cannot be."""
    return [
        f"{who} spends {share:.0%} of a step in the bound: above 100 % the measurement is wrong; "
        "run again on a quiet machine, with more --steps"
        for who, share in figures["bound_share"].items()
        if share > 1.0
    ]


def table(figures: dict) -> str:
    """The medians for people."""
    work, seconds = figures["work"], figures["seconds_per_step"]
    memory, share = figures["peak_memory_mb"], figures["bound_share"]
    rates, ratio = figures["samples_per_second"], seconds["ratio"]
    ratios = f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
    tokens = work["mean_tokens"]
    rows = [
        ("", "ours", "TRL", "ratio"),
        ("seconds a step", f"{seconds['ours']:.3f}", f"{seconds['trl']:.3f}", ratios),
        ("samples a second", f"{rates['ours']:.1f}", f"{rates['trl']:.1f}", ratios),
        (
            "peak memory, MB above imports",
            f"{memory['ours']:,.0f}", f"{memory['trl']:,.0f}", f"{memory['ratio']:.2f}",
        ),
        ("share of the bound", f"{share['ours']:.0%}", f"{share['trl']:.0%}", ""),
        ("tokens an answer", f"{tokens['ours']:.1f}", f"{tokens['trl']:.1f}", ""),
    ]  # fmt: skip
    title = (
        f"{figures['model']}: {work['prompts']} prompts x {work['answers']} answers, "
        f"{'forced' if work['forced'] else 'natural'} lengths, {work['pairs']} pairs, "
        f"{figures['threads']} thread(s), {figures['date']}"
    )
    few = "fewer than 5 pairs: a look, not a result" if work["pairs"] < 5 else ""
    lines = [f"{name:<31}{ours:>9}{trl:>9}   {ratio}".rstrip() for name, ours, trl, ratio in rows]
    return "\n".join(filter(None, [title, *lines, few]))


# ---- scaling -----------------------------------------------------------------------------------


def scaling(device: str, threads: int) -> list[dict]:
    """One pair of runs for every row of SCALING."""
    base = {
        "model": "micro", "device": device, "prompts": 16, "answers": 8, "max_new_tokens": 16,
        "steps": 2, "seed": 1, "forced": True, "reward": "alternating", "prompt_tokens": None,
        "micro_batch": None,
    }  # fmt: skip
    rows = []
    for number, (axis, value, changes) in enumerate(SCALING):
        job = {**base, **changes}
        with tempfile.TemporaryDirectory() as folder:
            if axis == "vocabulary":
                task = {"random_model": micro_shape(value), "folder": folder}
                job["model"] = run_child("ours", task, threads, device)["source"]
            pair = run_pair(job, number, threads, f"{axis} {value}")
        rows.append(scaling_row(axis, value, job, pair))
    return rows


def micro_shape(vocabulary: int) -> dict:
    """The configuration of the embedded model with another vocabulary."""
    file = HERE.parents[1] / "cascade_kit" / "micro" / "model" / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) | {"vocab_size": vocabulary}


def scaling_row(axis: str, value: int, job: dict, pair: dict) -> dict:
    """Figures of one row; a model of random weights says nothing about time."""
    seconds = {who: seconds_of(pair[who]) for who in ("ours", "trl")}
    peak = {who: pair[who]["memory_mb"]["above_imports"] for who in ("ours", "trl")}
    timed = {**seconds, "ratio": seconds["trl"] / seconds["ours"]}
    return {
        "axis": axis,
        "value": value,
        "prompts": job["prompts"],
        "answers": job["answers"],
        "prompt_tokens": statistics.mean(g["prompt"] for g in pair["ours"]["schedules"][0]),
        "new_tokens": job["max_new_tokens"],
        "seconds_per_step": timed if axis != "vocabulary" else None,
        "peak_memory_mb": {**peak, "ratio": peak["ours"] / peak["trl"]},
    }


def scaling_table(rows: Sequence[dict]) -> str:
    """The rows for people."""
    head = (
        f"{'scaling':<19}{'P x G':>8}{'prompt':>8}{'new':>5}{'ours s':>9}{'TRL s':>9}{'ratio':>7}"
    )
    lines = [head + f"{'ours MB':>9}{'TRL MB':>9}{'ratio':>7}"]
    for row in rows:
        seconds, memory = row["seconds_per_step"], row["peak_memory_mb"]
        times = f"{'':>25}"
        if seconds:
            times = f"{seconds['ours']:>9.3f}{seconds['trl']:>9.3f}{seconds['ratio']:>7.2f}"
        lines.append(
            f"{row['axis'] + ' ' + format(row['value'], ','):<19}"
            f"{str(row['prompts']) + ' x ' + str(row['answers']):>8}"
            f"{row['prompt_tokens']:>8.0f}{row['new_tokens']:>5}{times}"
            f"{memory['ours']:>9,.0f}{memory['trl']:>9,.0f}{memory['ratio']:>7.2f}"
        )
    return "\n".join(lines)


# ---- together ----------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> dict:
    """All pairs with their bounds, then the scaling rows."""
    job, pairs = job_of(args), []
    if args.model.endswith(".gguf"):  # converted once, outside of what is measured
        task = {"source_of": job["model"]}
        job["model"] = run_child("ours", task, args.threads, args.device)["source"]
    for number in range(1, args.pairs + 1):
        label = f"pair {number}/{args.pairs}"
        pair = run_pair({**job, "seed": number}, number, args.threads, label)
        pair["bound"] = run_bound(pair, args.threads, args.device, args.bound_repeats)
        shares = {who: bound_share(pair[who], pair["bound"][who]) for who in ("ours", "trl")}
        print(f"{label} bound: ours {shares['ours']:.0%}, TRL {shares['trl']:.0%}", flush=True)
        pairs.append(pair)
    figures = report(job, pairs, args.threads)
    if args.scaling:
        figures["scaling"] = scaling(args.device, args.threads)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        figures = measure(args)
    except ChildFailed as error:
        print(f"vs_trl.py: {error}", file=sys.stderr)
        return 1
    print("\n" + table(figures))
    if "scaling" in figures:
        print("\n" + scaling_table(figures["scaling"]))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    problems = over_bound(figures)
    for line in problems:
        print(f"vs_trl.py: {line}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
