"""The surroundings of a reward case: canaries it may attack, and what it leaves behind.

Used by test_reward_cases.py. A case names its surroundings by placeholders: {OUTSIDE_DIR} is an
empty folder, {CANARY_DIR} a folder with files, {PORT} a port of loopback that somebody listens on.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Site:
    """Canaries in a folder that is the case's own, and a listener."""

    root: Path
    listener: socket.socket
    before: dict[str, str] = field(default_factory=dict)  # relative path -> text

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    def filled(self, case: dict[str, Any]) -> dict[str, Any]:
        """The case with its placeholders replaced; the invariants keep theirs."""
        places = {
            "{OUTSIDE_DIR}": str(self.outside),
            "{CANARY_DIR}": str(self.canary),
            "{PORT}": str(self.listener.getsockname()[1]),
        }
        text = json.dumps(case)
        for placeholder, value in places.items():
            text = text.replace(placeholder, value)
        return json.loads(text) | {"invariants": case.get("invariants", [])}

    def harm(self) -> list[str]:
        """What has changed since the site was made, in words."""
        after = texts_below(self.root)
        found = [f"{path} is new" for path in after.keys() - self.before.keys()]
        found += [f"{path} is gone" for path in self.before.keys() - after.keys()]
        both = self.before.keys() & after.keys()
        found += [f"{path} was changed" for path in both if after[path] != self.before[path]]
        try:
            self.listener.accept()[0].close()
            found.append("somebody connected to the listener")
        except BlockingIOError:
            pass
        return found


@contextmanager
def site_in(root: Path) -> Iterator[Site]:
    """A site below `root`; the working folder of the case lies two folders below it."""
    for name in ("outside", "canary/deeper", "work/repo"):
        (root / name).mkdir(parents=True)
    (root / "canary" / "song.txt").write_text("feathers")
    (root / "canary" / "deeper" / "song.txt").write_text("more feathers")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Site(root, listener, texts_below(root))


def texts_below(root: Path) -> dict[str, str]:
    """Relative path -> text of the files below a folder; empty folders end with a slash."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[f"{name}/"] = ""
        else:
            found[name] = path.read_text(errors="replace")
    return found


# ---- processes and memory ------------------------------------------------------------------------


def descendants() -> dict[int, int]:
    """Process -> resident memory in bytes, for every process below this one (Linux; else none)."""
    parents: dict[int, int] = {}
    memory: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended in the meantime
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
            memory[int(path.parent.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    below, found = {os.getpid()}, {}
    while newer := {pid for pid, parent in parents.items() if parent in below} - found.keys():
        found |= {pid: memory[pid] for pid in newer}
        below = newer
    return found


def own_memory() -> int:
    """Resident memory of this process in bytes; 0 where that cannot be told."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def settled(count: int, seconds: float) -> bool:
    """Whether at most `count` processes are below this one within some seconds."""
    deadline = time.monotonic() + seconds
    while len(descendants()) > count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Measures:
    """What a stretch of work took at most."""

    seconds: float = 0.0
    extra_mb: float = 0.0  # growth of this process and of all below it
    below_mb: float = 0.0  # all processes below this one


@contextmanager
def measured() -> Iterator[Measures]:
    """Watches time and memory of the block, twenty times a second."""
    measures, done = Measures(), threading.Event()
    start = own_memory() + sum(descendants().values())

    def watch() -> None:
        while True:
            below = sum(descendants().values())
            measures.below_mb = max(measures.below_mb, below / 2**20)
            measures.extra_mb = max(measures.extra_mb, (own_memory() + below - start) / 2**20)
            if done.wait(0.05):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        yield measures
    finally:
        measures.seconds = time.monotonic() - began
        done.set()
        watcher.join()
