"""The easy tier: generated problems for small real models, with worked examples before them.

A model of 0.1 to 1 billion parameters solves next to nothing of the public sets at temperature 1,
and where every answer of every group is wrong there is nothing to reinforce. These problems are
those of the embedded model, made easier, and each follows a few worked examples: earlier turns of
the dialogue, which show the form of an answer better than a description does. Rewards are those of
the domains, unchanged.

No example can be drawn as a question: the castle and the candle are no topics, `half`, `add` and
`last` no names of functions, and the sums of the examples are left out.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from cascade_kit.domains import Domain, functions, problem_id, topics
from cascade_kit.domains.code import CODE
from cascade_kit.domains.code import generate as draw_code
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.domains.instruct import generate as draw_instruct
from cascade_kit.domains.math import MATH
from cascade_kit.domains.rlhf import RLHF
from cascade_kit.domains.swe import SWE
from cascade_kit.problem import Problem

SUMS = ((5, 3), (2, 7), (4, 1))
# (header, what it returns, a wrong expression, the right one)
FUNCTIONS = (
    ("half(n)", "n divided by 2", "n * 2", "n / 2"),
    ("add(a, b)", "the sum of a and b", "a - b", "a + b"),
    ("last(items)", "the last item in items", "items[0]", "items[-1]"),
)


def ask_request(topic_and_facts: str, words: str) -> str:
    return f"Notes: The {topic_and_facts}.\n{words}"


def ask_sum(first: int, second: int) -> str:
    return f"Add {first} and {second}."


def ask_fix(path: str, header: str, words: str, wrong: str) -> str:
    return f"Fix the bug. {header} should return {words}.\n### {path}\n{source(header, wrong)}"


def source(header: str, expression: str) -> str:
    return f"def {header}:\n    return {expression}\n"


def edit(path: str, wrong: str, right: str) -> str:
    """A SEARCH/REPLACE block that changes the one line."""
    return (
        f"### {path}\n<<<<<<< SEARCH\n    return {wrong}\n=======\n    return {right}\n"
        ">>>>>>> REPLACE"
    )


EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "rlhf": (
        (
            ask_request("castle is old and grey, stands on a rock, has thick walls",
                        "Describe the castle."),
            "Of course! The castle is old and grey, and has thick walls. I hope this helps!",
        ),
        (
            ask_request("candle gives warm light, is made of wax, burns all night",
                        "What is the candle like?"),
            "The candle gives warm light, is made of wax, and burns all night.",
        ),
    ),
    "instruct": (
        ("Describe the castle. Do not use commas.", "The castle is old and grey."),
        ("Tell me about the candle. End with: Good night.", "A candle gives light. Good night."),
    ),
    "math": tuple((ask_sum(a, b), f"{a} + {b} = \\boxed{{{a + b}}}") for a, b in SUMS),
    "code": tuple(
        (
            f"Write a Python function {header} that returns {words}.",
            f"```python\n{source(header, right)}```",
        )
        for header, words, _, right in FUNCTIONS[:2]
    ),
    "swe": tuple(
        (ask_fix("app.py", header, words, wrong), edit("app.py", wrong, right))
        for header, words, wrong, right in FUNCTIONS
    ),
}  # fmt: skip


def request(rng: random.Random, difficulty: int) -> Problem:
    """An open request after notes: three facts, which the hidden taste likes to find again."""
    topic, words = topics.draw_request(rng)
    facts = ", ".join(rng.sample(topics.FACTS[topic], 3))
    return _problem("rlhf", ask_request(f"{topic} {facts}", words), {"topic": topic})


def instruct(rng: random.Random, difficulty: int) -> Problem:
    """A request with a single constraint."""
    drawn = draw_instruct(rng, 1)
    return _problem("instruct", drawn.prompt, drawn.target)


def math(rng: random.Random, difficulty: int) -> Problem:
    """A sum of a number up to 9 (difficulty 1), 25 (2) or 99 (3) and one of a single digit."""
    while True:
        first, second = rng.randint(1, {1: 9, 2: 25, 3: 99}[difficulty]), rng.randint(1, 9)
        if (first, second) not in SUMS:
            break
    if rng.random() < 0.5 and (second, first) not in SUMS:
        first, second = second, first
    return _problem("math", ask_sum(first, second), {"answer": str(first + second)})


def code(rng: random.Random, difficulty: int) -> Problem:
    """A one-line function, as for the embedded model."""
    drawn = draw_code(rng, difficulty)
    return _problem("code", drawn.prompt, drawn.target)


def swe(rng: random.Random, difficulty: int) -> Problem:
    """One file, `app.py`, that holds one function of one line, and the line is wrong."""
    function = functions.draw(rng, min(difficulty, 2))
    mistake = functions.mistaken(rng, function)
    wrong = function.source(mistake)
    prompt = ask_fix("app.py", function.header, function.words, mistake)
    return _problem(
        "swe",
        prompt,
        {
            "files": {"app.py": wrong},
            "gold_files": {"app.py": function.source()},
            "tests": {"app.py": function.asserts(random.Random(prompt))},
            "one_liner": True,
        },
    )


def _problem(domain: str, prompt: str, target) -> Problem:
    return Problem(problem_id(domain, prompt), domain, prompt, target, EXAMPLES[domain])


def _easy(domain: Domain, generate: Callable[[random.Random, int], Problem]) -> Domain:
    return replace(domain, generate=generate)


EASY_RLHF = _easy(RLHF, request)
EASY_INSTRUCT = _easy(INSTRUCT, instruct)
EASY_MATH = _easy(MATH, math)
EASY_CODE = _easy(CODE, code)
EASY_SWE = _easy(SWE, swe)
