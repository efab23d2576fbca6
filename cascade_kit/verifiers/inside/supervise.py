"""Watch over a tree of processes: count its CPU seconds, memory and members, and end all of it.

Run as a program (`main`) it is the first process of a sandbox that runs one command: it reads the
job as JSON from its standard input, starts the command confined, and reports on its own pipe how
the command ended. The command can neither signal nor trace it, nor write to that pipe.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import confinement

POLL_SECONDS = 0.04


@dataclass
class Usage:
    """What a tree of processes uses now; `busy` when any of them runs or waits for the disk."""

    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    processes: int = 0
    busy: bool = False


@dataclass(frozen=True)
class Limits:
    """The limits of one tree; `idle_seconds` is time in which every process of it sleeps."""

    cpu_seconds: float
    idle_seconds: float
    wall_seconds: float
    memory_mb: int
    processes: int


def descendants(ancestor: int) -> Iterator[int]:
    """Process ids of all living children, grandchildren, ... of `ancestor`."""
    listed = os.path.exists(f"/proc/{ancestor}/task/{ancestor}/children")
    table = None if listed else parents_of_all()
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        children = (
            children_of(parent) if table is None else [p for p in table if table[p] == parent]
        )
        waiting += children
        yield from children


def children_of(parent: int) -> list[int]:
    """Children by the kernel's own list, which not every kernel has."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            text = Path(f"/proc/{parent}/task/{thread}/children").read_text()
            found += map(int, text.split())
    return found


def parents_of_all() -> dict[int, int]:
    """Process id -> parent's id of every process, by /proc or, without one (macOS), by ps."""
    if not os.path.isdir("/proc/self"):
        table = subprocess.run(["/bin/ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        return {int(pid): int(ppid) for pid, ppid in map(str.split, table.stdout.splitlines())}
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    return found


def usage_of_children() -> Usage:
    """The use of this process's descendants, those that ended included in the CPU seconds."""
    import resource

    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = Usage(cpu_seconds=ended.ru_utime + ended.ru_stime)
    for process in descendants(os.getpid()):
        try:
            text = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
        total.processes += 1
        total.busy |= fields[0] in "RD"
        total.cpu_seconds += sum(map(int, fields[11:15])) / ticks
        total.memory_mb += int(fields[21]) * page / 2**20
    return total


class Watch:
    """Compares the use of the children with their limits; call `exceeded` a few times a second."""

    def __init__(self, limits: Limits, cpu_before: float = 0.0) -> None:
        self.limits, self.cpu_before = limits, cpu_before
        self.started = self.looked = time.monotonic()
        self.idle_seconds = self.cpu_seconds = 0.0

    def exceeded(self) -> str | None:
        """The limit that is passed, "timeout", "memory" or "processes", or None."""
        now, use = time.monotonic(), usage_of_children()
        cpu_seconds = use.cpu_seconds - self.cpu_before
        if not use.busy and cpu_seconds <= self.cpu_seconds:
            self.idle_seconds += now - self.looked
        self.looked, self.cpu_seconds = now, cpu_seconds
        if use.memory_mb > self.limits.memory_mb:
            return "memory"
        if use.processes > self.limits.processes:
            return "processes"
        late = now - self.started > self.limits.wall_seconds
        slow = cpu_seconds > self.limits.cpu_seconds
        return "timeout" if late or slow or self.idle_seconds > self.limits.idle_seconds else None


def end_all_children() -> None:
    """Kill every descendant and collect it; needs the subreaper bit or to be process 1."""
    while True:
        for process in list(descendants(os.getpid())):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)  # some are still ending
        except ChildProcessError:
            return


def remove_folder(folder: str) -> None:
    """Remove a folder that foreign code could fill as it liked, however deep it nested it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        subprocess.run(["/bin/rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def adopt_orphans() -> None:
    """Orphans of the tree become children of this process; no other process may look into it.

    Without a handler, process 1 of a namespace gets no signals from inside it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        confinement.prctl(confinement.PR_SET_CHILD_SUBREAPER, 1)
        confinement.prctl(confinement.PR_SET_DUMPABLE, 0)


def end_children_on_request() -> None:
    """Have SIGTERM end this process and all below it, where no namespace does that."""

    def stop(_signal: int, _frame: object) -> None:
        end_all_children()
        sys.exit(1)

    signal.signal(signal.SIGTERM, stop)


def wait_for_child(seconds: float) -> None:
    """Sleep until a child ends, at most `seconds`."""
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
    else:
        time.sleep(seconds)


def confine(job: dict, folder: str) -> None:
    """Make this process the sandboxed one: its user, its folder, its limits, its filters."""
    os.setsid()
    if job["user"] is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for name, text in job["files"].items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(text))
    confinement.set_limits(**job["process_limits"])
    if job["layer"] == "bubblewrap":
        confinement.drop_capabilities()
        confinement.filter_system_calls(namespaces=True)
    elif job["layer"] == "landlock":
        devices = ["/dev/null", "/dev/zero", "/dev/full"]
        confinement.restrict_files([*job["readable"], "/dev/urandom"], [folder, *devices])
        confinement.filter_system_calls(namespaces=False)
    default_signals()


def default_signals() -> None:
    """Undo what Python and `adopt_orphans` changed; an exec would hand it on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for name in ("SIGINT", "SIGTERM", "SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def start(job: dict, folder: str, fault: int) -> int:
    """Fork the confined command; a fault before its first instruction is written to `fault`."""
    child = os.fork()
    if child:
        return child
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        confine(job, folder)
        os.execve(job["argv"][0], job["argv"], job["env"])
    except BaseException as error:
        os.write(fault, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(127)


def other_end_is_closed(descriptor: int) -> bool:
    """Whether nothing holds the other end of a pipe any more: the host ended, however it did."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def supervise(job: dict, folder: str, report: int) -> dict:
    """Run the command of `job` to its end or its limits; returns the report for the host.

    A host that closes its end of `report` ends the command too.
    """
    adopt_orphans()
    read_fault, write_fault = os.pipe()  # not inheritable: closed by the exec
    child = start(job, folder, write_fault)
    os.close(write_fault)
    watch, reason, status = Watch(Limits(**job["limits"])), None, None
    while status is None and reason is None and not other_end_is_closed(report):
        wait_for_child(POLL_SECONDS)
        reason = watch.exceeded()
        ended = -1
        while ended:  # collect orphans as well, or they would count as processes
            ended, code = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                status = code
                break
    end_all_children()
    fault = os.read(read_fault, 2000).decode(errors="replace")
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return {"reason": reason, "returncode": code, "fault": fault, "cpu": watch.cpu_seconds}


def main(report: int) -> None:
    """Read a job from standard input, run it, write the report to file descriptor `report`."""
    os.set_inheritable(report, False)
    job = json.load(sys.stdin)
    try:
        if job["layer"] != "bubblewrap":
            end_children_on_request()
        outcome = supervise(job, job["folder"], report)
    finally:
        if job["layer"] != "bubblewrap":  # the host may be gone, and the folder lies on its disk
            remove_folder(job["folder"])
    with contextlib.suppress(BrokenPipeError):
        os.write(report, json.dumps(outcome).encode())
