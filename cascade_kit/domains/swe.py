"""swe: a small project with a bug and an issue; the answer is SEARCH/REPLACE blocks."""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from cascade_kit import settings
from cascade_kit.domains import Domain, code, functions, problem_id
from cascade_kit.problem import Problem, Score

MODULES = ("app", "core", "data", "main", "tools", "view")
# Files that may hold what the reward runs.
TEST_FILE = re.compile(r"(?:.*/)?(?:tests?/.*|conftest\.py|test_[^/]*\.py|[^/]*_test\.py)")
REPAIR = "Fix this issue in the files below."
FORM = """\
Answer with one or more edits in this form, and nothing else:
### path/of/the/file.py
<<<<<<< SEARCH
the lines to replace, exactly as they stand in the file
=======
the lines that take their place
>>>>>>> REPLACE"""


def generate(rng: random.Random, difficulty: int) -> Problem:
    """Two files with two, three or four one-line functions (by difficulty), one of them wrong."""
    count = {1: 2, 2: 3, 3: 4}[difficulty]
    drawn = _distinct(rng, count, 1 if difficulty == 1 else 2)
    broken = rng.randrange(count)
    wrong = functions.mistaken(rng, drawn[broken])
    files: dict[str, str] = {}
    modules = rng.sample(MODULES, 2)
    for i, function in enumerate(drawn):
        path = f"{modules[i % 2]}.py"
        files[path] = files.get(path, "") + function.source(wrong if i == broken else None)
    where = f"{modules[broken % 2]}.py"
    function = drawn[broken]
    gold = dict(files)
    gold[where] = gold[where].replace(function.source(wrong), function.source())
    issue = f"{function.header} should return {function.words}."
    prompt = f"Fix the bug. {issue}\n" + "".join(f"### {p}\n{text}" for p, text in files.items())
    return Problem(
        id=problem_id("swe", prompt),
        domain="swe",
        prompt=prompt,
        target={
            "files": files,
            "gold_files": gold,
            "tests": {where: function.asserts(random.Random(prompt))},
            "one_liner": True,
        },
    )


def _distinct(rng: random.Random, count: int, difficulty: int) -> list[functions.OneLiner]:
    """Functions with different names, so that the issue names exactly one of them."""
    drawn: dict[str, functions.OneLiner] = {}
    while len(drawn) < count:
        function = functions.draw(rng, difficulty)
        drawn.setdefault(function.name, function)
    return list(drawn.values())


def ask_repair(issue: str, files: Mapping[str, str], shown: Iterable[str]) -> str:
    """The prompt of a row: the issue, some of the files in this order, the form of an answer."""
    blocks = "\n\n".join(
        f"### {path}\n{fenced(files[path], 'python' if path.endswith('.py') else '')}"
        for path in shown
    )
    return f"{REPAIR}\n\n{issue}\n\n{blocks}\n\n{FORM}"


def fenced(text: str, language: str = "") -> str:
    """A text between fences that are longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.removesuffix(chr(10))}\n{fence}"


def with_noise(problem: Problem, count: int, fits: Callable[[Problem], bool]) -> Problem:
    """A row's problem with up to `count` files among the shown ones that the fix does not touch.

    They are added as long as the problem `fits`, and all files are shuffled (4.7.1). The paper
    takes files that another model named; here they are drawn from the row, the same for the same
    problem, tests and empty files left out: who reads the tests can write code for them alone. A
    generated problem shows all its files anyway, and stays as it is.
    """
    target = problem.target
    if "shown" not in target:
        return problem
    rng = random.Random(f"noise/{problem.id}")
    others = [
        path
        for path, text in target["files"].items()
        if path not in target["shown"] and text.strip() and not TEST_FILE.fullmatch(path)
    ]
    shown, noisy = list(target["shown"]), problem
    for path in rng.sample(others, min(count, len(others))):
        more = [*shown, path]
        rng.shuffle(more)
        larger = replace(problem, prompt=ask_repair(target["issue"], target["files"], more))
        if fits(larger):
            shown, noisy = more, larger
    return noisy


def reward(problem: Problem, completion: str) -> Score:
    """1 if the patched project passes its tests, 0 if not, -1 if the answer is no usable patch.

    Rows without tests follow the paper's execution-free rule (4.7.2, eq. 2) with the lexical
    similarity of SWE-RL in place of the 72B judge. The similarity is always a part.

    >>> target = {"files": {"a.py": "def f(x):\\n    return x + 2\\n"},
    ...     "gold_files": {"a.py": "def f(x):\\n    return x + 1\\n"},
    ...     "tests": {"a.py": ["assert f(2) == 3"]}, "one_liner": True}
    >>> problem = Problem("s", "swe", "Fix the bug. f(x) should return x plus 1.", target)
    >>> edit = "### a.py\\n<<<<<<< SEARCH\\n    return x + 2\\n"
    >>> edit += "=======\\n    return x {}\\n>>>>>>> REPLACE"
    >>> [reward(problem, text).value for text in (edit.format("+ 1"), edit.format("- 1"), "x + 1")]
    [1.0, 0.0, -1.0]
    """
    return score_batch([problem], [completion])[0]


def score_batch(problems: Sequence[Problem], completions: Sequence[str]) -> list[Score]:
    """Scores of many answers, in order; two projects are tested at a time."""
    with ThreadPoolExecutor(max_workers=2) as threads:
        return list(threads.map(_score, problems, completions))


def _score(problem: Problem, completion: str) -> Score:
    from cascade_kit.verifiers.patches import judge_patch, score_patch

    target = problem.target
    verdict = judge_patch(target["files"], completion, target["gold_files"], tags="optional")
    if target.get("tests"):
        return score_patch(verdict, lambda files: _module_tests(problem, files))
    if target.get("fail_to_pass") or target.get("pass_to_pass"):
        return score_patch(verdict, lambda files: _project_tests(problem, files))
    return score_patch(verdict)


def _module_tests(problem: Problem, files: Mapping[str, str]) -> tuple[bool, str]:
    """Asserts on the functions of one module each: the generated projects."""
    for path, asserts in problem.target["tests"].items():
        if path not in files:
            return False, f"{path} is gone"
        report = code.run_asserts(problem.target, files[path], asserts)
        if report.status != "passed":
            return False, report.status
    return True, "passed"


def _project_tests(problem: Problem, files: Mapping[str, str]) -> tuple[bool, str]:
    """FAIL_TO_PASS and PASS_TO_PASS of a row, really run by pytest in the sandbox."""
    from cascade_kit.verifiers.swe_tests import run_swe_tests

    target = problem.target
    report = run_swe_tests(
        files,
        target["fail_to_pass"],
        target["pass_to_pass"],
        original=target["files"],
        pythonpath=target.get("pythonpath", (".",)),
        allow_unsafe=settings.allow_unsafe(),
    )
    return report.passed, report.why


SWE = Domain("swe", generate, reward, score_batch)
