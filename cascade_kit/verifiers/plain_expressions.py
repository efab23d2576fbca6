"""An evaluator of plain expressions on numbers, texts and built-in containers.

It computes an expression step by step. Work, sizes and depth are bounded, so it cannot hang, and
there is no way from here to a file, a process or an attribute of an object.
"""

import ast
import builtins
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WORK_LIMIT = 100_000  # values made or visited in one test
CALL_DEPTH = 30
INTEGER_BITS = 10_000
LENGTH_LIMIT = 10_000  # of texts and containers

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
FUNCTIONS = """
    abs all any bool chr dict divmod enumerate float int len list max min ord pow range reversed
    round set sorted str sum tuple zip
""".split()
KEYS = ("abs", "len", "int", "float", "str", "ord")  # functions that may be a `key=`
METHODS: dict[type, tuple[str, ...]] = {
    str: tuple(
        """
        upper lower strip lstrip rstrip title capitalize swapcase casefold replace split rsplit join
        splitlines startswith endswith find rfind index rindex count partition rpartition zfill
        isdigit isalpha isalnum isupper islower isspace isnumeric isdecimal istitle removeprefix
        removesuffix center ljust rjust
        """.split()
    ),
    list: ("count", "index", "copy"),
    tuple: ("count", "index"),
    dict: ("get", "keys", "values", "items"),
    set: ("union", "intersection", "difference", "issubset", "issuperset", "isdisjoint"),
    int: ("bit_length",),
    float: ("is_integer",),
}
SIZED = (str, list, tuple, set, dict, range)
PLAIN_TYPES = (bool, int, float, complex, str, list, tuple, dict, set, type(None))


class Forbidden(Exception):
    """The code holds something that only a sandbox may run."""


@dataclass(frozen=True)
class OneLine:
    """One function: its name, the names of its arguments and its expression."""

    name: str
    arguments: tuple[str, ...]
    expression: ast.expr


