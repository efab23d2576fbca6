"""Plain data between the process that runs an answer and the process that judges it.

Values travel as JSON: built-in containers and numbers by value, so that what arrives is made by the
receiver from its own types (an answer's `__eq__` never gets there). Instances of classes that both
sides share travel as an object graph that keeps identity. Everything else (functions, iterators,
instances of an answer's own classes) stays where it is and is represented by a handle.
"""

import array
import builtins
import collections
import datetime
import decimal
import fractions
import functools
import json
import operator
import os
import struct
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

FRAME_LIMIT = 16 << 20  # bytes of one message
DEPTH_LIMIT = 200  # nesting of one value
ITERATORS = (map, filter, zip, enumerate, reversed, type(iter([])), type(i for i in ()))
EXACT = {  # tag -> (type, value -> JSON, JSON -> value)
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (
        fractions.Fraction,
        lambda value: [hex(value.numerator), hex(value.denominator)],  # "1e999999999" would hang
        lambda parts: fractions.Fraction(*(int(part, 16) for part in parts)),
    ),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "datetime": (
        datetime.datetime,
        datetime.datetime.isoformat,
        datetime.datetime.fromisoformat,
    ),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "array": (
        array.array,
        lambda value: [value.typecode, value.tolist()],
        lambda parts: array.array(*parts),
    ),
    "complex": (
        complex,
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda parts: complex(*map(float.fromhex, parts)),
    ),
    "range": (
        range,
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*parts),
    ),
}
SIMPLE: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "type": lambda name: _builtin_types()[name],
} | {tag: decode for tag, (_, _, decode) in EXACT.items()}
SEQUENCES: dict[str, tuple[type, Callable[[list], Any]]] = {
    "list": (list, list),
    "tuple": (tuple, tuple),
    "set": (set, lambda items: _in_order(set, items)),
    "frozenset": (frozenset, lambda items: _in_order(frozenset, items)),
    "deque": (collections.deque, collections.deque),
    "keys": (type({}.keys()), lambda items: dict.fromkeys(items).keys()),
    "values": (type({}.values()), lambda items: dict(enumerate(items)).values()),
    "items": (type({}.items()), lambda items: dict(items).items()),
}
MAPPINGS: dict[str, tuple[type, Callable[[list], Any]]] = {
    "ordered": (collections.OrderedDict, collections.OrderedDict),
    "counter": (collections.Counter, lambda pairs: collections.Counter(dict(pairs))),
    "default": (collections.defaultdict, lambda pairs: collections.defaultdict(None, pairs)),
    "dict": (dict, dict),
}

# What the tests may do with an instance of an answer's own class; done where the instance lives.
OPERATORS: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__iter__": iter,
    "__next__": next,
    "__len__": len,
    "__hash__": hash,
    "__str__": str,
    "__repr__": repr,
}
for _name in """add sub mul truediv floordiv mod pow matmul and or xor neg pos invert abs
        getitem setitem delitem contains eq ne lt le gt ge""".split():
    OPERATORS[f"__{_name}__"] = getattr(operator, f"__{_name}__")
OPERATORS["__radd__"] = lambda right, left: left + right
OPERATORS["__rsub__"] = lambda right, left: left - right
OPERATORS["__rmul__"] = lambda right, left: left * right
OPERATORS["__rtruediv__"] = lambda right, left: left / right


class ProtocolError(Exception):
    """The other side sent something that is no message, or a value that cannot be sent."""


class Gone(Exception):
    """The other side is no longer there."""


@dataclass(frozen=True)
class Handle:
    """An object that lives on the other side: its number, what it is, and its class's name."""

    number: int
    kind: str  # "function", "class", "exception", "module", "iterator" or "instance"
    name: str


