"""The process that runs one answer. It holds the answer's code and the arguments of each call.

The tests and the values they expect never reach this process, so nothing in it is worth reading or
patching: the worst an answer can do here is to return what it likes, which is what functions do.
"""

import atexit
import contextlib
import os
import random
import select
import signal
import sys
import tempfile
import threading
import traceback
import types
from typing import Any

from .codec import OPERATORS, Codec, Gone, Handle, ProtocolError, receive, send

OUTPUT_LIMIT = 8 << 20  # bytes of standard output of one program run


class TestsFunction:
    """A function that the tests passed as an argument; calling it asks the judging process."""

    def __init__(self, server: "Server", handle: Handle) -> None:
        self._server, self._handle = server, handle
        self.__name__ = handle.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.call_back(self._handle, args, kwargs)


class Server:
    """Serves one answer's namespace over one socket."""

    def __init__(self, descriptor: int, namespace: dict[str, Any], shared: dict[str, type]) -> None:
        self.descriptor, self.namespace = descriptor, namespace
        self.codec = Codec(
            side=1,
            shared=shared,
            proxy=lambda handle: TestsFunction(self, handle),
            handle_of=lambda value: value._handle if type(value) is TestsFunction else None,
        )

    def serve(self) -> None:
        """Answer requests until the judging process is gone."""
        while True:
            self.answer(receive(self.descriptor))

    def answer(self, request: dict) -> None:
        """Do one request and send its result, or the exception it raised."""
        try:
            args, kwargs, target = self.codec.decode(request["message"])
            value = getattr(self, "do_" + request["what"])(request, target, args, kwargs)
            reply = {"what": "value", "message": self.codec.encode(value, list(args), kwargs)}
            send(self.descriptor, reply)
        except Gone:
            raise
        except BaseException as error:
            send(self.descriptor, report(error))

    def do_call(self, request: dict, target: Any, args: list, kwargs: dict) -> Any:
        target = self.namespace[request["name"]] if target is None else target
        return target(*args, **kwargs)

    def do_value(self, request: dict, target: Any, args: list, kwargs: dict) -> Any:
        """The value of a name of the answer; a missing one raises NameError."""
        if request["name"] not in self.namespace:
            raise NameError(f"name {request['name']!r} is not defined")
        return self.namespace[request["name"]]

    def do_attribute(self, request: dict, target: Any, args: list, kwargs: dict) -> Any:
        return getattr(target, request["name"])

    def do_assign(self, request: dict, target: Any, args: list, kwargs: dict) -> None:
        setattr(target, request["name"], args[0])

    def do_operator(self, request: dict, target: Any, args: list, kwargs: dict) -> Any:
        return OPERATORS[request["name"]](target, *args)

    def do_is_instance(self, request: dict, target: Any, args: list, kwargs: dict) -> bool:
        return isinstance(args[0], target)

    def do_next(self, request: dict, target: Any, args: list, kwargs: dict) -> list:
        """The next item in a list, or an empty list at the end of the iterator."""
        for item in target:
            return [item]
        return []

    def call_back(self, handle: Handle, args: tuple, kwargs: dict) -> Any:
        """Call a function of the tests, from within a call of the answer."""
        message = self.codec.encode(list(args), kwargs)
        send(self.descriptor, {"what": "call back", "number": handle.number, "message": message})
        while True:
            reply = receive(self.descriptor)
            if reply["what"] == "called back":
                (value,) = self.codec.decode(reply["message"])
                return value
            if reply["what"] == "raised":
                raise RuntimeError(f"the tests' function raised {reply['text']}")
            self.answer(reply)  # that function called the answer in turn


