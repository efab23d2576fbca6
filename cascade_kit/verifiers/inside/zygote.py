"""The preloaded parent of a pool: forks, for each verdict, one process for the answer, one for the
tests, watches over both, ends both, and passes the verdict on. It runs neither model text nor
tests, and neither ever enters its memory, so that nothing of one verdict is left for the next.

Both children read their part of the job from the same pipe, one after the other: first a header
(limits), read here, then the answer's part, then the tests' part.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable

from . import answer, confinement, judge
from .codec import Gone, receive, send
from .supervise import (
    POLL_SECONDS,
    Limits,
    Watch,
    adopt_orphans,
    default_signals,
    end_all_children,
    end_children_on_request,
    other_end_is_closed,
    remove_folder,
    usage_of_children,
    wait_for_child,
)

PRELOADED = """
    abc array bisect calendar cmath collections copy dataclasses datetime decimal enum fractions
    functools hashlib heapq inspect io itertools json math numbers operator queue random re
    secrets statistics string struct textwrap time types typing unittest uuid warnings
    zlib concurrent.futures contextlib difflib pprint
""".split()
# Descriptors in both children: the socket between them, the pipe for the verdict (leads nowhere in
# the answer's process), the pipe for faults of this program (closed before foreign code runs).
CHANNEL, REPORT, FAULT = 3, 4, 5
JUDGE_MEMORY_MB = 1024


def isolate(header: dict, user: int | None, folder: str) -> None:
    """Give a child its own empty /tmp, hide /proc from it, and change to its own user."""
    library = confinement.c_library()
    if header["layer"] == "bubblewrap":
        confinement.checked(library.unshare(confinement.CLONE_NEWNS), "unshare")
        private = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC
        confinement.checked(library.mount(b"none", b"/", None, private, None), "mount /")
        options = f"size={header['temporary_mb']}m,nr_inodes=10k,mode=1777".encode()
        for target, read_only, data in (
            (b"/proc", 1, b"size=4k"),
            (b"/dev/shm", 0, options),
            (header["private"].encode(), 0, options),
        ):
            flags = ctypes.c_ulong(confinement.MS_NOSUID_NODEV | read_only)
            result = library.mount(b"none", target, b"tmpfs", flags, data)
            confinement.checked(result, f"mount {target.decode()}")
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.setsid()
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def restrict(header: dict, folder: str, memory_mb: int) -> None:
    """The last step before foreign code runs: limits, then the filters that nothing lifts."""
    limits = header["process_limits"] | {"memory_mb": memory_mb}
    confinement.set_limits(**limits)
    if header["layer"] == "bubblewrap":
        confinement.drop_capabilities()
        confinement.filter_system_calls(namespaces=True)
    elif header["layer"] == "landlock":
        devices = ["/dev/null", "/dev/zero", "/dev/full"]
        confinement.restrict_files([*header["readable"], "/dev/urandom"], [folder, *devices])
        confinement.filter_system_calls(namespaces=False)
    default_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python itself has it
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def take_places(channel: int, report: int, fault: int) -> None:
    """Put the child's descriptors at their numbers and close all others but the job's pipe."""
    high = [os.dup2(number, 100 + place) for place, number in enumerate((channel, report, fault))]
    for place, number in zip((CHANNEL, REPORT, FAULT), high, strict=True):
        os.dup2(number, place)
    os.closerange(FAULT + 1, 4096)
    lead_nowhere(1, 2)


def lead_nowhere(*numbers: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(nothing, number)
    os.close(nothing)


def answer_process(header: dict) -> None:
    """The child that runs the answer: reads its part of the job, then lets the other child go."""
    job = receive(0)
    lead_nowhere(0, REPORT)
    os.write(CHANNEL, b"\0")
    isolate(header, *header["answer"])
    restrict(header, header["answer"][1], header["process_limits"]["memory_mb"])
    lead_nowhere(FAULT)
    answer.main(CHANNEL, job)


def judging_process(header: dict) -> None:
    """The child that runs the tests; it reads them itself, after the answer's part was read."""
    if os.read(CHANNEL, 1) != b"\0":
        raise Gone
    job = receive(0, limit=1 << 30)
    lead_nowhere(0)
    isolate(header, *header["judge"])
    restrict(header, header["judge"][1], JUDGE_MEMORY_MB)
    judge.main(CHANNEL, REPORT, job)


