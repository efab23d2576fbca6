"""instruct: answers that must satisfy constraints of IFEval's taxonomy, checked exactly."""

import random

from cascade_kit.domains import Domain, problem_id, topics
from cascade_kit.problem import Problem, Score

KEYWORDS = "big bright clean cold fresh green kind light new old quiet rare soft warm".split()
ENDINGS = ("That is all.", "Thank you.", "The end.")


def generate(rng: random.Random, difficulty: int) -> Problem:
    """A request with one (difficulty 1), one or two (2) or two (3) constraints."""
    topic, request = topics.draw_request(rng)
    n = {1: 1, 2: rng.choice((1, 2)), 3: 2}[difficulty]
    # Constraints of one prompt come from different groups, so that they never contradict.
    drawn = [rng.choice(group)(rng) for group in rng.sample(GROUPS, n)]
    prompt = " ".join([request, *(text for text, _, _ in drawn)])
    return Problem(
        id=problem_id("instruct", prompt),
        domain="instruct",
        prompt=prompt,
        target={
            "instruction_id_list": [identifier for _, identifier, _ in drawn],
            "kwargs": [arguments for _, _, arguments in drawn],
            "topic": topic,
        },
    )


# Each draws (words, constraint id, kwargs).
def _at_most(rng: random.Random):
    n = rng.randint(7, 10)
    return (
        f"Use less than {n} words.",
        "length_constraints:number_words",
        {"relation": "less than", "num_words": n},
    )


def _at_least(rng: random.Random):
    n = rng.randint(10, 16)
    return (
        f"Use at least {n} words.",
        "length_constraints:number_words",
        {"relation": "at least", "num_words": n},
    )


def _no_comma(rng: random.Random):
    return "Do not use commas.", "punctuation:no_comma", {}


def _lower_case(rng: random.Random):
    return "Use lowercase letters only.", "change_case:english_lowercase", {}


def _quotation(rng: random.Random):
    return "Wrap the answer in double quotation marks.", "startend:quotation", {}


def _keyword(rng: random.Random):
    word = rng.choice(KEYWORDS)
    return f"Include the word {word}.", "keywords:existence", {"keywords": [word]}


def _ending(rng: random.Random):
    phrase = rng.choice(ENDINGS)
    return f"End with: {phrase}", "startend:end_checker", {"end_phrase": phrase}


GROUPS = ((_at_most, _at_least), (_no_comma,), (_lower_case, _quotation), (_keyword,), (_ending,))


def reward(problem: Problem, completion: str) -> Score:
    """1 if every constraint holds strictly, else 0; the parts tell which one failed.

    >>> target = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    >>> problem = Problem("i", "instruct", "Describe the sea. Do not use commas.", target)
    >>> [reward(problem, text).value for text in ("It is deep.", "Deep, blue.", "")]
    [1.0, 0.0, 0.0]
    """
    from cascade_kit.verifiers.ifeval import score_instructions

    target = problem.target
    return score_instructions(
        target["instruction_id_list"], target["kwargs"], completion, prompt=problem.prompt
    )


INSTRUCT = Domain("instruct", generate, reward)