@dataclass
class Codec:
    """Translates values; remembers the objects that have a number on both sides.

    `shared` are the classes that both sides define (by name). `proxy` makes the stand-in of a
    handle; `handle_of` gives the handle back for such a stand-in, None for any other object.
    """

    side: int  # 0 or 1: numbers given by the two sides are even and odd
    shared: dict[str, type] = field(default_factory=dict)
    proxy: Callable[[Handle], Any] = lambda handle: handle
    handle_of: Callable[[Any], Handle | None] = lambda value: None
    objects: dict[int, Any] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # id -> number; `objects` keeps it alive

    def number_of(self, value: Any) -> int:
        if id(value) not in self.numbers:
            self.remember(2 * len(self.objects) + self.side, value)
        return self.numbers[id(value)]

    def remember(self, number: int, value: Any) -> None:
        self.objects[number], self.numbers[id(value)] = value, number

    def encode(self, *values: Any) -> dict:
        """A JSON-able message with the values and the shared instances they reach."""
        states: dict[str, list] = {}
        waiting: list[Any] = []
        encoded = [self._encode(value, waiting, 0) for value in values]
        while waiting:
            instance = waiting.pop()
            number = str(self.number_of(instance))
            if number in states:
                continue
            attributes = [
                [name, self._encode(value, waiting, 0)] for name, value in state(instance).items()
            ]
            states[number] = [type(instance).__name__, attributes]
        return {"values": encoded, "objects": states}

    def _encode(self, value: Any, waiting: list[Any], depth: int) -> Any:
        if depth > DEPTH_LIMIT:
            raise ProtocolError(f"a value is nested more than {DEPTH_LIMIT} deep")
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if self.shared.get(kind.__name__) is kind:
            waiting.append(value)
            return ["object", self.number_of(value)]
        if handle := self.handle_of(value):
            return ["yours", handle.number]
        if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            value = value.item()  # numpy.int64 and the like are numbers as well
        for encode in (_encode_scalar, _encode_exact, _encode_type):
            if (text := encode(value)) is not NotImplemented:
                return text
        return self._encode_container(value, waiting, depth)

    def _encode_container(self, value: Any, waiting: list[Any], depth: int) -> list:
        """Built-in containers, their subclasses as the nearest one; anything else is a handle."""
        fields = getattr(type(value), "_fields", None)
        if isinstance(value, tuple) and isinstance(fields, tuple):
            items = self._encode_all(tuple.__iter__(value), waiting, depth)
            return ["named", type(value).__name__, list(fields), items]
        for tag, (base, _) in MAPPINGS.items():
            if isinstance(value, base):
                pairs = [item for pair in base.items(value) for item in pair]
                return [tag, self._encode_all(pairs, waiting, depth)]
        for tag, (base, _) in SEQUENCES.items():
            if isinstance(value, base):
                return [tag, self._encode_all(base.__iter__(value), waiting, depth)]
        return ["mine", self.number_of(value), *describe(value)]

    def _encode_all(self, items: Iterable, waiting: list[Any], depth: int) -> list:
        return [self._encode(item, waiting, depth + 1) for item in items]

    def decode(self, message: dict) -> list[Any]:
        """The values of a message from the other side; whatever is wrong is a ProtocolError."""
        try:
            states = message["objects"]
            for number, (name, _) in states.items():
                if int(number) not in self.objects:
                    if int(number) % 2 == self.side:
                        raise ProtocolError("an object with a number of this side")
                    self.remember(int(number), object.__new__(self.shared[name]))
                elif type(self.objects[int(number)]) is not self.shared[name]:
                    raise ProtocolError("an object changed its class")
            for number, (_, attributes) in states.items():
                for name, value in attributes:
                    object.__setattr__(self.objects[int(number)], name, self._decode(value, 0))
            return [self._decode(value, 0) for value in message["values"]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"no message: {type(error).__name__}: {error}"[:300]) from error
        except (ArithmeticError, RecursionError) as error:
            raise ProtocolError(f"no message: {type(error).__name__}") from error

    def _decode(self, text: Any, depth: int) -> Any:
        if depth > DEPTH_LIMIT:
            raise ProtocolError("a value is nested too deep")
        if isinstance(text, dict):
            raise ProtocolError("a mapping where a value belongs")
        if not isinstance(text, list):
            return text
        tag, *rest = text
        if tag == "mine":
            return self._stand_in(Handle(*rest))
        if tag in SIMPLE:
            return SIMPLE[tag](rest[0])
        if tag == "object" or tag == "yours":
            return self.objects[rest[0]]
        items = [self._decode(item, depth + 1) for item in rest[-1]]
        if tag == "named":
            return collections.namedtuple(rest[0], rest[1])(*items)
        if tag in SEQUENCES:
            return SEQUENCES[tag][1](items)
        return MAPPINGS[tag][1](list(zip(items[::2], items[1::2], strict=True)))

    def _stand_in(self, handle: Handle) -> Any:
        """The one stand-in of an object that lives on the other side."""
        if not all(map(isinstance, (handle.number, handle.kind, handle.name), (int, str, str))):
            raise ProtocolError("no handle")
        key = -1 - handle.number  # apart from the numbers of shared objects
        if key not in self.objects:
            self.objects[key] = self.proxy(handle)
        return self.objects[key]


