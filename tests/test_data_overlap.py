"""Training prompts that share nine words with an evaluation prompt are left out."""

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_kit.data import load_data
from cascade_kit.data_overlap import overlapping, stretches
from cascade_kit.data_rows import BOXED, PYTHON_BLOCK
from cascade_kit.domains.swe import FORM

NINE = "one two three four five six seven eight nine"
FIRST = "abcdefghi"


def test_nine_shared_words_overlap_and_eight_do_not():
    shared, most = f"x {NINE} y", "x one two three four five six seven eight y z"
    assert overlapping([shared, most], [f"Begin: {NINE.upper()}, end."]) == {0}
    assert overlapping([most], [NINE], n=8) == {0}


def test_short_prompts_overlap_only_when_they_are_equal():
    train = ["What is 2 + 3?", "what is  2 - 3?", "Why?"]
    assert overlapping(train, ["What is 2 - 3?", "Why not?"]) == {1}


def test_the_stretches_of_a_prompt_are_counted_by_hand():
    assert stretches("A b c d e f g h i j") == {"a b c d e f g h i", "b c d e f g h i j"}
    assert stretches("") == stretches("\n ") == set()


def test_what_the_kit_adds_to_a_prompt_does_not_count():
    train, held_out = "Add the even ones", "Sum up the primes"
    for form in (BOXED, PYTHON_BLOCK, FORM):
        assert not overlapping([f"{train}\n{form}"], [f"{held_out}\n{form}"])
    file = f"\n\n### a.py\n```python\n# {NINE}\n```"
    issue = "Fix this issue in the files below.\n\n"
    assert not overlapping([f"{issue}{train}{file}"], [f"{issue}{held_out}{file}"])
    assert overlapping([f"{issue}{train}{file}"], [f"{issue}{train}{file}"]) == {0}


def test_words_of_many_prompts_are_a_form_and_words_of_few_are_not():
    """Of 100 prompts, a stretch counts up to 2 of them; three is more than 1 % and not below 3."""
    others = [f"Other question number {i}" for i in range(96)]
    ask = f"{NINE} ask {{}}"
    assert overlapping([*others, ask.format(1)], [ask.format(9)]) == {96}
    assert overlapping([*others, ask.format(1), ask.format(2)], [ask.format(9)]) == set()
    many = [f"Other question number {i}" for i in range(400)]  # here 1 % is more than three
    assert overlapping([*many, ask.format(1), ask.format(2)], [ask.format(9)]) == {400, 401}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(FIRST), min_size=1, max_size=14), min_size=2, max_size=8))
def test_it_agrees_with_a_plain_search(texts):
    """Against a search without sets, for prompts of at least n words (common ones aside)."""
    n, half = 3, len(texts) // 2
    train, held_out = ([" ".join(words) for words in part] for part in (texts[:half], texts[half:]))

    def runs(text: str) -> list[str]:
        words = text.split()
        return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)] or [text]

    everything = [runs(text) for text in train + held_out]
    expected = {
        i
        for i, text in enumerate(train)
        for run in runs(text)
        if any(run in runs(other) for other in held_out)
        and sum(run in found for found in everything) < 3
    }
    assert overlapping(train, held_out, n=n) == expected


def test_the_number_of_rows_left_out_is_in_the_notes(tmp_path):
    def rows(*texts: str) -> str:
        return "".join(json.dumps({"question": t, "answer": "1"}) + "\n" for t in texts)

    (tmp_path / "train.jsonl").write_text(rows(f"Say {NINE} now", f"{NINE}?", "Something else?"))
    (tmp_path / "test.jsonl").write_text(rows(f"Never {NINE.title()}!", "Third?"))
    filler = rows(*(f"Other question number {i}?" for i in range(400)))
    (tmp_path / "more.jsonl").write_text(filler)
    sources = [tmp_path / "train.jsonl", tmp_path / "more.jsonl"]
    data = load_data(*sources, eval_sources=[tmp_path / "test.jsonl"])
    assert data.notes[-1] == (
        "math: 401 train and 2 eval problems; 2 train prompts share 9 words in a row with an eval "
        "prompt and were dropped"
    )
    (tmp_path / "train.jsonl").write_text(rows(f"Say {NINE} now"))
    with pytest.raises(ValueError, match="each math row to train on shares 9 words in a row with"):
        load_data(tmp_path / "train.jsonl", eval_sources=[tmp_path / "test.jsonl"])


def test_fifty_thousand_rows_take_seconds():
    rng = random.Random(0)
    words = [f"w{i}" for i in range(5000)]
    texts = [" ".join(rng.choices(words, k=60)) for _ in range(51_000)]
    train, held_out = texts[:50_000], texts[50_000:]
    train[7] = f"{train[7]} {held_out[3]}"
    start = time.perf_counter()
    assert overlapping(train, held_out) == {7}
    assert time.perf_counter() - start < 30
