"""The child process of our engine, and what both children share: the work and the memory's marks.

    python tests/bench/ours.py JOB.json RESULT.json

vs_trl.py writes the job and reads the result. A job with `random_model` or `source_of` only makes a
model folder, or converts a model into one.
Heavy imports sit in functions: `prepare` makes them all before the first memory mark.
"""

import importlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

LEARNING_RATE = 1e-9  # so small that answers stay as long as they are at the start
RANK, ALPHA = 16, 32
# What a first forward, backward or optimiser step would otherwise import in the middle of the work.
LAZY_MODULES = (
    "torch._dynamo",
    "bitsandbytes",
    "peft",
    "transformers.generation.utils",
    "transformers.integrations.bitsandbytes",
    "transformers.quantizers.quantizer_bnb_4bit",
    "math_verify",
)


# ---- the work ----------------------------------------------------------------------------------


def make_stage(job: dict):
    """The math stage of the job; with `alternating` rewards no group is flat."""
    from cascade_kit.stage import cascade

    stage = cascade(["math"], tier="micro" if job["model"] == "micro" else "real")[0]
    domain = stage.domain
    if job["reward"] == "alternating":
        domain = replace(domain, score_batch=alternating_scores)
    return replace(
        stage,
        domain=domain,
        steps=job["steps"] + 1,  # the first one warms up
        prompts=job["prompts"],
        answers=job["answers"],
        max_new_tokens=job["max_new_tokens"],
        learning_rate=LEARNING_RATE,
        temperature=1.0,
        kl_coef=0.0,
        loss="token",
        overlong_filter=False,
        filter="none",
        phases=(),
    )


def alternating_scores(problems: Sequence, completions: Sequence[str]) -> list:
    """Every second answer of a group is right: for models that solve nothing, or everything."""
    from cascade_kit.problem import Score

    return [Score(float(i % 2)) for i in range(len(completions))]


def make_problems(job: dict, stage, encode: Callable[[str], Sequence[int]]) -> list:
    """One fresh problem per prompt of every step, filled up to `prompt_tokens` if that is set."""
    wanted, tokens = stage.prompts * stage.steps, job["prompt_tokens"]
    filled = tokens is not None  # then a longer prompt is of no use: more to choose from
    problems = stage.domain.problems(
        "train", wanted * 8 if filled else wanted, seed=job["seed"], difficulty=stage.difficulty
    )
    if not filled:
        return problems
    short = [problem for problem in problems if len(encode(problem.prompt)) <= tokens]
    if len(short) < wanted:
        raise ValueError(f"only {len(short)} prompts have {tokens} tokens or less")
    return [lengthened(problem, tokens, encode) for problem in short[:wanted]]


def lengthened(problem, tokens: int, encode: Callable[[str], Sequence[int]]):
    """The problem with filler before its question, so that its prompt has about `tokens` tokens."""
    words = 0
    for _ in range(20):  # a word is about one token, so a few corrections are enough
        prompt = "and " * words + problem.prompt
        missing = tokens - len(encode(prompt))
        if missing == 0:
            break
        words = max(0, words + missing)
    if abs(missing) > max(8, tokens // 50):
        raise ValueError(f"{problem.id} cannot be filled to {tokens} tokens: {missing} missing")
    return replace(problem, prompt=prompt)


def schedule_entry(prompt: int, answers: Sequence[int], rewards: Sequence[float]) -> dict:
    """One group as the bound wants it: lengths in tokens, and whether its rewards are all equal."""
    return {
        "prompt": prompt,
        "answers": list(answers),
        "flat": max(rewards) - min(rewards) < 1e-8,
    }


# ---- memory ------------------------------------------------------------------------------------


def prepare(source: str, modules: Sequence[str]) -> dict[str, float]:
    """Import everything that the work will import; the memory of the process after that."""
    kind = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))["model_type"]
    for name in (*LAZY_MODULES, f"transformers.models.{kind}.modeling_{kind}", *modules):
        importlib.import_module(name)
    return process_memory_mb()


