"""Noisy demonstrations: the supervised start of the embedded model (the paper's SFT stage).

`demonstrate` plays a teacher that knows every answer and often slips, in the ways a careless
person does. A model trained on it samples right answers and slips alike, so reinforcement
learning finds something to reinforce in every domain, and later stages find something to forget.
"""

import random

from cascade_kit.domains import functions, rlhf, topics
from cascade_kit.problem import Problem

# Share of the demonstrations with a slip. rlhf has no right answer; its styles vary freely.
SLIPS = {"instruct": 0.55, "math": 0.5, "code": 0.5, "swe": 0.3}


def demonstrate(problem: Problem, rng: random.Random) -> str:
    """The teacher's answer to a generated problem."""
    if problem.domain == "rlhf":
        return rlhf.draw_answer(rng, problem.target["topic"])
    slip = rng.random() < SLIPS[problem.domain]
    return _TEACHERS[problem.domain](problem, rng, slip)


def _math(problem: Problem, rng: random.Random, slip: bool) -> str:
    steps = [list(step) for step in problem.target["working"]]
    kind = rng.choice(("result", "result", "sign", "no box", "early")) if slip else ""
    if kind == "result":
        steps[-1][3] = max(0, steps[-1][3] + rng.choice((-2, -1, 1, 2)))
    if kind == "sign":
        left, sign, right, _ = steps[-1]
        sign = "-" if sign == "+" and left >= right else "+"
        steps[-1] = [left, sign, right, left + right if sign == "+" else left - right]
    lines = [f"{left} {sign} {right} = {result}." for left, sign, right, result in steps]
    answer = steps[-1][0] if kind == "early" else steps[-1][3]
    last = f"The answer is {answer}." if kind == "no box" else f"\\boxed{{{answer}}}"
    return " ".join([*lines, last])


def _code(problem: Problem, rng: random.Random, slip: bool) -> str:
    header, body = problem.target["solution"].rstrip("\n").split("\n")
    expression = body.removeprefix("    return ")
    if slip:
        kind = rng.choice(("wrong", "wrong", "wrong", "no return", "no colon"))
        if kind == "wrong":
            expression = _other_expression(header, expression, rng)
        if kind == "no colon":
            header = header.rstrip(":")
        body = f"    {expression}" if kind == "no return" else f"    return {expression}"
    return f"```python\n{header}\n{body}\n```"


def _other_expression(header: str, expression: str, rng: random.Random) -> str:
    """Another expression that functions with these arguments can have."""
    arguments = header[header.index("(") + 1 : header.index(")")].split(", ")
    kinds = "nn" if len(arguments) == 2 else _kind(arguments[0])
    while True:
        _, template, _ = rng.choice([k for k in functions.KINDS if k[2] == kinds])
        other = template.format(*arguments, k=rng.randint(2, 9))
        if other != expression:
            return other


def _kind(argument: str) -> str:
    if argument in functions.LISTS:
        return "l"
    return "t" if argument in functions.TEXTS else "n"


def _swe(problem: Problem, rng: random.Random, slip: bool) -> str:
    files, gold = problem.target["files"], problem.target["gold_files"]
    path = next(p for p in files if files[p] != gold[p])
    pairs = zip(_functions(files[path]), _functions(gold[path]), strict=True)
    before, after = next((b, a) for b, a in pairs if b != a)
    if slip:
        kind = rng.choice(("wrong", "wrong", "unchanged", "path", "search"))
        header, body = after.split("\n")
        if kind == "wrong":
            wrong = _other_expression(header, body.removeprefix("    return "), rng)
            after = f"{header}\n    return {wrong}"
        if kind == "unchanged":
            after = before
        if kind == "path":
            path = next(p for p in files if p != path)
        if kind == "search":
            before = after
    return f"### {path}\n<<<<<<< SEARCH\n{before}\n=======\n{after}\n>>>>>>> REPLACE"


def _functions(text: str) -> list[str]:
    lines = text.rstrip("\n").split("\n")
    return ["\n".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]


def _instruct(problem: Problem, rng: random.Random, slip: bool) -> str:
    constraints = dict(
        zip(problem.target["instruction_id_list"], problem.target["kwargs"], strict=True)
    )
    if slip:  # one constraint is forgotten
        constraints.pop(rng.choice(sorted(constraints)))
    return compose(problem.target["topic"], constraints, rng)


def compose(topic: str, constraints: dict[str, dict], rng: random.Random) -> str:
    """A text about the topic that satisfies the constraints (the ids of the instruct domain)."""
    length = constraints.get("length_constraints:number_words", {})
    keywords = constraints.get("keywords:existence", {}).get("keywords", [])
    ending = constraints.get("startend:end_checker", {}).get("end_phrase", "")
    parts = [f"It is {word}." for word in keywords]
    n_words = length.get("num_words")
    if length.get("relation") == "less than":
        room = n_words - 1 - len(" ".join([*parts, ending]).split())
        parts[:0] = _short(topic, room, rng)
    else:
        parts[:0] = [topics.sentence(rng, topic, rng.choice((1, 2, 3)))]
        while n_words and len(" ".join([*parts, ending]).split()) < n_words:
            parts.append(f"It {rng.choice(topics.FACTS[topic])}.")
    text = " ".join([*parts, *([ending] if ending else [])])
    if "punctuation:no_comma" in constraints:
        text = text.replace(", and ", " and ").replace(", ", " and ")
    if "change_case:english_lowercase" in constraints:
        text = text.lower()
    if "startend:quotation" in constraints:
        text = f'"{text}"'
    return text


def _short(topic: str, room: int, rng: random.Random) -> list[str]:
    """A sentence of at most `room` words, or nothing where none fits."""
    facts = topics.FACTS[topic]
    forms = [f"It {fact}." for fact in facts] + [f"The {topic} {fact}." for fact in facts]
    fitting = [form for form in forms if len(form.split()) <= room]
    return [rng.choice(fitting)] if fitting else []


_TEACHERS = {"instruct": _instruct, "math": _math, "code": _code, "swe": _swe}
