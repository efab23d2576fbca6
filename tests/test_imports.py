"""The arrows of the house: imports point downwards, heavy ones wait until they are needed.

Everything but one test reads the source, so a module is checked as soon as its file exists.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "cascade_kit"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A module imports from its own layer and from those before it; `data` stands for data_rows and the
# like too. One that is not named here belongs to the command line: it sits on top, and nothing that
# is named may import it.
LAYERS = (
    {"problem", "settings", "interrupts", "checkpoint"},
    {"intervals", "verifiers"},
    {"forgetting", "matrix_words", "domains", "shaping", "paper_matrices"},
    {"attention", "lora", "presets", "budgets", "chat", "loss_scale"},
    {"micro", "data", "gguf", "policy"},
    {"loading"},
    {"decoding"},
    {"stage", "rollout", "reward_model"},
    {"logprobs", "curriculum"},
    {"training_state"},
    {"records"},
    {"grpo", "evaluate"},
    {
        "run_logs",
        "run_files",
        "plots",
        "report",
        "compare",
        "checks",
        "run_data",
        "preflight",
        "plan",
        "planner",
    },
    {"cascade"},
    {"export"},
    {"session"},
    {"live"},
)
# These are small enough to read alone, and stay so.
ONLY_FROM = {
    "problem": set(),
    "settings": set(),
    "interrupts": set(),
    "checkpoint": set(),
    "intervals": set(),
    "verifiers": {"problem", "verifiers"},
    "domains": {"problem", "settings", "verifiers", "domains"},
    "forgetting": {"intervals", "matrix_words"},
    "matrix_words": set(),
}
WITHOUT_TENSORS = (
    "problem", "settings", "interrupts", "intervals", "forgetting", "matrix_words",
)  # fmt: skip
ONLY_IMPORTERS = {"matplotlib": "plots", "IPython": "live", "ipywidgets": "live"}
# Slow to import, or missing on some machine: only inside the function that needs them.
LAZY = {"matplotlib", "IPython", "ipywidgets", "peft", "bitsandbytes"}
LINUX_ONLY_MODULES = {"resource", "fcntl", "pwd", "grp", "termios", "pty", "tty", "syslog"}
LINUX_ONLY_NAMES = {
    "signal": {"SIGALRM", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "alarm", "setitimer"},
    "os": {"fork", "setsid", "getuid", "geteuid", "getpgid", "killpg", "sched_getaffinity"},
}

every_module = pytest.mark.parametrize("name", list(MODULES))


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"), filename=str(MODULES[name]))


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs when the module is imported: no function bodies, no type-only block."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*child.decorator_list, *child.args.defaults, *child.args.kw_defaults):
                yield from () if part is None else ast.walk(part)
        elif not isinstance(child, ast.Lambda) and not is_type_only(child):
            yield child
            yield from at_import(child)


def is_type_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def runtime(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that can run at some time: all but the type-only block."""
    for child in ast.iter_child_nodes(node):
        if not is_type_only(child):
            yield child
            yield from runtime(child)


def imported(name: str, nodes: Iterator[ast.AST]) -> set[str]:
    """Dotted names that `nodes` import; `from a import b` is `a.b`, relative ones are resolved."""
    package = ["cascade_kit", *name.split(".")]
    if MODULES[name].name != "__init__.py" or name == "__init__":
        package.pop()
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def own(dotted: set[str]) -> set[str]:
    """The modules of this package among imported names, relative to it: `domains.code`."""
    inside = {d.removeprefix("cascade_kit.") for d in dotted if d.startswith("cascade_kit.")}
    return {d if d in MODULES else d.rpartition(".")[0] for d in inside} & MODULES.keys()


def top(name: str) -> str:
    return name.split(".")[0]


def tops(dotted: set[str]) -> set[str]:
    return {top(d) for d in dotted}


def layer(name: str) -> int:
    whole, family = top(name), top(name).split("_")[0]
    named = [level for level, modules in enumerate(LAYERS) if modules & {whole, family}]
    return named[0] if named else len(LAYERS)


def imports_of(name: str) -> set[str]:
    return imported(name, runtime(tree(name)))


