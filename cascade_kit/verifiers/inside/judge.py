"""The process that runs the tests of one answer and gives the verdict. It never loads the answer.

The tests call stand-ins, which ask the answer's process over a socket and get plain data back, so
comparing is done here, by this process's own types. A verdict exists only if this process ends its
tests; whatever the other process prints, patches or exits with has no part in it.
"""

import os
import random
import sys
from typing import Any

from .answer import shared_classes
from .codec import Gone, ProtocolError, receive, send
from .instrument import Instrument, compiled, names_used
from .stand_ins import AnswerFault, Link, RemoteFunction


class Tally:
    """Which tests passed; the first failure is kept for the log."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.why = ""

    def success(self) -> None:
        self.passed += 1

    def failure(self, error: BaseException, source: str = "") -> None:
        self.failed += 1
        try:
            text = str(error)[:300]
        except (Exception, AnswerFault):  # it may hold an object of the answer
            text = ""
        self.why = self.why or f"{source.strip()[:200]}: {type(error).__name__} {text}".strip()


def bind_names(link: Link, names: list[str], entry_point: str | None) -> None:
    """Put the answer's values of `names` into the tests' namespace, as far as it has them.

    Where tests forgot to import a module, an answer must not supply a `math` of its own.
    """
    for name in names:
        try:
            value = link.request("value", name)
        except NameError:
            if name == entry_point:
                raise
            continue
        is_function = type(value) is RemoteFunction and value._handle.kind == "function"
        if not is_function and name in sys.stdlib_module_names:
            value = sys.modules.get(name, value)
        link.namespace[name] = value
        if type(value) is RemoteFunction and value._handle.kind == "class":
            link.own_classes = True


def run_tests(descriptor: int, job: dict) -> dict:
    """The verdict on an answer that is called function by function."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    link, tally = Link(descriptor, namespace), Tally()
    namespace["__settle__"] = link.settle
    namespace["__success__"], namespace["__failure__"] = tally.success, tally.failure
    instrument = Instrument(count_asserts=job["whole"])
    try:
        setup = compiled(job["setup"], Instrument(count_asserts=False))
        tests = [compiled(source, instrument) for source in job["tests"]]
    except SyntaxError as error:
        return {"bad tests": f"the tests do not parse: {error}"}
    total = max(instrument.asserts, 1) if job["whole"] else len(tests)
    try:
        link.load()
        entry_point = job["entry_point"]
        bind_names(link, names_used([job["setup"], *job["tests"]], entry_point), entry_point)
        exec(setup, namespace)
        link.codec.shared = shared_classes(namespace)
    except (Exception, AnswerFault) as error:
        if isinstance(error, ImportError) and error is not link.raised:
            return {"bad tests": f"the set-up of the tests fails: {error}"}
        tally.failure(error, "loading the answer")
    else:
        run_each(tests, job, namespace, tally)
    # No failure is not enough: every counted assert must have been reached.
    finished = tally.failed == 0 and not link.fault and tally.passed >= instrument.asserts
    passed = total if finished else min(tally.passed, total - 1)
    verdict, why = link.cause or ("failed", "")
    told = tally.why or link.fault or "not every assert of the tests was reached"
    detail = "" if finished else f"{why} {told}".strip()
    return {
        "verdict": "passed" if finished else verdict,
        "passed": passed,
        "total": total,
        "detail": detail,
    }


def run_each(tests: list, job: dict, namespace: dict[str, Any], tally: Tally) -> None:
    """Run the tests in order in one namespace; a test that only returns is a success."""
    for code, source in zip(tests, job["tests"], strict=True):
        try:
            exec(code, namespace)
        except SystemExit as error:  # of the tests themselves: unittest.main() ends this way
            if error.code not in (None, 0, False):
                tally.failure(error, source)
        except (Exception, AnswerFault) as error:
            tally.failure(error, source)
        else:
            if not job["whole"]:
                tally.success()


def run_programs(descriptor: int, job: dict) -> dict:
    """The verdict on an answer that reads standard input and writes standard output."""
    tally = Tally()
    for number, case in enumerate(job["io"], 1):
        try:
            send(descriptor, {"stdin": case["stdin"]})
            ran = receive(descriptor)
            problem = program_fault(ran, case["stdout"])
        except (Gone, ProtocolError, KeyError, TypeError):
            problem = "the answer ended the process it runs in"
        if problem is None:
            tally.success()
        else:
            tally.failure(AssertionError(problem), f"input {number}")
    total = len(job["io"])
    verdict = "passed" if tally.passed == total else "failed"
    if "MemoryError" in tally.why:
        verdict = "memory"
    return {"verdict": verdict, "passed": tally.passed, "total": total, "detail": tally.why}


def program_fault(ran: dict, expected: str) -> str | None:
    """What is wrong with one run, None if nothing is."""
    if ran["code"] != 0:
        last_line = str(ran["stderr"]).strip().rpartition("\n")[2]
        return f"exit code {ran['code']} {last_line}".strip()
    if not ran["within"]:
        return "more output than allowed"
    return None if same_output(ran["stdout"], expected) else f"wrong output {ran['stdout'][:100]!r}"


def same_output(output: str, expected: str) -> bool:
    """Equal line by line; blanks at the ends of lines and empty lines at the end do not count."""
    lines = [[line.rstrip() for line in text.rstrip().splitlines()] for text in (output, expected)]
    return lines[0] == lines[1]


def main(descriptor: int, report: int, job: dict) -> None:
    """Give the verdict on one answer and write it to file descriptor `report`."""
    random.seed(0)
    run = run_programs if job["kind"] == "program" else run_tests
    try:
        verdict = run(descriptor, job)
    except MemoryError:
        verdict = {"verdict": "memory", "passed": 0, "total": 1, "detail": "the result is too big"}
    send(report, verdict)
    os._exit(0)
