"""A warm pool: preloaded parents in the sandbox that fork two small processes for each verdict.

A parent is started once (bwrap and Python together cost far more than a fork) and serves one
verdict at a time, so model text never runs in a process that judges another answer, nor in the
parent. Parents are started as programs, never forked from this process: it may hold a GPU, threads
and a notebook. See inside/zygote.py for the other half.
"""

import atexit
import contextlib
import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from . import layers
from .inside import codec

ANSWER_MB = 64  # file space of one answer
START_SECONDS = 60


class VerifierFault(RuntimeError):
    """The verifier itself failed: no verdict exists, and none may be made up."""


class ParentDied(VerifierFault):
    """A parent process ended without an answer; a new one may do better."""


class Parent:
    """One preloaded process in the sandbox; `verdict` is for one thread at a time."""

    def __init__(self, layer: layers.Isolation) -> None:
        self.layer = layer
        command, environment = [], layers.python_environment()
        if layer.name != "bubblewrap":
            environment["TMPDIR"] = tempfile.gettempdir()  # where answers get their folders
        else:
            command = layers.bubblewrap_arguments(
                layer, temporary_mb=ANSWER_MB, read_only=[], nested=True
            )
        self.process = subprocess.Popen(
            [*command, *layers.inside_program("zygote", layer.name, packages=True)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",  # nothing in the user's folder may stand in for a module
            start_new_session=True,
        )
        numbers = [layers.next_user(layer) for _ in range(2)]
        self.users = dict(zip(("answer", "judge"), numbers, strict=True))
        try:
            if "ready" not in self._receive(START_SECONDS):
                raise VerifierFault("the sandbox's parent process did not start")
        except BaseException:
            self.close()
            raise

    def verdict(self, limits: dict[str, Any], answer: dict, tests: dict) -> dict:
        """Send one job, wait for its verdict; on any trouble the parent is closed for good."""
        header = limits | {
            "layer": self.layer.name,
            "users": self.users,
            "temporary_mb": ANSWER_MB,
            "private": layers.private_folder(),
            "readable": [
                *layers.SYSTEM_FOLDERS,
                *layers.SYSTEM_FILES,
                *layers.python_folders(),
            ],
        }
        wall_seconds = limits["limits"]["wall_seconds"]
        try:
            with contextlib.suppress(BrokenPipeError):
                for part in (header, answer, tests):
                    text = json.dumps(part).encode()
                    self.process.stdin.write(len(text).to_bytes(4, "big") + text)
                self.process.stdin.flush()
            verdict = self._receive(wall_seconds + 10)
        except BaseException:
            self.close()
            raise
        if verdict.get("limit") or "fault" in verdict:
            self.close()  # it may have left unread parts of this job in the pipe
        return verdict

    def _receive(self, seconds: float) -> dict:
        """The parent's next message."""
        deadline = time.monotonic() + seconds
        descriptor = self.process.stdout.fileno()
        while not select.select([descriptor], [], [], 1)[0]:
            if time.monotonic() > deadline:
                raise VerifierFault(f"the sandbox gave no answer in {seconds:.0f} s")
        try:
            return codec.receive(descriptor)
        except codec.Gone:
            raise ParentDied("the sandbox's parent process died") from None

    def close(self) -> None:
        """End the parent; everything inside ends with it."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends itself when asked to
            self.process.wait(timeout=3)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Pool:
    """Parents that wait for work; grows with the number of threads that ask at the same time."""

    def __init__(self, layer: layers.Isolation) -> None:
        self.layer, self.owner = layer, os.getpid()
        self._idle: list[Parent] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def parent(self) -> Iterator[Parent]:
        """A parent for this thread alone, a living one if any is idle."""
        with self._lock:
            parent = self._idle.pop() if self._idle else None
        if parent is None or parent.process.poll() is not None:
            parent = Parent(self.layer)
        try:
            yield parent
        finally:
            with self._lock:
                keep = parent.process.poll() is None and not self._closed
                if keep:
                    self._idle.append(parent)
            if not keep:
                parent.close()

    def verdict(self, limits: dict[str, Any], answer: dict, tests: dict) -> dict:
        """The verdict on one answer; a parent that dies is replaced, once for each verdict."""
        try:
            with self.parent() as parent:
                verdict = parent.verdict(limits, answer, tests)
        except ParentDied:
            with self.parent() as parent:
                verdict = parent.verdict(limits, answer, tests)
        if "fault" in verdict:
            raise VerifierFault(f"the code verifier failed: {verdict['fault']}")
        return verdict

    def close(self) -> None:
        with self._lock:
            self._closed, parents, self._idle = True, self._idle, []
        for parent in parents:
            parent.close()


_pools: dict[layers.Isolation, Pool] = {}
_pools_lock = threading.Lock()


def shared_pool(layer: layers.Isolation) -> Pool:
    """The pool of this process for a layer; a forked child of this process makes its own."""
    with _pools_lock:
        pool = _pools.get(layer)
        if pool is None or pool.owner != os.getpid():
            pool = _pools[layer] = Pool(layer)
        return pool


@atexit.register
def close_pools() -> None:
    """End all parents; the next verdict starts new ones."""
    with _pools_lock:
        pools, own = list(_pools.values()), os.getpid()
        _pools.clear()
    for pool in pools:
        if pool.owner == own:
            pool.close()