class Evaluation:
    """Computes one expression; every value it makes is paid for out of `WORK_LIMIT`."""

    def __init__(self, functions: Mapping[str, OneLine]) -> None:
        self.functions, self.work, self.depth = functions, 0, 0

    def pay(self, amount: int) -> None:
        self.work += amount
        if self.work > WORK_LIMIT:
            raise Forbidden("more work than a plain expression takes")

    def pay_for(self, *values: Any) -> None:
        """Pay for a pass over each of these values."""
        self.pay(sum(len(value) for value in values if isinstance(value, SIZED)))

    def paid(self, value: Any) -> Any:
        """`value`, once it is known to be small."""
        self.pay(1)
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise Forbidden(f"an integer of more than {INTEGER_BITS} bits")
        if isinstance(value, SIZED) and len(value) > LENGTH_LIMIT:
            raise Forbidden(f"a value of more than {LENGTH_LIMIT} items")
        if isinstance(value, (list, tuple, set, dict)):
            self.visit(value)
        return value

    def visit(self, value: Any) -> None:
        """Pay for all items of a nested value: shared parts count each time they occur."""
        self.pay(len(value))
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (list, tuple, set, dict)):
                self.visit(item)

    def value(self, node: ast.AST, names: Mapping[str, Any]) -> Any:
        """The value of an expression with these values of names."""
        method = getattr(self, "of_" + type(node).__name__, None)
        if method is None:
            raise Forbidden(f"a plain expression holds no {type(node).__name__}")
        return self.paid(method(node, names))

    def values(self, nodes: Iterable[ast.AST], names: Mapping[str, Any]) -> list[Any]:
        return [self.value(node, names) for node in nodes]

    def of_Constant(self, node: ast.Constant, names: Mapping[str, Any]) -> Any:
        if not isinstance(node.value, PLAIN_TYPES):
            raise Forbidden(f"a constant of type {type(node.value).__name__}")
        return node.value

    def of_Name(self, node: ast.Name, names: Mapping[str, Any]) -> Any:
        if node.id in names:
            return names[node.id]
        if node.id in self.functions or hasattr(builtins, node.id):
            raise Forbidden(f"the function {node.id} as a value")
        raise NameError(f"name {node.id!r} is not defined")

    def of_List(self, node: ast.List, names: Mapping[str, Any]) -> list:
        return self.values(node.elts, names)

    def of_Tuple(self, node: ast.Tuple, names: Mapping[str, Any]) -> tuple:
        return tuple(self.values(node.elts, names))

    def of_Set(self, node: ast.Set, names: Mapping[str, Any]) -> set:
        return set(self.values(node.elts, names))

    def of_Dict(self, node: ast.Dict, names: Mapping[str, Any]) -> dict:
        if None in node.keys:
            raise Forbidden("a plain expression holds no **")
        keys = self.values([key for key in node.keys if key], names)
        return dict(zip(keys, self.values(node.values, names), strict=True))

    def of_UnaryOp(self, node: ast.UnaryOp, names: Mapping[str, Any]) -> Any:
        return UNARY[type(node.op)](self.value(node.operand, names))

    def of_BinOp(self, node: ast.BinOp, names: Mapping[str, Any]) -> Any:
        if type(node.op) not in BINARY:
            raise Forbidden(f"a plain expression holds no {type(node.op).__name__}")
        left, right = self.value(node.left, names), self.value(node.right, names)
        check_growth(type(node.op), left, right)
        return BINARY[type(node.op)](left, right)

    def of_BoolOp(self, node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
        stops = bool if isinstance(node.op, ast.Or) else operator.not_
        result = None
        for part in node.values:
            result = self.value(part, names)
            if stops(result):
                break
        return result

    def of_Compare(self, node: ast.Compare, names: Mapping[str, Any]) -> Any:
        left, result = self.value(node.left, names), True
        for operation, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, names)
            self.pay_for(right)
            result = COMPARE[type(operation)](left, right)
            if not result:
                break
            left = right
        return result

    def of_IfExp(self, node: ast.IfExp, names: Mapping[str, Any]) -> Any:
        return self.value(node.body if self.value(node.test, names) else node.orelse, names)

    def of_Subscript(self, node: ast.Subscript, names: Mapping[str, Any]) -> Any:
        group = self.value(node.value, names)
        if not isinstance(node.slice, ast.Slice):
            return group[self.value(node.slice, names)]
        limits = (node.slice.lower, node.slice.upper, node.slice.step)
        return group[slice(*(limit and self.value(limit, names) for limit in limits))]

    def of_JoinedStr(self, node: ast.JoinedStr, names: Mapping[str, Any]) -> str:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    raise Forbidden("a format of its own in a text")
                part = part.value
            parts.append(str(self.value(part, names)))
        return "".join(parts)

    def of_ListComp(self, node: ast.ListComp, names: Mapping[str, Any]) -> list:
        return list(self.items(node.elt, node.generators, names))

    def of_GeneratorExp(self, node: ast.GeneratorExp, names: Mapping[str, Any]) -> Iterator:
        return self.items(node.elt, node.generators, names)

    def items(
        self, element: ast.expr, generators: list[ast.comprehension], names: Mapping[str, Any]
    ) -> Iterator[Any]:
        """The items of a comprehension with plain names as targets."""
        if not generators:
            yield self.value(element, names)
            return
        first, *rest = generators
        if first.is_async or not isinstance(first.target, ast.Name):
            raise Forbidden("a comprehension over more than one name")
        for item in self.value(first.iter, names):
            inner = {**names, first.target.id: item}
            self.pay(len(inner))
            if all(self.value(condition, inner) for condition in first.ifs):
                yield from self.items(element, rest, inner)

    def of_Call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self.method_call(node, node.func, names)
        if not isinstance(node.func, ast.Name) or node.func.id in names:
            raise Forbidden("a call of something else than a named function")
        args = self.values(node.args, names)
        name = node.func.id
        if name in self.functions:
            if node.keywords:
                raise Forbidden(f"{name}: arguments by keyword")
            return self.function_call(self.functions[name], args)
        if name not in FUNCTIONS:
            if hasattr(builtins, name):
                raise Forbidden(f"the function {name}")
            raise NameError(f"name {name!r} is not defined")
        return self.builtin_call(name, args, self.keywords(node, names))

    def function_call(self, function: OneLine, args: list[Any]) -> Any:
        if len(args) != len(function.arguments):
            raise TypeError(f"{function.name}() takes {len(function.arguments)} arguments")
        if self.depth >= CALL_DEPTH:
            raise Forbidden(f"calls nested more than {CALL_DEPTH} deep")
        self.depth += 1
        result = self.value(function.expression, dict(zip(function.arguments, args, strict=True)))
        self.depth -= 1
        return result

    def keywords(self, node: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments; a `key` may be one of a few named functions."""
        found = {}
        for keyword in node.keywords:
            name = keyword.arg or "**"
            if name not in ("key", "reverse", "default", "start", "strict"):
                raise Forbidden(f"the keyword argument {name}")
            if name != "key":
                found[name] = self.value(keyword.value, names)
            elif isinstance(keyword.value, ast.Name) and keyword.value.id in KEYS:
                found[name] = getattr(builtins, keyword.value.id)
            else:
                raise Forbidden("a key function other than " + ", ".join(KEYS))
        return found

    def builtin_call(self, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        if name == "pow" and len(args) == 2:
            check_growth(ast.Pow, *args)
        if name == "range" and len(range(*args)) > LENGTH_LIMIT:
            raise Forbidden(f"a range of more than {LENGTH_LIMIT} numbers")
        if name == "round" and len(args) == 2 and abs(int(args[1])) > 100:
            raise Forbidden("rounding to more than 100 digits")  # it computes ten to that power
        self.pay_for(*args)
        if name == "sum" and len(args) + len(keywords) > 1:
            raise Forbidden("sum with a start value")  # adding lists that way takes squared time
        return getattr(builtins, name)(*args, **keywords)

    def method_call(self, node: ast.Call, function: ast.Attribute, names: Mapping[str, Any]) -> Any:
        owner = self.value(function.value, names)
        if node.keywords or function.attr not in METHODS.get(type(owner), ()):
            raise Forbidden(f"the method {function.attr} of {type(owner).__name__}")
        args = self.values(node.args, names)
        args = [list(value) if isinstance(value, Iterator) else value for value in args]
        self.pay_for(owner, *args)
        check_method(owner, function.attr, args)
        return getattr(owner, function.attr)(*args)


def check_growth(operation: type[ast.operator], left: Any, right: Any) -> None:
    """Refuse operations whose result could be far larger than what goes in."""
    if operation is ast.Mod and isinstance(left, str):
        raise Forbidden("a format of its own in a text")
    if operation is ast.Mult:
        lengths = [len(x) for x in (left, right) if isinstance(x, (str, list, tuple))]
        times = [x for x in (left, right) if isinstance(x, int)]
        if lengths and times and lengths[0] * times[0] > LENGTH_LIMIT:
            raise Forbidden(f"a repetition of more than {LENGTH_LIMIT} items")
    if not (isinstance(left, int) and isinstance(right, int)):
        return
    bits = {ast.Pow: left.bit_length() * abs(right), ast.LShift: left.bit_length() + right}
    if bits.get(operation, 0) > INTEGER_BITS:
        raise Forbidden(f"an integer of more than {INTEGER_BITS} bits")


def check_method(owner: Any, name: str, args: list[Any]) -> None:
    """Refuse text methods whose result could be far larger than what goes in."""
    size = 0
    if name in ("center", "ljust", "rjust", "zfill"):
        size = args[0] if args and isinstance(args[0], int) else 0
    if name == "replace" and len(args) >= 2 and isinstance(args[1], str):
        size = (len(owner) + 1) * len(args[1])
    if name == "join" and args and isinstance(args[0], (list, tuple, set, dict, str)):
        size = len(owner) * len(args[0]) + sum(len(x) for x in args[0] if isinstance(x, str))
    if size > LENGTH_LIMIT:
        raise Forbidden(f"a text of more than {LENGTH_LIMIT} characters")
