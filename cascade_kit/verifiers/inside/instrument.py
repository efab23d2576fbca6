"""How the source of tests is prepared: which names it needs, and code woven in between.

Woven in are calls that settle changed arguments after each statement, and a count of the asserts
that stand directly in the module or in a function `check`, which is what public test sets consist
of: one failing assert must not hide how many others hold.
"""

import ast
import builtins
import symtable
import types
from typing import Any


class Instrument(ast.NodeTransformer):
    """Adds `__settle__()` after each statement with a call and, if asked, counts asserts."""

    def __init__(self, count_asserts: bool) -> None:
        self.count_asserts, self.asserts = count_asserts, 0

    def visit_Module(self, node: ast.Module) -> ast.Module:
        return self._bodies(node, counted=self.count_asserts)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._bodies(node, counted=self.count_asserts and node.name == "check")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return self._bodies(node, counted=False)

    def _bodies(self, node: Any, *, counted: bool) -> Any:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements:
                inner = self._statements(statements, counted)
                # The head of a loop or an `if` may hold a call as well.
                first = [] if isinstance(node, ast.Module) else ast.parse("__settle__()").body
                setattr(node, name, [*first, *inner])
        return node

    def _statements(self, statements: list[ast.stmt], counted: bool) -> list[ast.stmt]:
        changed: list[ast.stmt] = []
        for statement in statements:
            is_assert = isinstance(statement, ast.Assert) and counted
            self.asserts += is_assert
            changed.append(_counted(statement) if is_assert else statement)
            if any(isinstance(part, ast.Call) for part in ast.walk(statement)):
                changed += ast.parse("__settle__()").body
        return changed


def _counted(statement: ast.stmt) -> ast.stmt:
    frame = "try: pass\nexcept Exception as __error__: __failure__(__error__, {!r})\n"
    frame += "else: __success__()"
    attempt = ast.parse(frame.format(ast.unparse(statement))).body[0]
    assert isinstance(attempt, ast.Try)
    attempt.body = [statement]
    return attempt


def compiled(source: str, instrument: Instrument) -> types.CodeType:
    tree = ast.fix_missing_locations(instrument.visit(ast.parse(source)))
    return compile(tree, "<tests>", "exec")


def names_used(sources: list[str], entry_point: str | None) -> list[str]:
    """Names that the tests read but do not set: the answer may have to supply them.

    Of the built-in names only the entry point is among them (MBPP has a function `sum` to write);
    an answer must not supply an `abs` or `sorted` of its own to the tests.
    """
    read: dict[str, None] = {}
    own: set[str] = set()
    for source in sources:
        module = symtable.symtable(source, "<tests>", "exec")
        tables = [module]
        while tables:
            table = tables.pop()
            tables += table.get_children()
            for symbol in table.get_symbols():
                if symbol.is_referenced() and (table is module or symbol.is_global()):
                    read[symbol.get_name()] = None
        own |= {name.get_name() for name in module.get_symbols() if _is_set(name)}
    wanted = [name for name in read if name not in own]
    return [name for name in wanted if name == entry_point or not hasattr(builtins, name)]


def _is_set(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def count_asserts(source: str) -> int:
    """How many asserts of a text of tests are counted one by one, at least 1."""
    instrument = Instrument(count_asserts=True)
    instrument.visit(ast.parse(source))
    return max(1, instrument.asserts)
