"""What the tests hold instead of an answer's functions and objects, and the link behind them.

A stand-in asks the answer's process and gives plain data back, made by this process from its own
types. `Link` is the judging process's end of the socket.
"""

import builtins
import collections
import errno
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .codec import OPERATORS, Codec, Gone, Handle, ProtocolError, receive, send

FORBIDDEN_ERRORS = {
    errno.EPERM: "an operation that the sandbox refuses",
    errno.EACCES: "a file outside the work folder",
    errno.EROFS: "writing outside the work folder",
    errno.EAGAIN: "more processes or threads than allowed",
    errno.ENETUNREACH: "the network",
    errno.EFBIG: "a file larger than allowed",
    errno.ENOSPC: "more file space than allowed",
}
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


class AnswerFault(BaseException):
    """The answer ended itself or broke the protocol; no `except Exception` of a test hides it."""


class Link:
    """The judging end of the socket: turns uses of stand-ins into requests."""

    def __init__(self, descriptor: int, namespace: dict[str, Any]) -> None:
        self.descriptor, self.namespace = descriptor, namespace
        self.fault: str | None = None  # set once and for all
        self.cause: tuple[str, str] | None = None  # (verdict, why) of an error with a known cause
        self.raised: Exception | None = None  # the last exception that came from the answer
        self.own_classes = False  # whether the tests name a class of the answer
        self.changes: list[tuple[Any, Any]] = []  # (argument, what the answer made of it)
        self.codec = Codec(side=0, proxy=self.stand_in, handle_of=handle_of)

    def load(self) -> None:
        """Wait until the answer is loaded; raises what its code raised at the top level."""
        try:
            reply = receive(self.descriptor)
            error = None if reply["what"] == "loaded" else self.result(reply, (), {})[1]
        except (Gone, ProtocolError, KeyError, TypeError, ValueError):
            error, self.fault = None, "the answer ended the process it runs in while loading"
        if self.fault:
            raise AnswerFault(self.fault)
        if error is not None:
            raise error

    def stand_in(self, handle: Handle) -> Any:
        if handle.kind == "exception":
            return type(handle.name, (Exception,), {"__module__": "answer"})
        if handle.kind == "module":
            known = handle.name.partition(".")[0] in sys.stdlib_module_names
            return (known and sys.modules.get(handle.name)) or Opaque(self, handle)
        kinds = {"function": RemoteFunction, "class": RemoteFunction, "iterator": RemoteIterator}
        default = RemoteObject if self.own_classes else Opaque
        return kinds.get(handle.kind, default)(self, handle)

    def request(
        self,
        what: str,
        name: str = "",
        target: Any = None,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Ask the answer's process; returns its value or raises what it raised."""
        self.settle()
        if self.fault:
            raise AnswerFault(self.fault)
        try:
            message = self.codec.encode(list(args), kwargs or {}, target)
            send(self.descriptor, {"what": what, "name": name, "message": message})
            reply = receive(self.descriptor)
            while reply["what"] == "call back":
                self.serve_call_back(reply)
                reply = receive(self.descriptor)
            value, error = self.result(reply, args, kwargs or {}, name)
        except Gone:
            self.fault = "the answer ended the process it runs in"
        except (ProtocolError, KeyError, TypeError, ValueError) as problem:
            self.fault = f"the answer does not keep to plain data: {problem}"
        if self.fault:
            raise AnswerFault(self.fault)
        if error is not None:
            raise error
        return value

    def result(
        self, reply: dict, args: tuple, kwargs: dict, name: str = ""
    ) -> tuple[Any, Exception | None]:
        """(value, None) or (None, the exception that the answer raised)."""
        if reply["what"] == "value":
            value, changed, changed_kwargs = self.codec.decode(reply["message"])
            self.changes += zip(args, changed, strict=True)
            self.changes += [(kwargs[key], changed_kwargs[key]) for key in kwargs]
            return value, None
        if reply["what"] == "error":
            return None, self.rebuild(reply, may_stop=name == "__next__")
        self.fault = f"the answer called exit ({reply['code']})"
        return None, None

    def rebuild(self, reply: dict, may_stop: bool) -> Exception:
        """The exception that the answer raised, as the nearest class that this side knows.

        A StopIteration out of place would end a loop of the tests as if all of it had passed.
        """
        text, number = str(reply["text"]), reply["errno"]
        if "MemoryError" in reply["classes"]:
            self.cause = self.cause or ("memory", "the answer ran out of memory")
        if number in FORBIDDEN_ERRORS:
            self.cause = self.cause or ("forbidden", FORBIDDEN_ERRORS[number])
        makers = {"str": str, "int": int, "float": float, "bool": "True".__eq__}
        arguments = [
            makers[kind](item)
            for kind, item in zip(reply["types"], reply["arguments"], strict=True)
        ]
        if "StopIteration" in reply["classes"] and not may_stop:
            return self.mark(RuntimeError("the answer raised StopIteration"))
        for name in map(str, reply["classes"]):
            kind = self.namespace.get(name, getattr(builtins, name, None))
            if isinstance(kind, type) and issubclass(kind, Exception):
                try:
                    return self.mark(kind(*(arguments or [text])))
                except TypeError:  # a class with a signature of its own
                    break
        return self.mark(RuntimeError(text))

    def mark(self, error: Exception) -> Exception:
        self.raised = error
        return error

    def serve_call_back(self, request: dict) -> None:
        """The answer calls a function that the tests gave it."""
        args, kwargs = self.codec.decode(request["message"])
        function = self.codec.objects[request["number"]]
        try:
            value = function(*args, **kwargs)
            reply = {"what": "called back", "message": self.codec.encode(value)}
        except Exception as error:
            reply = {"what": "raised", "text": f"{type(error).__name__}: {error}"[:300]}
        send(self.descriptor, reply)

    def settle(self) -> None:
        """Make the changes that the answer made to its arguments, once a statement has ended.

        Not before: in `assert f(x) == sorted(x)` the author means the x that f was given.
        """
        changes, self.changes = self.changes, []
        for original, changed in changes:
            assign(original, changed)


def assign(original: Any, changed: Any) -> None:
    """Give a mutable built-in container the contents of another one of its type, in place."""
    if type(original) is not type(changed):
        return
    if isinstance(original, list):
        same = len(original) == len(changed)
        for index, item in enumerate(changed if same else ()):
            if type(original[index]) is type(item) and isinstance(item, (list, dict, set)):
                assign(original[index], item)
                changed[index] = original[index]
        original[:] = changed
    elif isinstance(original, (bytearray, collections.deque)):
        original.clear()
        original.extend(changed)
    elif isinstance(original, (dict, set)):
        original.clear()
        original.update(changed)


class Opaque:
    """An object that the tests can only pass on: they name no class of the answer."""

    def __init__(self, link: Link, handle: Handle) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)


