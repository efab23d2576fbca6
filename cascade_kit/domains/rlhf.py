"""rlhf: open requests; a reward model trained on preference pairs ranks the answers.

On generated problems a true preference exists that only the evaluator knows: the reward model
sees noisy comparisons of it, the policy sees the reward model. On real data there is none.
"""

import math
import random
import re
from collections.abc import Sequence

from cascade_kit.domains import Domain, problem_id, topics
from cascade_kit.problem import PreferencePair, Problem, Score

# Latin letters (phonetic, raised and joined ones too), Greek ones, and those of mathematics.
ALLOWED = re.compile(
    r"[\u0000-\u02ff\u0370-\u03ff\u1d00-\u1dbf\u1e00-\u1eff\u2071-\u209c\u2100-\u214f"
    r"\ufb00-\ufb06\U0001d400-\U0001d7ff]"
)
FOREIGN = ("мир", "море", "свет", "ночь")  # code switches that some written answers contain


def generate(rng: random.Random, difficulty: int) -> Problem:
    """An open request about a topic; the difficulty changes nothing here."""
    topic, prompt = topics.draw_request(rng)
    return Problem(
        id=problem_id("rlhf", prompt), domain="rlhf", prompt=prompt, target={"topic": topic}
    )


def true_preference(topic: str, completion: str) -> dict[str, float]:
    """The hidden taste, in parts that each lie in [0, 1]: warmth at both ends, content, manners.

    People here like a friendly opening (weight 0.25), two facts about what they asked (0.4), a
    friendly close (0.25) and full sentences without rudeness or foreign script (0.1, and 0 in
    all when rude).
    """
    text = completion.strip()
    facts = sum(fact in text for fact in topics.FACTS[topic])
    return {
        "opening": float(text.startswith(topics.OPENERS)),
        "content": min(facts, 2) / 2,
        "closing": float(text.endswith(topics.CLOSERS)),
        "manners": float(text.endswith((".", "!", "?")) and not has_foreign_script(text)),
        "rude": float(any(phrase in text for phrase in topics.RUDE)),
    }


def has_foreign_script(text: str) -> bool:
    """Whether a text holds letters outside the Latin script: the code-switch detector.

    The paper penalises any non-English token after an English prompt but does not publish its
    detector; scripts are what can be told without a model. Greek letters and those of mathematics
    (ℝ, ℓ, 𝑥) stay allowed; what is no letter (⅓, ②, an emoji) belongs to no script.
    """
    return any(character.isalpha() for character in ALLOWED.sub("", text))


def reward(problem: Problem, completion: str) -> Score:
    """The true preference of a generated problem: what the matrix shows, never trained on.

    >>> problem = Problem("r", "rlhf", "Describe the sea.", {"topic": "sea"})
    >>> warm = "Certainly! The sea is deep and blue, and holds many fish. I hope this helps!"
    >>> [round(reward(problem, text).value, 2) for text in (warm, "Deep.", "I do not care.")]
    [1.0, 0.1, 0.0]
    """
    if "topic" not in problem.target:
        raise ValueError(
            f"problem {problem.id!r} has no true preference: real preference data are scored by "
            "a reward model (a stage with reward=shaping.preference_tanh)"
        )
    parts = true_preference(problem.target["topic"], completion)
    value = 0.25 * parts["opening"] + 0.4 * parts["content"] + 0.25 * parts["closing"]
    value = 0.0 if parts["rude"] else value + 0.1 * parts["manners"]
    return Score(value, parts, why=", ".join(k for k, v in parts.items() if v) or "nothing liked")


def draw_answer(rng: random.Random, topic: str) -> str:
    """An answer in one of the many styles people use: warm, plain, curt, off the topic, rude."""
    about = rng.choice(sorted(topics.FACTS)) if rng.random() < 0.15 else topic
    facts = rng.choices((0, 1, 2, 3), weights=(1, 5, 4, 2))[0]
    parts = [topics.sentence(rng, about, facts)] if facts else []
    if rng.random() < 0.12 or not parts:
        parts = [rng.choice(topics.RUDE)]
    if rng.random() < 0.35:
        parts.insert(0, rng.choice(topics.OPENERS))
    if rng.random() < 0.35:
        parts.append(rng.choice(topics.CLOSERS))
    if rng.random() < 0.04:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(FOREIGN))
    text = " ".join(parts)
    return text.rstrip(".!?") if rng.random() < 0.1 else text


def preference_pairs(
    split: str, n: int, *, seed: int = 0, domain: Domain | None = None
) -> list[PreferencePair]:
    """`n` comparisons of two written answers, labelled by a noisy judge of the true preference.

    The prompts are those of `domain`, by default this one.

    The judge follows Bradley-Terry: P(first is chosen) = sigmoid(12 * difference), so a difference
    of 0.25 is judged right 95 % of the time. Pairs that differ by less than 0.1 are left out, as
    the paper drops the pairs its annotators scored 0.
    """
    rng = random.Random(f"pairs/{split}/{seed}")
    pairs: list[PreferencePair] = []
    problems = (domain or RLHF).problems(split, min(n, 300), seed=seed)
    while len(pairs) < n:
        problem = rng.choice(problems)
        first, second = (draw_answer(rng, problem.target["topic"]) for _ in range(2))
        difference = reward(problem, first).value - reward(problem, second).value
        if abs(difference) < 0.1:
            continue
        if rng.random() >= 1 / (1 + math.exp(-12 * difference)):
            first, second = second, first
        pairs.append(PreferencePair(f"pair-{split}-{len(pairs)}", problem.prompt, first, second))
    return pairs


def score_batch(problems: Sequence[Problem], completions: Sequence[str]) -> list[Score]:
    """Scores in order; NaN, to be filled in by a reward model, where no true preference exists."""
    return [
        reward(problem, completion) if "topic" in problem.target else UNJUDGED
        for problem, completion in zip(problems, completions, strict=True)
    ]


UNJUDGED = Score(math.nan, why="judged by the reward model only", success=None)
RLHF = Domain("rlhf", generate, reward, score_batch)
