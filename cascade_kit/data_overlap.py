"""Training prompts that repeat nine words of an evaluation prompt are left out, as in the paper.

Words are compared without case and punctuation. Stretches that stand in many prompts are the form
of the task, not its content, and do not count; nor do the kit's own instructions and a row's files.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from cascade_kit.data_programs import PROGRAM_FORM
from cascade_kit.data_rows import BOXED, PYTHON_BLOCK, STUB
from cascade_kit.domains.swe import FORM, REPAIR

N = 9  # words
COMMON_PROMPTS, COMMON_SHARE = 3, 0.01  # a stretch in as many prompts is the form of the task
WORD = re.compile(r"\w+")
OWN_WORDS = re.compile(
    "|".join(re.escape(t) for t in (BOXED, PYTHON_BLOCK, PROGRAM_FORM, REPAIR, FORM, STUB)),
    re.IGNORECASE,
)
FILES = re.compile(r"\n\n### \S+\n```")  # what follows is code of the repository, not the task


def overlapping(train: Sequence[str], held_out: Sequence[str], n: int = N) -> set[int]:
    """Indices of the training prompts that share n words in a row with an evaluation prompt.

    Prompts of fewer than n words overlap when they are equal but for case and white space.

    >>> words = "the quick brown fox jumps over the lazy dog"
    >>> overlapping([f"Tell me: {words}.", "Why?"], [f"{words.upper()}!", "Why not?"])
    {0}
    """
    found: Counter[str] = Counter()  # of evaluation stretches: in how many prompts they stand
    for prompt in held_out:
        found.update(stretches(prompt, n))
    hits: list[set[str]] = []
    for prompt in train:
        shared = stretches(prompt, n) & found.keys()
        hits.append(shared)
        found.update(shared)
    total = len(train) + len(held_out)
    return {
        i
        for i, shared in enumerate(hits)
        if any(not _is_common(found[stretch], total) for stretch in shared)
    }


def _is_common(prompts: int, total: int) -> bool:
    return prompts >= COMMON_PROMPTS and prompts > COMMON_SHARE * total


def stretches(prompt: str, n: int = N) -> set[str]:
    """Each n words in a row of a prompt, without the parts that the kit added to it."""
    text = FILES.split(prompt, maxsplit=1)[0].lower()
    return {stretch for part in OWN_WORDS.split(text) for stretch in _of_part(part, n)}


def _of_part(part: str, n: int) -> Iterator[str]:
    words = WORD.findall(part)
    if words and len(words) < n:
        yield " ".join(part.split())
    for i in range(len(words) - n + 1):
        yield " ".join(words[i : i + n])
