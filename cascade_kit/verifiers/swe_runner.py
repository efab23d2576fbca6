"""The program that runs the tests of one SWE answer inside the sandbox; started by swe_tests.py.

It imports pytest before any file of the repository can, remembers what pytest, unittest and the
builtins are made of, and reports each test as a signed line on a copy of standard output. The key
comes in a file that is gone before the first line of patched code runs. Signing uses only objects
written in C, which patched code cannot replace.

Of the installed packages only pytest and what it needs can be imported (and what the task names):
a verdict must not depend on what else a machine has.
"""

import hashlib
import os
import signal
import sys
import types
from importlib.machinery import PathFinder
from importlib.util import find_spec

WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "builtins", "importlib")
PYTEST_ITSELF = ("_getini_unknown_type", "_reprcompare")  # replaced by pytest while it runs
PYTEST_ADDS = frozenset(  # names that pytest gives to its classes while it runs
    ("fspath", "startdir", "invocation_dir", "rootdir", "inifile", "makedir")
)
CODE = ("__code__", "__defaults__", "__kwdefaults__")
MEMBERS = (types.FunctionType, classmethod, staticmethod, property)


class OnlyNamed:
    """Finds installed packages by an allow-list of top-level names."""

    def __init__(self, folders, names):
        self.folders, self.names = folders, names

    def find_spec(self, name, path=None, target=None):
        if path is None and name in self.names:
            return PathFinder.find_spec(name, self.folders, target)
        return None


def make_sender(key):
    """send(*fields): one signed, numbered line on a copy of standard output."""
    write, output = os.write, os.dup(1)
    mac = hashlib.blake2b(key=key, digest_size=16)
    number = 0

    def send(*fields):
        nonlocal number
        plain = (field.translate({10: 32, 13: 32, 30: 32, 31: 32}) for field in fields)
        body = "\x1f".join((str(number), *plain))
        signed = mac.copy()
        signed.update(body.encode())
        write(output, f"\x1e{signed.hexdigest()}\x1f{body}\n".encode())
        number += 1

    return send


def is_watched(name):
    """True for modules that decide what a passed test is."""
    return name.split(".")[0] in WATCHED


def parts_of(module_name, value):
    """(owner, attribute, object) of a function's code and of a class's methods."""
    if isinstance(value, types.FunctionType):
        return [(value, attribute, getattr(value, attribute)) for attribute in CODE]
    if isinstance(value, type) and is_watched(value.__module__) and module_name != "builtins":
        members = [(name, part) for name, part in vars(value).items() if isinstance(part, MEMBERS)]
        codes = [(m, "__code__", m.__code__) for _, m in members if hasattr(m, "__code__")]
        names = (value, "new attributes", frozenset(vars(value)))
        return [*((value, name, part) for name, part in members), *codes, names]
    return []


def remember():
    """[(owner, attribute, object)] of everything watched, and of the module table itself."""
    seen = []
    for name, module in list(sys.modules.items()):
        if not is_watched(name) or not isinstance(module, types.ModuleType):
            continue
        seen.append((sys.modules, name, module))
        for attribute, value in list(vars(module).items()):
            if callable(value):
                seen.append((module, attribute, value))
                seen.extend(parts_of(name, value))
    return [entry for entry in seen if entry[1] not in PYTEST_ITSELF]


def first_change(seen):
    """The name of the first object that is not what it was, "" if all are."""
    for owner, attribute, value in seen:
        if attribute == "new attributes":
            added = [vars(owner)[name] for name in vars(owner).keys() - value - PYTEST_ADDS]
            now = None if any(hasattr(type(part), "__get__") for part in added) else value
        elif type(owner) is dict:
            now = owner.get(attribute)
        elif isinstance(owner, type):
            now = vars(owner).get(attribute)
        else:
            now = getattr(owner, attribute, None)
        if now is not value:
            return f"{getattr(owner, '__name__', 'sys.modules')}.{attribute}"
    return "sys.settrace" if sys.gettrace() or sys.getprofile() else ""


class Reporter:
    """The pytest plugin: keeps the wanted tests, times them, reports each phase and each change."""

    def __init__(self, send, fail, wanted, cpu_seconds, wall_seconds):
        self.send, self.fail, self.wanted = send, fail, wanted
        self.cpu_seconds, self.wall_seconds = cpu_seconds, wall_seconds
        self.seen, self.changed, self.session, self.stopped_once = remember(), "", None, False
        self.timer, self.leave = signal.setitimer, os._exit

    def pytest_sessionstart(self, session):
        self.session = session
        signal.signal(signal.SIGPROF, self.too_long)
        self.start_timer()

    def start_timer(self):
        self.stopped_once = False
        self.timer(signal.ITIMER_PROF, self.cpu_seconds, 1)

    def pytest_collection_finish(self):
        self.timer(signal.ITIMER_PROF, 0)

    def stop(self):
        self.send("stopped")
        self.session.shouldstop = "a test takes too long"

    def pytest_collection_modifyitems(self, config, items):
        kept = [i for i in items if {i.nodeid, i.nodeid.partition("[")[0]} & self.wanted]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_logstart(self, nodeid):
        self.start_timer()

    def pytest_runtest_logfinish(self, nodeid):
        self.timer(signal.ITIMER_PROF, 0)

    def too_long(self, number, frame):
        if self.stopped_once:  # the test caught the first exception
            self.leave(1)
        self.stopped_once = True
        self.stop()
        self.fail(f"more than {self.cpu_seconds} CPU seconds")

    def pytest_runtest_logreport(self, report):
        subtest = type(report).__name__ == "SubtestReport"  # one test may have many
        phase = "subtest" if subtest else report.when
        self.send("phase", report.nodeid, phase, report.outcome)
        if report.duration > 0.9 * self.wall_seconds:  # pytest-timeout has ended it
            self.stop()
        if report.when == "teardown":
            self.look()

    def pytest_collectreport(self, report):
        if report.failed:
            self.send("uncollected", report.nodeid, str(report.longrepr)[-500:])

    def look(self):
        if not self.changed and (changed := first_change(self.seen)):
            self.changed = changed
            self.send("tampered", changed)


def main():
    with open("swe_job.txt", encoding="utf-8") as file:
        job = [field.split("\n") for field in file.read().split("\x00")]
    os.unlink("swe_job.txt")
    os.unlink(__file__)
    [key], roots, folders, names, seconds, arguments, wanted = job
    send, here = make_sender(bytes.fromhex(key)), os.getcwd()
    del key, job
    sys.path[:] = [path for path in sys.path if path not in folders]
    sys.meta_path.append(OnlyNamed(folders, names))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import unittest.async_case
    import unittest.mock

    import pytest

    if find_spec("pytest_timeout") is None:
        raise SystemExit("pytest-timeout is not installed")
    sys.path[:0] = [os.path.normpath(os.path.join(here, root)) for root in roots]
    # Last of all hooks, so that nothing selects after this one.
    pytest.hookimpl(trylast=True)(Reporter.pytest_collection_modifyitems)
    reporter = Reporter(send, pytest.fail, frozenset(wanted), *map(float, seconds))
    send("start", pytest.__version__, unittest.mock.__name__)
    code = pytest.main(arguments, plugins=[reporter])
    reporter.look()
    send("end", str(int(code)))
    reporter.leave(int(code))


if __name__ == "__main__":
    main()