def process_memory_mb() -> dict[str, float]:
    """Resident memory of this process in MB, `now` and at its `peak`."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return {"now": now, "peak": peak}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak /= 2**20 if sys.platform == "darwin" else 2**10
    return {"now": peak, "peak": peak}


def memory_report(device: str, after_imports: dict[str, float]) -> dict[str, float]:
    """Peak above the imports: of the process, or on a GPU of its allocator."""
    import torch

    peak = process_memory_mb()["peak"]
    above = peak - after_imports["now"]
    if device.startswith("cuda"):
        above = torch.cuda.max_memory_allocated() / 2**20
    return {"imports": after_imports["now"], "peak": peak, "above_imports": above}


def clock(device: str) -> float:
    """Seconds, once the device has done what it was asked."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


# ---- our engine --------------------------------------------------------------------------------


def run(job: dict) -> dict:
    """Train `steps` steps after one to warm up; seconds and the schedule of each."""
    import torch

    from cascade_kit.grpo import train
    from cascade_kit.loading import load_policy, model_source

    source = model_source(job["model"])
    start = prepare(source, ())
    policy = load_policy(
        job["model"], bits=4, rank=RANK, alpha=ALPHA, seed=job["seed"], device=job["device"]
    )
    stops = sorted(policy.stop_ids)
    if job["forced"]:
        policy.stop_ids = frozenset()
    stage = make_stage(job)
    problems = make_problems(job, stage, policy.encode_prompt)
    steps = train(policy, stage, problems, seed=job["seed"])
    seconds, schedules, parts = [], [], []
    for _ in range(stage.steps):
        started = clock(job["device"])
        record, answers = next(steps)
        seconds.append(clock(job["device"]) - started)
        parts.append(record.seconds)
        schedules.append(
            [
                schedule_entry(
                    len(group[0].rollout.prompt_ids),
                    [len(a.rollout.completion_ids) for a in group],
                    [a.reward for a in group],
                )
                for group in grouped(answers, stage.answers)
            ]
        )
    return {
        "source": source,
        "seconds": seconds[1:],
        "schedules": schedules[1:],
        "memory_mb": memory_report(job["device"], start),
        "threads": torch.get_num_threads(),
        "stop_ids": stops,
        "parts": {name: statistics.median(p[name] for p in parts[1:]) for name in parts[0]},
        "configuration": {"policy": policy.describe(), "stage": stage.settings()},
    }


def grouped(items: Sequence, size: int) -> list:
    """Items in runs of `size`."""
    return [items[i : i + size] for i in range(0, len(items), size)]


# ---- models of any shape -----------------------------------------------------------------------


def random_model(folder: Path, config: dict, dtype: str = "float32") -> None:
    """A model folder with random weights, micro's chat template and micro's tokenizer.

    `config` is that of transformers, with its `model_type`. A vocabulary smaller than micro's keeps
    the tokenizer's first tokens; ids beyond the tokenizer's own decode to nothing.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from cascade_kit.loading import MICRO, quiet_libraries

    quiet_libraries()
    torch.manual_seed(0)
    settings = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, **config}
    shape = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(shape, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    for name in ("chat_template.jinja", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(MICRO / name, folder / name)
    tokenizer = json.loads((MICRO / "tokenizer.json").read_text(encoding="utf-8"))
    cut_vocabulary(tokenizer["model"], shape.vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def cut_vocabulary(pairs: dict, size: int) -> None:
    """Keep the first `size` tokens of a byte-pair encoding, and the merges that make them."""
    pairs["vocab"] = {token: i for token, i in pairs["vocab"].items() if i < size}
    pairs["merges"] = [m for m in pairs["merges"] if "".join(m) in pairs["vocab"]]


def main(run: Callable[[dict], dict]) -> None:
    """Read the job, do it, write the result."""
    job_file, result_file = map(Path, sys.argv[1:])
    result = run(json.loads(job_file.read_text(encoding="utf-8")))
    result_file.write_text(json.dumps(result), encoding="utf-8")


def run_or_make(job: dict) -> dict:
    """The job, or the model folder that it asks for."""
    if "random_model" in job:
        random_model(Path(job["folder"]), job["random_model"])
        return {"source": job["folder"]}
    if "source_of" in job:
        from cascade_kit.loading import model_source

        return {"source": model_source(job["source_of"])}
    return run(job)


if __name__ == "__main__":
    main(run_or_make)