def fork(header: dict, run: Callable[[dict], None], *descriptors: int) -> int:
    """Fork a child, as the first process of a process namespace where there are namespaces."""
    if header["layer"] == "bubblewrap":
        library, own = confinement.c_library(), os.open("/proc/self/ns/pid", os.O_RDONLY)
        confinement.checked(library.setns(own, confinement.CLONE_NEWPID), "setns")
        confinement.checked(library.unshare(confinement.CLONE_NEWPID), "unshare")
        os.close(own)
    parent, child = os.getpid(), os.fork()
    if child:
        return child
    try:
        if header["layer"] != "bubblewrap":  # namespaces end with their first process anyway
            confinement.die_with_parent(signal.SIGKILL, parent)
        take_places(*descriptors)
        run(header)
    except BaseException as error:
        text = "".join(traceback.format_exception(error, limit=-4))
        with contextlib.suppress(OSError):
            os.write(FAULT, text[-3000:].encode())
    os._exit(1)


def one_verdict(header: dict) -> dict:
    """Fork both processes, watch them until the judging one ends, end everything."""
    with contextlib.ExitStack() as stack:
        for role in ("answer", "judge"):
            folder = header["private"]
            if header["layer"] != "bubblewrap":
                folder = tempfile.mkdtemp(prefix=f"{role}-")
                stack.callback(remove_folder, folder)
                if header["users"][role] is not None:
                    os.chown(folder, header["users"][role], header["users"][role])
            header[role] = (header["users"][role], folder)
        stack.callback(end_all_children)
        pipes = [os.pipe(), os.pipe()]
        sockets = [end.detach() for end in socket.socketpair()]
        read_report, read_fault = (os.fdopen(ends[0], "rb") for ends in pipes)
        (_, report), (_, fault) = pipes
        watch = Watch(Limits(**header["limits"]), usage_of_children().cpu_seconds)
        fork(header, answer_process, sockets[0], report, fault)
        judging = fork(header, judging_process, sockets[1], report, fault)
        for number in (*sockets, report, fault):
            os.close(number)
        reason, status = watch_until(judging, watch)
    with read_report, read_fault:
        text = read_fault.read().decode(errors="replace")
        verdict = conclude(reason, status, read_report.fileno(), text)
    return verdict | {"cpu_seconds": watch.cpu_seconds, "limit": reason}


def watch_until(judging: int, watch: Watch) -> tuple[str | None, int | None]:
    """(limit that was passed, exit code of the judging process); one of them is None."""
    while True:
        wait_for_child(POLL_SECONDS)
        pid = -1
        while pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == judging:
                return None, os.waitstatus_to_exitcode(status)
        if reason := watch.exceeded():
            return reason, None
        if other_end_is_closed(0):  # the host's
            sys.exit()  # on the way out `one_verdict` leaves nothing behind


def conclude(reason: str | None, status: int | None, report: int, fault: str) -> dict:
    """The verdict of the judging process, or the limit that kept it from giving one."""
    nothing = {"passed": 0, "total": 1}
    if reason in ("timeout", "memory"):
        return nothing | {"verdict": reason, "detail": f"over the {reason} limit"}
    if reason == "processes":
        return nothing | {"verdict": "forbidden", "detail": "more processes than allowed"}
    if fault:
        return {"fault": fault}
    try:
        return receive(report)
    except Gone:
        if status in (-signal.SIGKILL, -signal.SIGXCPU):
            return nothing | {"verdict": "timeout", "detail": "the tests ran out of CPU time"}
        return {"fault": f"the judging process ended with code {status} and no verdict"}


def main(layer: str) -> None:
    """Give one verdict after another until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.argv = ["answer.py"]
    if sys.platform == "linux":
        confinement.system_call_filter(namespaces=layer == "bubblewrap")  # kept for the children
    adopt_orphans()
    if layer != "bubblewrap":
        end_children_on_request()
    gc.collect()
    gc.freeze()
    send(1, {"ready": True})
    while True:
        try:
            header = receive(0)
        except Gone:
            return
        try:
            verdict = one_verdict(header)
        except OSError as error:
            verdict = {"fault": f"{type(error).__name__}: {error}"}
        send(1, verdict)


def frame(text: bytes) -> bytes:
    """`text` as one message of `codec.receive`."""
    return struct.pack(">I", len(text)) + text
