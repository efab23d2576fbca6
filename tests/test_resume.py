"""A run that is cut off anywhere goes on as if nothing had happened: the same bytes at the end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import sys
from pathlib import Path
from cascade_kit.cascade import Run
from cascade_kit.loading import load_policy
from cascade_kit.run_data import run_data, stages_for

folder, resume = Path(sys.argv[1]), sys.argv[2] == "resume"
stages = stages_for("micro", ["rlhf", "math"], steps=6, prompts=4, answers=4)
policy = load_policy("micro")
data = run_data(policy, stages, eval_items=4, pairs=64)
run = Run.create(folder, policy, data, stages, resume=resume)
run.checkpoint_every = 2
for event in run.go():
    print(event.kind, event.stage, event.done, flush=True)
"""
FILES = ("1-rlhf/adapter/adapter_model.safetensors", "2-math/adapter/adapter_model.safetensors")


def start(folder: Path, how: str, program: str = RUN) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), how],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(folder: Path, how: str, program: str = RUN) -> None:
    process = start(folder, how, program)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder, "new")
    return folder


def assert_same(folder: Path, whole: Path) -> None:
    for file in FILES:
        assert (folder / file).read_bytes() == (whole / file).read_bytes(), file
    for stage in ("1-rlhf", "2-math"):
        steps = [json.loads(line) for line in (folder / stage / "steps.jsonl").open()]
        wanted = [json.loads(line) for line in (whole / stage / "steps.jsonl").open()]
        assert [s["step"] for s in steps] == list(range(1, 7))
        same = ("reward_mean", "loss", "grad_norm", "kl", "entropy", "tokens", "left_out")
        assert [[s[k] for k in same] for s in steps] == [[s[k] for k in same] for s in wanted]
        logs = [(f / stage / "rollouts.jsonl").read_text() for f in (folder, whole)]
        assert logs[0] == logs[1]
        assert not (folder / stage / "checkpoints").exists()


@pytest.mark.parametrize(
    "after",
    [
        "step rlhf 3",
        pytest.param("step rlhf 1", marks=pytest.mark.slow),  # before the first checkpoint
        pytest.param("step math 4", marks=pytest.mark.slow),
    ],
)
def test_killed_after_a_step_the_run_goes_on_to_the_same_bytes(tmp_path, whole, after):
    folder = tmp_path / "run"
    process = start(folder, "new")
    for line in process.stdout:
        if line.strip() == after:
            process.kill()
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL
    finish(folder, "resume")
    assert_same(folder, whole)


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_stopped_command_ends_its_step_and_goes_on_to_the_same_bytes(tmp_path, whole, sent):
    """At the command line, with the options of the run above."""
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "cascade_kit", "run", "--out", str(folder), "--order", "rlhf,math",
        "--steps", "6", "--prompts", "4", "--answers", "4", "--eval-items", "4", "--pairs", "64",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = folder / "2-math" / "steps.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.02)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    done = log.read_text().count("\n")
    (checkpoint,) = sorted((folder / "2-math" / "checkpoints").iterdir())[-1:]
    assert checkpoint.name == f"{done:06d}"  # not one step is lost, though only each fifth is kept
    assert f"--resume --out {folder}" in errors
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert_same(folder, whole)


INSIDE = RUN.replace(
    "from cascade_kit.cascade import Run",
    """
import os, signal
from cascade_kit import cascade, checkpoint
from cascade_kit.cascade import Run
calls, fsync = 0, os.fsync
def counted(descriptor):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)
checkpoint.os.fsync = counted
""",
)


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 3, 5, 6, 9, 14, 20, 24])
def test_killed_inside_a_checkpoint_write(tmp_path, whole, call):
    folder = tmp_path / "run"
    process = subprocess.run(
        [sys.executable, "-c", INSIDE, str(folder), "new", str(call)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, process.stderr
    finish(folder, "resume")
    assert_same(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_moment(tmp_path, whole, seed):
    """Killed after a random time, up to three times in a row."""
    rng, folder, how = random.Random(seed), tmp_path / "run", "new"
    for _ in range(rng.randint(1, 3)):
        process = start(folder, how)
        time.sleep(rng.uniform(5, 14))
        process.kill()
        process.communicate()
        how = "resume" if (folder / "run.json").exists() else "new"
    if how == "new" and folder.exists():
        assert not os.listdir(folder)
    finish(folder, how)
    assert_same(folder, whole)