def imports_at_top(name: str) -> set[str]:
    return imported(name, at_import(tree(name)))


@every_module
def test_imports_point_downwards(name):
    upward = {other for other in own(imports_of(name)) if layer(other) > layer(name)}
    assert not upward, f"{name} imports {upward}, which LAYERS puts above it (or does not name)"


def test_no_import_cycle():
    arrows = {name: own(imports_of(name)) - {name} for name in MODULES}
    order = list(TopologicalSorter(arrows).static_order())  # a cycle raises and is named
    assert set(order) == MODULES.keys()


@every_module
def test_small_modules_stay_alone(name):
    allowed = ONLY_FROM.get(top(name))
    assert allowed is None or tops(own(imports_of(name))) - {top(name)} <= allowed


@every_module
def test_pure_modules_know_no_tensors(name):
    heavy = {"torch", "transformers", "matplotlib", "peft", "bitsandbytes"}
    assert top(name) not in WITHOUT_TENSORS or not tops(imports_of(name)) & heavy


@every_module
def test_only_importers(name):
    for library, importer in ONLY_IMPORTERS.items():
        assert top(name) == importer or library not in tops(imports_of(name)), (
            f"{name} imports {library}; only {importer} may"
        )


@every_module
def test_heavy_imports_wait(name):
    allowed = {library for library, importer in ONLY_IMPORTERS.items() if importer == name}
    early = tops(imports_at_top(name)) & LAZY - allowed
    assert not early, f"{name} imports {early} at its top: move it into the function that needs it"


@every_module
def test_nothing_linux_only_at_import(name):
    dotted = imports_at_top(name)
    used = {ast.unparse(n) for n in at_import(tree(name)) if isinstance(n, ast.Attribute)} | dotted
    linux = tops(dotted) & LINUX_ONLY_MODULES
    linux |= {f"{m}.{n}" for m, names in LINUX_ONLY_NAMES.items() for n in names} & used
    assert not linux, f"{name} needs {linux} to be imported: move it into a function"


@every_module
def test_environment_is_read_in_settings_alone(name):
    """Verifiers are let off: they hand an environment to the processes they start."""
    used = {ast.unparse(node) for node in runtime(tree(name)) if isinstance(node, ast.Attribute)}
    assert top(name) in {"settings", "verifiers"} or not used & {"os.environ", "os.getenv"}


def test_no_drawer_for_everything():
    assert not [n for n in MODULES if n.split(".")[-1] in {"utils", "util", "helpers", "common"}]


def test_the_checks_see_what_they_must(monkeypatch, tmp_path):
    """A module that breaks every rule is caught by every reader above."""
    source = """
import signal
from typing import TYPE_CHECKING
from . import cascade
from .domains import code
if TYPE_CHECKING:
    import peft
class Timer:
    number = signal.SIGALRM
def draw(default=signal.alarm):
    import matplotlib.pyplot
    from cascade_kit.plots import matrix_figure
"""
    path = tmp_path / "bad.py"
    path.write_text(source)
    for name in ("bad", "cascade", "domains.code", "plots"):
        monkeypatch.setitem(MODULES, name, path)
    assert own(imports_of("bad")) == {"cascade", "domains.code", "plots"}
    assert own(imports_at_top("bad")) == {"cascade", "domains.code"}
    assert "matplotlib" in tops(imports_of("bad")) - tops(imports_at_top("bad"))
    assert "peft" not in tops(imports_of("bad"))
    attributes = {ast.unparse(n) for n in at_import(tree("bad")) if isinstance(n, ast.Attribute)}
    assert attributes == {"signal.SIGALRM", "signal.alarm"}
    tree.cache_clear()


def test_importing_the_kit_imports_nothing_that_draws():
    """For real: every module that trains or scores, then a look at what Python has loaded."""
    left_out = {"plots", "__init__", "__main__"}
    names = ["cascade_kit", *(f"cascade_kit.{n}" for n in MODULES if n not in left_out)]
    script = (
        "import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr
    drawing = set(done.stdout.split()) & LAZY
    assert not drawing
