"""math: the final answer stands in \\boxed{} and is verified with math-verify.

Generated problems are one- and two-step sums a child does in the head, plain or as a small story.
"""

import random

from cascade_kit.domains import Domain, problem_id
from cascade_kit.problem import Problem, Score

NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gus Hana Ian Jana Kim Leo Mia Noor Omar Pia Ravi Sara Tom "
    "Uma".split()
)
THINGS = (
    "apples pears plums stones books coins cards stamps shells pens cups keys bells hats "
    "kites drums boats seeds rings balls".split()
)
INSTRUCTION = " Put the answer in \\boxed{}."


def generate(rng: random.Random, difficulty: int) -> Problem:
    """One problem; difficulty 1 is one step, 2 is one or two steps, 3 is two steps."""
    steps = {1: 1, 2: rng.choice((1, 2)), 3: 2}[difficulty]
    numbers, operations = _walk(rng, steps)
    text = rng.choice((_plain, _story))(rng, numbers, operations)
    prompt = text + INSTRUCTION
    working = _working(numbers, operations)
    return Problem(
        id=problem_id("math", prompt),
        domain="math",
        prompt=prompt,
        target={"answer": str(_result(numbers, operations)), "working": working},
    )


def _walk(rng: random.Random, steps: int) -> tuple[list[int], list[str]]:
    """Operands and signs whose partial results stay within 0..18."""
    numbers, operations = [rng.randint(1, 9)], []
    for _ in range(steps):
        total = _result(numbers, operations)
        fitting = [("+", k) for k in range(1, 10) if total + k <= 18]
        fitting += [("-", k) for k in range(1, 10) if total - k >= 0]
        sign, k = rng.choice(fitting)
        operations.append(sign)
        numbers.append(k)
    return numbers, operations


def _result(numbers: list[int], operations: list[str]) -> int:
    total = numbers[0]
    for sign, k in zip(operations, numbers[1:], strict=False):
        total += k if sign == "+" else -k
    return total


def _working(numbers: list[int], operations: list[str]) -> list[tuple[int, str, int, int]]:
    """The steps as (left, sign, right, result)."""
    steps, total = [], numbers[0]
    for sign, k in zip(operations, numbers[1:], strict=True):
        result = total + k if sign == "+" else total - k
        steps.append((total, sign, k, result))
        total = result
    return steps


def _plain(rng: random.Random, numbers: list[int], operations: list[str]) -> str:
    terms = str(numbers[0]) + "".join(
        f" {sign} {k}" for sign, k in zip(operations, numbers[1:], strict=True)
    )
    return rng.choice(("What is {}?", "Compute {}.", "Work out {}.", "How much is {}?")).format(
        terms
    )


def _story(rng: random.Random, numbers: list[int], operations: list[str]) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    parts = [f"{name} has {numbers[0]} {things}."]
    for sign, k in zip(operations, numbers[1:], strict=True):
        verb = rng.choice(
            ("gets", "finds", "buys") if sign == "+" else ("loses", "sells", "gives away")
        )
        parts.append(f"{name} {verb} {k}.")
    return " ".join(parts) + f" How many {things} does {name} have now?"


def reward(problem: Problem, completion: str) -> Score:
    """1 if the last \\boxed{} after the thinking equals `target["answer"]`, else 0.

    >>> problem = Problem("m", "math", "What is 3 + 4?", {"answer": "7"})
    >>> [reward(problem, text).value for text in (r"\\boxed{7}", r"3 + 4 = \\boxed{8}", "7")]
    [1.0, 0.0, 0.0]
    """
    if "gym_task" in problem.target:
        from cascade_kit.verifiers.gym_answer import grade_gym_answer

        return grade_gym_answer(problem.target, completion)
    from cascade_kit.verifiers.math_answer import grade_answer

    return grade_answer(problem.target["answer"], completion, extract="boxed")


MATH = Domain("math", generate, reward)
