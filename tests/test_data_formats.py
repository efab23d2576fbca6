"""Every public format: rows that load, and three kinds of broken rows each.

A missing column and a wrong type stop the load with file, row and column; content that cannot be
used is left out and counted.
"""

import json
import os
from pathlib import Path

import pytest

from cascade_kit.data import load_data, load_rows
from cascade_kit.data_formats import BY_NAME, recognise
from cascade_kit.domains.code import reward as code_reward
from cascade_kit.domains.math import reward as math_reward
from cascade_kit.domains.swe import reward as swe_reward

SHARED = Path(os.environ.get("CASCADE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
FILES = {"a.py": "def one():\n    return 2\n"}
PATCH = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def one():\n-    return 2\n+    return 1\n"
CHECK = "def check(candidate):\n    assert candidate(1) == {i}\n"


def talk(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


# A sound row of each format with i in it, so that rows differ; the column to leave out, the column
# that gets a wrong value, that value, and what makes the row unusable with the reason in the notes.
FORMATS = {
    "GSM8K": (
        lambda i: {"question": f"Q{i}?", "answer": f"So.\n#### {i}"},
        "answer",
        ("question", 3, "a text is needed"),
        ({"answer": "#### "}, "a gold answer that cannot be parsed"),
    ),
    "MATH": (
        lambda i: {"problem": f"P{i}.", "answer": f"\\frac{{{i}}}{{7}}", "source": "made here"},
        "answer",
        ("answer", None, "holds null"),
        ({"answer": "\\frac{1}{"}, "a gold answer that cannot be parsed"),
    ),
    "MATH with solutions": (
        lambda i: {"problem": f"P{i}.", "level": "1", "type": "A", "solution": f"\\boxed{{{i}}}"},
        "solution",
        ("solution", 4, "a text is needed"),
        ({"solution": "It is four."}, "a solution without \\boxed{}"),
    ),
    "prompt and answer": (
        lambda i: {"prompt": f"What is {i} + 1?", "answer": str(i + 1)},
        "answer",
        ("prompt", " ", "is blank"),
        ({"answer": " "}, "a gold answer that cannot be parsed"),
    ),
    "IFEval": (
        lambda i: {
            "prompt": talk(f"Write {i}."),
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{"num_words": None}],
        },
        "kwargs",
        ("kwargs", [], "0 entries for 1 constraints"),
        (
            {"instruction_id_list": ["punctuation:no_coma"]},
            "a constraint without a checker (punctuation:no_coma, nearest: punctuation:no_comma)",
        ),
    ),
    "MBPP": (
        lambda i: {"text": f"Write f{i}.", "test_list": [f"assert f{i}(1) == 2"], "code": ""},
        "test_list",
        ("test_list", "assert f(1)", "a list of texts is needed"),
        ({"test_list": ["assert f(1) == 2", "assert f(2 == 3"]}, "tests that are not Python"),
    ),
    "HumanEval": (
        lambda i: {
            "prompt": f"def f{i}(x):\n",
            "test": CHECK.format(i=i),
            "entry_point": f"f{i}",
        },
        "entry_point",
        ("test", ["x"], "a text is needed"),
        ({"test": "def check(candidate)\n  assert"}, "tests that are not Python"),
    ),
    "TACO": (
        lambda i: {
            "question": f"Double the number, {i}.",
            "input_output": json.dumps({"inputs": ["2\n"], "outputs": ["4\n"]}),
            "starter_code": "",
        },
        "input_output",
        ("input_output", "{'inputs'", "is text but not JSON"),
        ({"input_output": '{"inputs": [], "outputs": []}'}, "no tests, or inputs and outputs"),
    ),
    "mini-SWE": (
        lambda i: {
            "problem_statement": f"one() is wrong, {i}.",
            "buggy_tree": FILES,
            "gold_patch": PATCH,
            "FAIL_TO_PASS": ["t::a"],
            "PASS_TO_PASS": [],
        },
        "FAIL_TO_PASS",
        ("buggy_tree", {"a.py": 1}, "is a number"),
        ({"gold_files": FILES}, "a gold change that changes nothing"),
    ),
    "Nemotron-Cascade-RL-SWE": (
        lambda i: {
            "prompt": f"one() is wrong, {i}.",
            "golden_patch": PATCH,
            "relevant_file_contents": [{"path": "a.py", "content": FILES["a.py"]}],
        },
        "golden_patch",
        ("relevant_file_contents", [{"content": "x"}], "a list of objects with path and content"),
        ({"golden_patch": PATCH.replace("a.py", "b.py")}, "a gold patch that does not apply"),
    ),
    "preference": (
        lambda i: {"prompt": f"P{i}", "chosen": "good", "rejected": "bad"},
        "prompt",
        ("chosen", 1, "column 'chosen' holds a number"),
        ({"rejected": "good"}, "two answers that are the same"),
    ),
    "HelpSteer3": (
        lambda i: {
            "context": talk(f"P{i}"),
            "response1": "bad",
            "response2": "good",
            "overall_preference": 2,
        },
        "overall_preference",
        ("overall_preference", "2", "but a number is needed"),
        ({"overall_preference": 0}, "a tie between the two answers"),
    ),
    "HelpSteer2 preference": (
        lambda i: {
            "prompt": f"P{i}",
            "response_1": "good",
            "response_2": "bad",
            "preference_strength": -1,
        },
        "response_2",
        ("preference_strength", None, "but a number is needed"),
        ({"prompt": "A\n<extra_id_1>Assistant\nB"}, "a conversation of more than one user turn"),
    ),
}
every_format = pytest.mark.parametrize("name", list(FORMATS))


def write(folder: Path, *rows: dict) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def all_of(data, domain: str) -> list:
    return [*data.train[domain], *data.eval[domain]]


def test_no_format_is_forgotten():
    """SWE-bench rows are never read; the other two have tests of their own here."""
    assert BY_NAME.keys() - FORMATS.keys() == {"SWE-bench", "HelpSteer2", "reasoning-gym"}


@every_format
def test_sound_rows_are_recognised_and_load(name, tmp_path):
    row = FORMATS[name][0]
    assert recognise(row(0)) == name
    data = load_data(write(tmp_path, *map(row, range(12))))
    assert data.notes[0] == f"rows.jsonl: 12 {BY_NAME[name].domain} rows ({name})"
    assert len(all_of(data, BY_NAME[name].domain)) == 12


@every_format
def test_a_missing_column_stops_the_load(name, tmp_path):
    row, column, *_ = FORMATS[name]
    misspelt = {(f"{k}s" if k == column else k): v for k, v in row(3).items()}
    path = write(tmp_path, row(0), row(1), misspelt)
    with pytest.raises(ValueError) as caught:
        load_data(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: column '{column}'") and "\n" not in message
    assert f"is missing; did you mean '{column}s'? Then rename that column" in message


@every_format
def test_a_wrong_value_stops_the_load(name, tmp_path):
    row, _, (column, value, words), _ = FORMATS[name]
    path = write(tmp_path, row(0), {**row(1), column: value})
    with pytest.raises(ValueError) as caught:
        load_data(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2: ") and column in message and words in message
    assert message.endswith(("row", "at least one")) and "\n" not in message


@every_format
def test_an_unusable_row_is_left_out_and_counted(name, tmp_path):
    row, *_, (change, reason) = FORMATS[name]
    data = load_data(write(tmp_path, row(0), {**row(1), **change, "id": "bad-1"}, row(2)))
    assert f"; 1 dropped for {reason}" in data.notes[0] and "bad-1" in data.notes[0]
    assert len(all_of(data, BY_NAME[name].domain)) == 2


# What single formats mean


def test_a_program_is_graded_on_what_it_writes(tmp_path):
    data = load_data(write(tmp_path, *map(FORMATS["TACO"][0], range(2))))
    problem = all_of(data, "code")[0]
    assert problem.target["io"] == [{"stdin": "2\n", "stdout": "4\n"}]
    program = "```python\nprint(int(input()) * {})\n```"
    assert [code_reward(problem, program.format(k)).value for k in (2, 3)] == [1.0, 0.0]


def test_a_function_of_a_program_row_may_wrap_its_output_or_not(tmp_path):
    def row(outputs: list, **more) -> dict:
        tests = {"fn_name": "pair", "inputs": [[1, 2]], "outputs": outputs}
        return {"question": f"Add two numbers: {outputs}", "input_output": tests, **more}

    method = row([5], starter_code="class Solution:\n    def pair(self):")
    data = load_data(write(tmp_path, row([3]), row([[3]]), method))
    assert "1 dropped for a task that asks for a method of a class (line 3)" in data.notes[0]
    answer = "```python\ndef pair(a, b):\n    return a {} b\n```"
    for problem in all_of(data, "code"):
        assert "Name the function pair." in problem.prompt
        assert [code_reward(problem, answer.format(s)).value for s in "+-"] == [1.0, 0.0]


def test_rated_answers_become_pairs_of_the_best_and_the_worst(tmp_path):
    ratings = [("P0", "a", 1), ("P0", "b", 4), ("P0", "c", 2), ("P1", "d", 3), ("P1", "e", 0)]
    ratings += [("P2", "f", 2), ("P2", "g", 2), ("P3", "alone", 4)]
    rows = [{"prompt": p, "response": r, "helpfulness": h, "verbosity": 1} for p, r, h in ratings]
    data = load_data(write(tmp_path, *rows))
    pairs = sorted((*data.train_pairs, *data.eval_pairs), key=lambda pair: pair.prompt)
    assert [(p.prompt, p.chosen, p.rejected) for p in pairs] == [
        ("P0", "b", "a"),
        ("P1", "d", "e"),
    ]
    assert "2 dropped for a tie between the two answers" in data.notes[0]
    with pytest.raises(ValueError, match="line 2: column 'helpfulness' is missing; did you mean"):
        load_data(write(tmp_path, rows[0], {"prompt": "p", "response": "r", "helpfulnes": 1}))
    with pytest.raises(ValueError, match="line 1: column 'helpfulness' holds null, but a number"):
        load_data(write(tmp_path, {**rows[0], "helpfulness": None}))


def test_the_sign_of_a_preference_says_which_answer_is_better(tmp_path):
    row = FORMATS["HelpSteer3"][0]
    data = load_data(write(tmp_path, row(0), {**row(1), "overall_preference": -3}))
    pairs = {
        pair.prompt: (pair.chosen, pair.rejected) for pair in (*data.train_pairs, *data.eval_pairs)
    }
    assert pairs == {"P0": ("good", "bad"), "P1": ("bad", "good")}


@pytest.mark.parametrize(
    "files",
    [FILES, json.dumps(FILES), json.dumps([{"file_path": "a.py", "content": FILES["a.py"]}])],
)
def test_a_repair_prompt_is_scored_without_tests(files, tmp_path):
    row = FORMATS["Nemotron-Cascade-RL-SWE"][0]
    ready = "Write SEARCH/REPLACE blocks. one() is wrong."
    rows = [row(0) | {"relevant_file_contents": files}, row(1) | {"prompt": ready}]
    data = load_data(write(tmp_path, *rows))
    problems = {problem.prompt: problem for problem in all_of(data, "swe")}
    assert ready in problems
    [own] = problems.keys() - {ready}
    assert own.startswith("Fix this issue in the files below.\n\none() is wrong, 0.\n\n### a.py\n")
    edit = "### a.py\n<<<<<<< SEARCH\n    return 2\n=======\n    return 1\n>>>>>>> REPLACE"
    assert [swe_reward(problems[own], text).value for text in (edit, "no edit")] == [1.0, -1.0]


def test_the_answer_of_a_teachers_table_is_compared_as_mathematics(tmp_path):
    path = tmp_path / "class.csv"
    path.write_text("prompt;answer\nWhat is half of three?;1.5\nWhat is 2 + 2?;4\n")
    problems = {p.target["answer"]: p for p in all_of(load_data(path), "math")}
    assert math_reward(problems["1.5"], "\\boxed{\\frac{3}{2}}").value == 1.0
    assert math_reward(problems["4"], "\\boxed{5}").value == 0.0


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no shared data beside the repository")
@pytest.mark.parametrize(
    ("path", "rows", "name"),
    [
        ("gsm8k/test_first600.jsonl", 300, "GSM8K"),
        ("math500/math500.jsonl", 250, "MATH"),
        ("ifeval/input_data.jsonl", 536, "IFEval"),
        ("ifbench/IFBench_test.jsonl", 285, "IFEval"),
        ("mbpp/mbpp.jsonl", 325, "MBPP"),
        ("humaneval/HumanEval.jsonl", 82, "HumanEval"),
        ("humanevalfix_python/humanevalpack_python.jsonl", 82, "HumanEval"),
        ("swe_mini_exec/tasks.jsonl", 10, "mini-SWE"),
        ("dpo_en_demo/dpo_en_demo.jsonl", 94, "preference"),
        ("llmbar/pairs.jsonl", 210, "preference"),
    ],
)
def test_public_rows_load(path, rows, name):
    data = load_data(SHARED / "data" / path)
    [domain] = data.eval
    assert data.notes[0].startswith(f"{Path(path).name}: {rows} {domain} rows ({name})")
    assert data.train[domain] and data.eval[domain]


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no shared data beside the repository")
def test_rows_without_a_repository_are_refused_with_the_reason():
    path = SHARED / "data" / "swebench_lite" / "swebench_lite.jsonl"
    assert len(load_rows(path)) == 100
    with pytest.raises(ValueError, match=r"do not hold its files \(add buggy_tree\)"):
        load_data(path)
