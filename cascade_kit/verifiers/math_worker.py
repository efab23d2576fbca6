r"""The process that runs math_expressions.py; started, watched and ended by math_answer.py.

Computer algebra on a model's text may never end, so it lives in its own process: a CPU timer of
that process ends it, the parent reports "timeout". math-verify's own timeouts use SIGALRM, which
works in a main thread only, and are switched off.
"""

import json
import logging
import os
import sys
from typing import Any, TextIO

from cascade_kit.verifiers.math_compare import same
from cascade_kit.verifiers.math_expressions import BadGold, check, leaf

MEMORY_MB = 900  # on top of what the imports take


def reply_to(job: dict[str, Any]) -> dict[str, Any]:
    """{"equal": bool} for a comparison, {"ok": True} for a check, {"bad_gold": part} else."""
    try:
        if job["op"] == "check":
            check(job["leaves"])
            return {"ok": True}
        return {"equal": same(job["gold"], job["answer"], leaf)}
    except BadGold as fault:
        return {"bad_gold": str(fault)}
    except MemoryError:
        return {"memory": True}


def _limit_memory() -> None:
    """Lets this process grow by MEMORY_MB at most, where the system can do that."""
    try:
        import resource  # POSIX only
    except ImportError:
        return
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_MB * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(jobs: TextIO, replies: TextIO) -> None:
    import signal

    timer = getattr(signal, "setitimer", None)  # absent on Windows: the parent's clock rules
    for line in jobs:
        job = json.loads(line)
        if timer:  # SIGPROF counts CPU time and, without a handler, ends the process
            timer(signal.ITIMER_PROF, job["seconds"])
        reply = reply_to(job)
        if timer:
            timer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    """Answers jobs, one JSON object a line, until the parent closes the pipe."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its timeouts are off
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is not a reply
    sys.set_int_max_str_digits(0)
    leaf("x+1", "x+2")  # loads the grammar, about half a second
    if os.path.exists("/proc/self/statm"):
        _limit_memory()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    _serve(sys.stdin, replies)