class RemoteFunction(Opaque):
    """A function or class of the answer; its results are plain data or stand-ins."""

    def __init__(self, link: Link, handle: Handle) -> None:
        super().__init__(link, handle)
        self.__name__ = self.__qualname__ = handle.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.request("call", target=self, args=args, kwargs=kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._handle.kind != "class":
            raise AttributeError(name)
        return self._link.request("attribute", name, self)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, RemoteObject) and bool(
            self._link.request("is_instance", target=self, args=(value,))
        )


class RemoteIterator(Opaque):
    """A generator or other iterator of the answer, read item by item."""

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        item = self._link.request("next", target=self)
        if not item:
            raise StopIteration
        return item[0]


class RemoteObject(Opaque):
    """An instance of a class of the answer, in tests that name such a class."""

    def __getattr__(self, name: str) -> Any:
        return self._link.request("attribute", name, self)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.request("assign", name, self, (value,))


def _operator(name: str) -> Callable[..., Any]:
    def method(self: RemoteObject, *args: Any) -> Any:
        # With plain data an answer's own comparison has no say: it could agree to anything.
        if name in COMPARISONS and not isinstance(args[0], RemoteObject):
            return NotImplemented
        return self._link.request("operator", name, self, args)

    return method


for _name in OPERATORS:
    setattr(RemoteObject, _name, _operator(_name))


def handle_of(value: Any) -> Handle | None:
    is_stand_in = type(value) in (Opaque, RemoteFunction, RemoteIterator, RemoteObject)
    return object.__getattribute__(value, "_handle") if is_stand_in else None
