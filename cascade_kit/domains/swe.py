"""swe: a small project with a bug and an issue; the answer is SEARCH/REPLACE blocks."""

import random

from cascade_kit.domains import Domain, functions, problem_id
from cascade_kit.problem import Problem, Score

MODULES = ("app", "core", "data", "main", "tools", "view")


def generate(rng: random.Random, difficulty: int) -> Problem:
    """Two files of one-line functions (difficulty 3: three), one of them wrong."""
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


def reward(problem: Problem, completion: str) -> Score:
    raise NotImplementedError


SWE = Domain("swe", generate, reward)