def report(error: BaseException) -> dict:
    """An exception as plain data: the names of its classes, its text and its arguments."""
    if isinstance(error, SystemExit):
        return {"what": "exit", "code": str(error.code)[:200]}
    names = [kind.__name__ for kind in type(error).__mro__]
    try:
        text = str(error)
    except Exception:  # its own __str__ may raise anything
        text = ""
    number = getattr(error, "errno", None)
    arguments = [item for item in error.args if type(item) in (str, int, bool, float)]
    return {
        "what": "error",
        "classes": names,
        "text": text[:1000],
        "arguments": [str(item)[:1000] if type(item) is str else repr(item) for item in arguments],
        "types": [type(item).__name__ for item in arguments],
        "errno": number if type(number) is int else None,
    }


def make_module(name: str) -> types.ModuleType:
    """A fresh module that dataclasses, pickle and typing can find under its name."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def shared_classes(namespace: dict[str, Any]) -> dict[str, type]:
    """Classes of the set-up whose instances can travel: those that `object.__new__` can make."""
    import enum

    special = (tuple, list, dict, set, frozenset, str, bytes, int, float, BaseException, enum.Enum)
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, type)
        and value.__module__ == namespace["__name__"]
        and value.__name__ == name
        and not issubclass(value, special)
    }


def serve_functions(descriptor: int, job: dict) -> None:
    """Load the answer, say how that went, then serve calls of its names."""
    module = make_module("answer")
    with contextlib.suppress(Exception):  # the tests' process runs it too, and reports its faults
        exec(compile(job["setup"], "<setup>", "exec"), module.__dict__)
    shared = shared_classes(module.__dict__)
    try:
        exec(compile(job["code"], "<answer>", "exec"), module.__dict__)
        # An answer that repeats a class of the set-up means that class: instances become its own.
        shared.update((name, module.__dict__[name]) for name in shared if name in module.__dict__)
        send(descriptor, {"what": "loaded"})
    except BaseException as error:
        send(descriptor, report(error))
    Server(descriptor, module.__dict__, shared).serve()


def serve_programs(descriptor: int, job: dict) -> None:
    """Run the answer as a program once per request, each run in a process of its own."""
    while True:
        request = receive(descriptor)
        send(descriptor, run_program(descriptor, job["code"], request["stdin"]))


def run_program(descriptor: int, code: str, text: str) -> dict:
    """Exit code, standard output and the end of the error output of one run."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as errors:
        stdin.write(text.encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(descriptor)
            for source, target in ((stdin.fileno(), 0), (write_end, 1), (errors.fileno(), 2)):
                os.dup2(source, target)
            os.closerange(3, 256)
            be_program(code)
        os.close(write_end)
        output, within = read_until_exit(read_end, child)
        os.close(read_end)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "stdout": output.decode("utf-8", "surrogateescape"),
            "stderr": errors.read()[-400:].decode("utf-8", "replace"),
            "within": within,
        }


def read_until_exit(descriptor: int, child: int) -> tuple[bytes, bool]:
    """What `child` writes up to its end, whoever else keeps the pipe open; cut at the limit."""
    os.set_blocking(descriptor, False)
    output, ended = bytearray(), False
    while True:
        select.select([descriptor], [], [], 0 if ended else 0.02)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(descriptor, 1 << 16):
                output += chunk
                if len(output) > OUTPUT_LIMIT:
                    os.kill(child, signal.SIGKILL)
                    return bytes(output[:OUTPUT_LIMIT]), False
            return bytes(output), True  # end of file
        if ended:
            return bytes(output), True
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def be_program(code: str) -> None:
    """Run `code` as __main__ on the standard streams and leave with its exit code."""
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace")
    status = 0
    try:
        exec(compile(code, "<answer>", "exec"), make_module("__main__").__dict__)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc(limit=-3)
        status = 1
    with contextlib.suppress(BaseException):
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 255)


def main(descriptor: int, job: dict) -> None:
    """Serve one answer until the other end of the socket closes."""
    random.seed(0)  # the same answer, the same verdict
    sys.argv = ["answer.py"]
    serve = serve_programs if job["kind"] == "program" else serve_functions
    with contextlib.suppress(Gone, ProtocolError):
        serve(descriptor, job)
    os._exit(0)
