"""What only a machine with a CUDA GPU can check; one script, no network, at most `--minutes`.

    python tests/gpu/check.py --json figures.json        on a GPU
    python tests/gpu/check.py --dry                      every line of it on a CPU, tiny shapes

Random weights in the shapes of real models: memory and time of a step do not depend on what the
weights are. The sections, most important first:

  targets   one prompt x 8 answers x 256 tokens, LoRA rank 32: reserved bytes against the aims, and
            the largest difference between sampled and recomputed log-probabilities
  micro     the embedded model's cascade on the GPU and on the CPU: the same matrix but for noise
  shapes    the default stages of real models with the longest prompts and answers: reached against
            planned memory, seconds of a step
  trl       seconds a step of this kit against TRL's GRPOTrainer, where TRL is installed

The JSON is written anew after every measurement, so that a run that is cut off loses nothing. A
section without time left is named as skipped. Exit code 1: an aim was missed, or a section failed.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(Path(__file__).resolve().parent), str(TESTS / "bench")]

import torch  # noqa: E402
from ours import random_model  # noqa: E402
from step import Step, measured, random_policy  # noqa: E402

from cascade_kit.cascade import Run, versions  # noqa: E402
from cascade_kit.loading import default_dtype, load_policy  # noqa: E402
from cascade_kit.presets import presets  # noqa: E402
from cascade_kit.run_data import generated_data  # noqa: E402
from cascade_kit.stage import Stage, cascade  # noqa: E402

RESERVED = {"qwen2.5-7b": 8.0e9, "qwen2.5-1.5b": 4.5e9}  # aims in bytes
WITHIN = 0.1  # of the planned memory
GAPS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}  # largest, in nats
TRL_AIM = 2.0  # TRL's seconds a step over ours
PROMPT_TOKENS = 512  # where a stage has no cap
DRY = {
    "model_type": "qwen2", "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip


@dataclass
class Check:
    """What was found so far, and the time that is left."""

    dry: bool
    deadline: float
    out: Path | None
    found: dict[str, Any]

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return default_dtype(self.device)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def shape(self, name: str) -> dict[str, Any]:
        return DRY if self.dry else presets()[name].config

    def note(self, *keys: str, **values: Any) -> None:
        """Put values under keys, say so, and write everything down."""
        place = self.found
        for key in keys:
            place = place.setdefault(key, {})
        place.update(values)
        print(" ".join(keys), json.dumps(values), flush=True)
        if self.out:
            partial = self.out.with_name(f"{self.out.name}.partial")
            partial.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.out)

    def passed(self) -> bool:
        return all(_verdicts(self.found))


def _verdicts(found: Mapping[str, Any]) -> Iterator[bool]:
    """Every `ok` in the tree, and False for every `error`."""
    for key, value in found.items():
        if key == "error":
            yield False
        elif key == "ok":
            yield bool(value)
        elif isinstance(value, dict):
            yield from _verdicts(value)


# ---- the sections --------------------------------------------------------------------------------


def targets(check: Check) -> None:
    """Reserved memory of one prompt with eight answers; the log-probability gap."""
    new = 12 if check.dry else 256
    (stage,) = cascade(["math"], tier="real")
    stage = stage.changed(prompts=1, answers=8, max_new_tokens=new)
    for name, aim in RESERVED.items():
        policy = random_policy(check.shape(name), rank=32, device=check.device, dtype=check.dtype)
        step = Step(policy, stage, new, rank=32)
        gaps = [whole(step)]  # the first step also makes gradients and moments
        memory, seconds = measured(lambda s=step, g=gaps: g.append(whole(s)), check.device)
        reserved = memory.get("reserved", memory["allocated"])
        check.note(
            "targets", name,
            reserved=reserved, aim=aim, ok=reserved <= aim, seconds=seconds,
            decoding=policy.decoding,
        )  # fmt: skip
        largest = max(gaps)
        check.note(
            "targets", f"{name} gap",
            nats=largest, aim=GAPS[check.dtype], ok=largest <= GAPS[check.dtype],
        )  # fmt: skip
        release(policy)


def whole(step: Step) -> float:
    """Sample and learn; the largest difference of a log-probability, in nats."""
    return step.learn(step.sample()).logprob_gap


def micro(check: Check) -> None:
    """The embedded model's cascade on two devices, in the same float32 and in the GPU's dtype."""
    order = ["math"] if check.dry else ["rlhf", "instruct", "math", "code", "swe"]
    steps, items = (1, 4) if check.dry else (4, 60)
    stages = cascade(order, steps=steps)
    rows = {}
    for label, device, dtype in (
        ("cpu", "cpu", torch.float32),
        ("same dtype", check.device, torch.float32),
        ("own dtype", check.device, check.dtype),
    ):
        policy = load_policy("micro", device=device, dtype=dtype)
        data = generated_data(stages, eval_items=items)
        with tempfile.TemporaryDirectory() as folder:
            run = Run.create(Path(folder, "run"), policy, data, stages)
            started = time.perf_counter()
            for _ in run.go(skip_preflight=True):
                pass
            rows[label] = run.matrix().scores
        check.note(
            "micro", label, scores=_plain(rows[label]), seconds=time.perf_counter() - started
        )
        release(policy)
    for label in ("same dtype", "own dtype"):
        differences = [
            abs(a - b)
            for one, other in zip(rows["cpu"], rows[label], strict=True)
            for a, b in zip(one, other, strict=True)
        ]
        # Two means of n items, each with a standard error of at most 0.5 / sqrt(n): three of them.
        most = 3 * math.sqrt(2) * 0.5 / math.sqrt(items)
        largest = max(differences)
        check.note("micro", f"{label} against cpu", largest=largest, aim=most, ok=largest <= most)


def shapes(check: Check) -> None:
    """Every default stage on every shape: memory against the plan, and seconds."""
    for name in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"):
        if check.seconds_left < 60:
            check.note("shapes", name, skipped="no time left")
            continue
        policy = random_policy(check.shape(name), device=check.device, dtype=check.dtype)
        encode, stop = policy.encode_prompt, policy.stop_ids
        for stage in sorted(cascade(tier="real"), key=lambda s: s.needs_reward_model):
            if check.seconds_left < 45:
                check.note("shapes", name, stage.name, skipped="no time left")
                continue
            for phase, found in _stage_peaks(check, policy, stage).items():
                ok = abs(found["ratio"] - 1) <= WITHIN
                check.note("shapes", name, stage.name, phase, **found, ok=ok)
            policy.encode_prompt, policy.stop_ids = encode, stop
        release(policy)


def _stage_peaks(check: Check, policy: Any, stage: Stage) -> dict[str, dict[str, float]]:
    """Of as many prompts as one batch of rollouts holds: the others of a step are batches alike."""
    length = stage.max_prompt_tokens or PROMPT_TOKENS
    if check.dry:
        stage = stage.changed(prompts=2, answers=2, max_new_tokens=12)
        length = 40
    load = Step(policy, stage, length).load
    together = load.batch_prompts
    peaks = Step(policy, replace(stage, prompts=together), length).peaks()
    for found in peaks.values():
        found["seconds_of_a_whole_step"] = found["seconds"] * stage.prompts / together
    return peaks


def trl(check: Check) -> None:
    """Both engines on the 0.5B shape; lengths are forced and every group has a gradient, since
    random weights neither stop nor solve anything."""
    try:
        import trl as _  # noqa: F401
    except ImportError:
        check.note("trl", skipped="TRL is not installed")
        return
    if check.seconds_left < 100 and not check.dry:
        check.note("trl", skipped="no time left")
        return
    with tempfile.TemporaryDirectory() as folder:
        model, figures = Path(folder, "model"), Path(folder, "figures.json")
        random_model(model, check.shape("qwen2.5-0.5b"), str(check.dtype).removeprefix("torch."))
        pairs, steps, size = ("1", "1", "2") if check.dry else ("3", "3", "8")
        command = [
            sys.executable, str(TESTS / "bench" / "vs_trl.py"), "--model", str(model),
            "--device", check.device, "--pairs", pairs, "--steps", steps, "--prompts", size,
            "--answers", size, "--max-new-tokens", "8" if check.dry else "128",
            "--lengths", "forced", "--reward", "alternating", "--json", str(figures),
        ]  # fmt: skip
        left = None if check.dry else check.seconds_left
        done = subprocess.run(command, check=False, timeout=left, capture_output=True, text=True)
        if not figures.exists():
            raise RuntimeError(f"the benchmark failed: {done.stderr[-2000:]}")
        ratio = json.loads(figures.read_text(encoding="utf-8"))["seconds_per_step"]["ratio"]
    # On a CPU nothing can be said about a GPU.
    ok = check.dry or ratio["median"] >= TRL_AIM
    check.note("trl", ratio=ratio, aim=TRL_AIM, ok=ok)


# ---- running them --------------------------------------------------------------------------------


def release(policy: Any) -> None:
    """Give a policy's memory back before the next one is made."""
    import gc

    policy.model = policy.merged = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _plain(scores: Any) -> list[list[float]]:
    return [[round(float(score), 4) for score in row] for row in scores]


def machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    found = versions() | {"device": torch.cuda.get_device_name() if cuda else "CPU"}
    if cuda:
        memory = torch.cuda.get_device_properties(0).total_memory
        found |= {"memory": memory, "cuda": torch.version.cuda}
    # A short product, repeated: is the device idle enough for times to mean something?
    size = 2048 if cuda else 256
    a = torch.randn(size, size, device="cuda" if cuda else "cpu")
    times = [measured(lambda: a @ a, a.device.type)[1] for _ in range(5)]
    return found | {"product_seconds": statistics.median(times)}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="check.py", description="Check this kit's memory, speed and results on a CUDA GPU."
    )
    add = parser.add_argument
    add("--minutes", type=float, default=8.0, help="stop beginning anything after N (default: 8)")
    add("--json", type=Path, metavar="FILE", help="write everything found to FILE")
    add("--dry", action="store_true", help="tiny shapes on the CPU: does the script run?")
    add("--only", default="targets,micro,shapes,trl", metavar="A,B", help="sections (default: all)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if not options.dry and not torch.cuda.is_available():
        print("no CUDA device here; --dry runs tiny shapes on the CPU")
        return 0
    sections: dict[str, Callable[[Check], None]] = {
        "targets": targets, "micro": micro, "shapes": shapes, "trl": trl,
    }  # fmt: skip
    check = Check(options.dry, time.monotonic() + 60 * options.minutes, options.json, {})
    check.note("machine", **machine())
    for name in options.only.split(","):
        try:
            sections[name](check)
        except Exception:  # the next sections are worth their time all the same
            check.note(name, error=traceback.format_exc()[-3000:])
    check.note("verdict", passed=check.passed(), minutes=options.minutes - check.seconds_left / 60)
    return 0 if check.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