def _in_order(kind: type, items: list) -> Any:
    """A set that is walked through in the sender's order, as far as two ways of filling it go."""
    made = kind(items)
    if list(made) == items:
        return made
    turned = kind(reversed(items))
    return turned if list(turned) == items else made


def _encode_scalar(value: Any) -> Any:
    """str, int and float, from subclasses as well; their overridden methods are never called."""
    if isinstance(value, str):
        return str.__str__(value) if type(value) is not str else value
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if number.bit_length() <= 64 else ["int", hex(number)]
    if isinstance(value, float):
        number = float.__add__(value, -0.0)  # minus zero keeps its sign
        return number if number - number == 0 else ["float", repr(number)]
    return NotImplemented


def _encode_exact(value: Any) -> Any:
    for tag, (base, encode, _) in EXACT.items():
        if type(value) is base:
            return [tag, encode(value)]
    return NotImplemented


def _encode_type(value: Any) -> Any:
    """`int`, `list` and the like are the same on both sides."""
    known = isinstance(value, type) and _builtin_types().get(value.__name__) is value
    return ["type", value.__name__] if known else NotImplemented


@functools.cache
def _builtin_types() -> dict[str, type]:
    return {name: value for name, value in vars(builtins).items() if isinstance(value, type)}


def state(instance: Any) -> dict[str, Any]:
    """The attributes of an instance, those in slots included."""
    slots = [name for kind in type(instance).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(instance, name) for name in slots if hasattr(instance, name)}
    return found | getattr(instance, "__dict__", {})


def describe(value: Any) -> tuple[str, str]:
    """(kind, name) of an object that does not travel."""
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if isinstance(value, type):
        return "exception" if issubclass(value, BaseException) else "class", value.__name__
    if isinstance(value, ITERATORS) or hasattr(type(value), "__next__"):
        return "iterator", type(value).__name__
    if callable(value) and (hasattr(value, "__name__") or type(value).__module__ == "functools"):
        return "function", str(getattr(value, "__name__", "partial"))
    return "instance", type(value).__name__


def send(descriptor: int, message: Any) -> None:
    """Write one message: its length in four bytes, then JSON."""
    try:
        text = json.dumps(message, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a value cannot be sent: {error}"[:300]) from error
    if len(text) > FRAME_LIMIT:
        raise ProtocolError(f"a value needs more than {FRAME_LIMIT >> 20} MiB")
    frame = memoryview(struct.pack(">I", len(text)) + text)
    try:
        while frame:
            frame = frame[os.write(descriptor, frame) :]
    except OSError as error:
        raise Gone from error


def receive(descriptor: int, limit: int = FRAME_LIMIT) -> Any:
    """Read one message; raises Gone at the end of the stream, ProtocolError on rubbish."""
    (length,) = struct.unpack(">I", read_exactly(descriptor, 4))
    if length > limit:
        raise ProtocolError("a message is too long")
    try:
        return json.loads(read_exactly(descriptor, length))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("no message") from error


def read_exactly(descriptor: int, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        try:
            chunk = os.read(descriptor, min(length - len(parts), 1 << 20))
        except OSError as error:
            raise Gone from error
        if not chunk:
            raise Gone
        parts += chunk
    return bytes(parts)
