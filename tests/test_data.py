"""Data folders: recognised formats, targets and prompts, the split, and one line for bad input."""

import json
import os
import re
from pathlib import Path

import pytest

from cascade_kit.data import load_data, load_rows
from cascade_kit.data_formats import recognise
from cascade_kit.data_patch import apply_gold_patch
from cascade_kit.data_rows import called_function, fenced
from cascade_kit.problem import PreferencePair
from cascade_kit.samples import samples_folder, write_samples

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("CASCADE_SHARED") or ROOT.parent / "shared")
MATH_ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(40)]
BUGGY = {"calc.py": "def one():\n    return 2\n", "other.py": "x = 1\n", "tests/test_calc.py": "\n"}
SWE_ROW = {
    "id": "one",
    "problem_statement": "one() returns 2\r\ninstead of 1.",
    "buggy_tree": BUGGY,
    "gold_files": {"calc.py": "def one():\n    return 1\n"},
    "FAIL_TO_PASS": ["tests.test_calc::test_one"],
    "PASS_TO_PASS": [],
    "run": "python -m pytest -q tests",
    "pythonpath": [".", "src"],
}
GOLD_PATCH = (
    "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n"
    "@@ -1,2 +1,2 @@\n def one():\n-    return 2\n+    return 1\n"
)


def write(path: Path, *rows: object) -> Path:
    """A JSONL file; strings are written as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def load(folder: Path, *rows: object, **settings):
    write(folder / "rows.jsonl", *rows)
    return load_data(folder, **settings)


def everything(data, domain: str) -> list:
    """The problems of a domain, train and eval, in the order of their lines."""
    problems = [*data.train[domain], *data.eval[domain]]
    return sorted(problems, key=lambda problem: int(problem.id.rpartition(":")[2]))


def message_of(folder: Path, *rows: object, **settings) -> str:
    """The one line that a bad data folder answers with."""
    with pytest.raises(ValueError) as caught:
        load(folder, *rows, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Formats


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("id question solution answer", "GSM8K"),
        ("problem answer level", "MATH"),
        ("key prompt instruction_id_list kwargs", "IFEval"),
        ("task_id text code test_setup_code test_list challenge_test_list", "MBPP"),
        ("task_id prompt code test_imports test_list", "MBPP"),
        ("task_id prompt entry_point canonical_solution test", "HumanEval"),
        ("task_id prompt test text declaration buggy_solution entry_point", "HumanEval"),
        ("problem_statement buggy_tree gold_patch FAIL_TO_PASS PASS_TO_PASS", "mini-SWE"),
        ("instance_id repo base_commit problem_statement patch", "SWE-bench"),
        ("instance_id problem_statement patch test_patch FAIL_TO_PASS PASS_TO_PASS", "SWE-bench"),
        ("prompt chosen rejected", "preference"),
        ("conversations chosen rejected", "preference"),
        ("question ground_truth completion is_correct", "recorded answers"),
        ("prompt response instruction_id_list kwargs strict loose", "recorded answers"),
        ("name buggy fixed pytest", None),
        ("text", None),
        ("prompt", None),
    ],
)
def test_a_format_is_recognised_by_its_columns(columns, name):
    assert recognise(columns.split()) == name


def test_math_gold_stands_after_the_hashes_or_is_the_whole_answer(tmp_path):
    rows = [
        {"question": "How many?\r\nSay it.", "answer": "16 - 3 = <<16-3=13>>13 left.\n#### 1,013"},
        {"question": "Plain?", "answer": "18"},
        {"question": "A number?", "answer": 2.5},
        {"question": "Put it into \\boxed{}: 1 + 1", "answer": 2},
    ]
    problems = everything(load(tmp_path, *rows), "math")
    assert [p.target["answer"] for p in problems] == ["1,013", "18", "2.5", "2"]
    assert problems[0].prompt == "How many?\nSay it.\nPut the final answer in \\boxed{}."
    assert problems[3].prompt == "Put it into \\boxed{}: 1 + 1"
    assert problems[0].id == "rows.jsonl:1"


def test_competition_problems_keep_their_latex_answer(tmp_path):
    rows = [{"problem": f"Find ${i}x$.", "answer": "\\frac{14}{3}"} for i in range(2)]
    problem = everything(load(tmp_path, *rows), "math")[0]
    assert problem.target == {"answer": "\\frac{14}{3}"}
    assert problem.prompt == "Find $0x$.\nPut the final answer in \\boxed{}."


def test_null_arguments_of_constraints_are_dropped(tmp_path):
    rows = [
        {
            "prompt": f"Write {i}.",
            "instruction_id_list": ["length_constraints:number_words", "punctuation:no_comma"],
            "kwargs": [{"num_words": 9, "relation": "at least", "letter": None}, None],
        }
        for i in range(2)
    ]
    problem = everything(load(tmp_path, *rows), "instruct")[0]
    assert problem.prompt == "Write 0."
    assert problem.target["kwargs"] == [{"num_words": 9, "relation": "at least"}, {}]


def test_contradictory_constraints_are_dropped_and_counted(tmp_path):
    upper, lower = "change_case:english_capital", "change_case:english_lowercase"
    rows = [
        {"key": i, "prompt": f"P{i}", "instruction_id_list": ids, "kwargs": [{} for _ in ids]}
        for i, ids in enumerate([[upper], [lower], [upper, lower]])
    ]
    data = load(tmp_path, *rows)
    assert [p.prompt for p in everything(data, "instruct")] == ["P0", "P1"]
    assert "1 dropped for constraints that contradict" in data.notes[0]
    assert data.notes[0].endswith("(2)")


def test_gold_answers_that_cannot_be_parsed_are_dropped_with_their_ids(tmp_path):
    rows = [*MATH_ROWS, {"id": "bad-1", "question": "What?", "answer": ""}]
    data = load(tmp_path, *rows)
    assert len(everything(data, "math")) == 40
    assert "1 dropped for a gold answer that cannot be parsed (bad-1)" in data.notes[0]


def test_assert_tasks_show_the_first_assert_and_name_the_function(tmp_path):
    row = {
        "text": "Add one.",
        "code": "def add(x):\n    return x + 1",
        "test_list": ["assert set([add(1)]) == {2}", "assert add(2) == 3"],
        "test_imports": ["import math"],
        "test_setup_code": "k = 1",
    }
    named = {"prompt": "Write add(x) that adds one.", "test_list": ["assert add(1) == 2"]}
    first, second = everything(load(tmp_path, row, {**named, "one_liner": True}), "code")
    assert first.prompt == (
        "Add one.\nYour code should satisfy: assert set([add(1)]) == {2}\n"
        "Answer with the whole function in one ```python block."
    )
    assert first.target == {
        "tests": row["test_list"],
        "entry_point": "add",
        "setup": "import math\nk = 1",
        "format": "asserts",
    }
    assert "should satisfy" not in second.prompt
    assert second.target["one_liner"] is True


@pytest.mark.parametrize(
    ("test", "solution", "name"),
    [
        ("assert set(f((1, 2))) == set((2,))", "", "f"),
        ("assert math.isclose(area(2), 4.0)", "", "area"),
        ("assert sum(1, 2) == 3", "def sum(a, b):\n    return a + b", "sum"),
        ("assert sum(1, 2) == 3", "", None),
        ("assert f(Node(1)) == g(2)", "class Node: ...\ndef g(x): ...", "g"),
        ("assert f(1 == 2", "", None),
        ("assert f(1) == 2", "print 'python 2'", "f"),
    ],
)
def test_the_tested_function_is_found_in_an_assert(test, solution, name):
    assert called_function(test, solution) == name


def test_function_stubs_keep_their_indentation(tmp_path):
    rows = [
        {
            "prompt": f'\n\ndef f{i}(x):\n    """Adds one."""\n',
            "test": "def check(candidate):\n    assert candidate(1) == 2\n",
            "entry_point": f"f{i}",
        }
        for i in range(2)
    ]
    problem = everything(load(tmp_path, *rows), "code")[0]
    assert problem.target == {
        "tests": rows[0]["test"],
        "entry_point": "f0",
        "setup": "",
        "format": "humaneval",
        "prompt_code": rows[0]["prompt"],
    }
    assert problem.prompt.startswith("Complete this Python function.\n```python\ndef f0(x):\n    ")


def test_repository_tasks_show_the_files_to_be_changed_only(tmp_path):
    by_patch = {k: v for k, v in SWE_ROW.items() if k not in ("gold_files", "run", "pythonpath")}
    by_patch |= {"gold_patch": GOLD_PATCH, "problem_statement": "By patch."}
    first, second = everything(load(tmp_path, SWE_ROW, by_patch), "swe")
    assert first.prompt.startswith(
        "Fix this issue in the files below.\n\none() returns 2\ninstead of 1.\n\n"
        "### calc.py\n```python\ndef one():\n    return 2\n```\n\nAnswer with"
    )
    assert "other.py" not in first.prompt and "tests/test_calc.py" not in first.prompt
    for line in ("<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"):
        assert line in first.prompt.split("\n")
    gold = {**BUGGY, "calc.py": "def one():\n    return 1\n"}
    assert first.target == {
        "issue": "one() returns 2\ninstead of 1.",
        "files": BUGGY,
        "shown": ["calc.py"],
        "gold_files": gold,
        "fail_to_pass": ["tests.test_calc::test_one"],
        "pass_to_pass": [],
        "run": "python -m pytest -q tests",
        "pythonpath": [".", "src"],
    }
    assert second.target["gold_files"] == gold
    assert (second.target["run"], second.target["pythonpath"]) == ("python -m pytest -q", ["."])


@pytest.mark.parametrize(
    ("patch", "files", "changes"),
    [
        ("@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\nb\n", "a\nc\n"),
        ("@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -3 +4,0 @@\n-z\n", "a\nx\nz\ny\n", "b\nc\nx\ny\n"),
        ("@@ -1,0 +2 @@\n+b\n", "a\nc\n", "a\nb\nc\n"),
        ("@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", "a\n", "b"),
        ("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n", "a", "a\n"),
        ("@@ -1,2 +1,2 @@\n-a\r\n+b\r\n \u2028\f\r\n", "a\r\n\u2028\f\r\n", "b\r\n\u2028\f\r\n"),
        ("@@ -1,3 +1,3 @@\n-a\n+b\n\n c\n", "a\n\nc\n", "b\n\nc\n"),
    ],
)
def test_gold_patches_keep_line_ends(patch, files, changes):
    header = "--- a/x.py\t2024-01-01\n+++ b/x.py\t2024-01-02\n"
    assert apply_gold_patch(header + patch, {"x.py": files}) == {"x.py": changes}


def test_gold_patches_add_delete_and_move_files():
    patch = (
        "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- a/b/here.py\n+++ b/b/there.py\n@@ -1 +1 @@\n-y\n+z\n"
    )
    files = {"old.py": "x\n", "b/here.py": "y\n"}
    assert apply_gold_patch(patch, files) == {
        "new.py": "a\nb\n",
        "old.py": None,
        "b/here.py": None,
        "b/there.py": "z\n",
    }


def test_a_deleted_file_is_shown_and_a_new_one_is_not(tmp_path):
    patch = "--- a/other.py\n+++ b/new.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    row = {k: v for k, v in SWE_ROW.items() if k != "gold_files"} | {"gold_patch": patch}
    row["problem_statement"] = "Rename the file."
    problem = everything(load(tmp_path, row, SWE_ROW), "swe")[0]
    assert "### other.py\n```python\nx = 1\n```" in problem.prompt
    assert "### new.py" not in problem.prompt
    assert problem.target["gold_files"].keys() == {"calc.py", "tests/test_calc.py", "new.py"}


def test_a_gold_change_that_changes_nothing_is_dropped(tmp_path):
    same = {**SWE_ROW, "gold_files": {"calc.py": BUGGY["calc.py"]}}
    message = message_of(tmp_path, SWE_ROW, same)
    assert "too few swe rows are left (1 distinct, at least two are needed" in message
    assert "1 dropped for a gold change that changes nothing (one)" in message


def test_fences_are_longer_than_those_in_the_text():
    assert fenced("x\n", "python") == "```python\nx\n```"
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"


def test_preference_pairs_are_read_in_every_spelling(tmp_path):
    user = {"role": "user", "content": "Hello?"}
    good, bad = ({"role": "assistant", "content": text} for text in ("Good.", "Bad."))
    share = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hello?"}]
    answer = [{"from": "gpt", "value": text} for text in ("Good.", "Bad.")]
    rows = [
        {"prompt": "Hi?", "chosen": "Good.", "rejected": "Bad."},
        {"conversations": share, "chosen": answer[0], "rejected": answer[1]},
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"prompt": "Hello!", "chosen": [user, good], "rejected": [user, bad]},
        {"chosen": [{**user, "content": "Hm?"}, good], "rejected": [user, bad]},
    ]
    data = load(tmp_path, *rows)
    pairs = sorted([*data.train_pairs, *data.eval_pairs], key=lambda pair: pair.id)
    prompts = ["Hi?", "Be kind.\n\nHello?", "Hello?", "Hello!", "Hm?"]
    assert pairs == [
        PreferencePair(f"rows.jsonl:{i}", prompt, "Good.", "Bad.")
        for i, prompt in enumerate(prompts, start=1)
    ]
    assert [p.prompt for p in everything(data, "rlhf")] == prompts
    assert all(p.domain == "rlhf" and p.target == {} for p in everything(data, "rlhf"))


def test_pairs_without_a_preference_or_with_several_turns_are_dropped(tmp_path):
    turns = [{"from": who, "value": "x"} for who in ("human", "gpt", "human")]
    single = [{"prompt": f"P{i}", "chosen": "a", "rejected": "b"} for i in range(2)]
    several = {
        "conversations": turns,
        "chosen": {"from": "gpt", "value": "a"},
        "rejected": {"from": "gpt", "value": "b"},
    }
    same = {"prompt": "P3", "chosen": "a", "rejected": "a"}
    data = load(tmp_path, *single, several, same)
    assert "1 dropped for a conversation of more than one user turn (line 3)" in data.notes[0]
    assert "1 dropped for two answers that are the same (line 4)" in data.notes[0]
    assert len(data.train_pairs) + len(data.eval_pairs) == 2


# The folder, the split and the cap


def test_the_folder_is_searched_below_and_in_order(tmp_path):
    write(tmp_path / "b" / "deep" / "math.jsonl", *MATH_ROWS[:20])
    write(tmp_path / "a.jsonl", *MATH_ROWS[20:])
    write(tmp_path / ".ipynb_checkpoints" / "a.jsonl", "not json")
    (tmp_path / "notes.txt").write_text("not read")
    data = load_data(tmp_path)
    assert [note.partition(":")[0] for note in data.notes] == [
        "a.jsonl",
        "b/deep/math.jsonl",
        "math",
    ]
    assert load_data(str(tmp_path)) == data


def test_files_that_are_not_problems_are_skipped_by_name(tmp_path):
    write(tmp_path / "math.jsonl", *MATH_ROWS)
    write(tmp_path / "answers.jsonl", {"question": "q", "completion": "c", "is_correct": True})
    write(tmp_path / "bench.jsonl", {"problem_statement": "s", "patch": "p", "repo": "a/b"})
    write(tmp_path / "odd.jsonl", {"name": "n", "buggy": "b"})
    unknown = {"prompt": "p", "instruction_id_list": ["no:such"], "kwargs": [{}]}
    write(tmp_path / "unknown.jsonl", unknown, unknown)
    data = load_data(tmp_path)
    assert set(data.train) == set(data.eval) == {"math"}
    notes = {note.partition(": ")[0]: note.partition(": ")[2] for note in data.notes}
    assert notes["answers.jsonl"] == (
        "skipped, it holds recorded model answers (columns: completion, is_correct)"
    )
    assert notes["bench.jsonl"].startswith("skipped, its rows name a repository but do not hold")
    assert notes["odd.jsonl"] == "skipped, its columns fit no format: name, buggy"
    assert notes["unknown.jsonl"] == "skipped, it uses constraints without a checker: no:such"
    assert notes["math.jsonl"] == "40 math rows (GSM8K)"


def test_train_and_eval_are_disjoint_and_do_not_depend_on_the_seed(tmp_path):
    rows = [{"question": f"What is {i}?", "answer": str(i)} for i in range(300)]
    data, other = load(tmp_path, *rows), load(tmp_path, *rows, seed=1)
    train, held_out = ({p.prompt for p in part["math"]} for part in (data.train, data.eval))
    assert not train & held_out
    assert len(train) + len(held_out) == 300
    assert 30 < len(held_out) < 90  # a fifth, give or take
    assert {p.prompt for p in other.eval["math"]} == held_out
    assert other.eval["math"] != data.eval["math"]  # the seed decides the order


def test_duplicate_prompts_are_on_one_side(tmp_path):
    pairs = [
        {"prompt": f"P{i % 30}" + " " * (i % 2), "chosen": f"good {i}", "rejected": "bad"}
        for i in range(90)
    ]
    data = load(tmp_path, *pairs, pairs[0])
    sides = [{pair.prompt.strip() for pair in part} for part in (data.train_pairs, data.eval_pairs)]
    assert not sides[0] & sides[1]
    assert len(data.train_pairs) + len(data.eval_pairs) == 90
    assert len(everything(data, "rlhf")) == 30
    assert data.notes[-1].endswith("; 1 rows repeat another and were dropped")


def test_two_rows_are_one_to_train_and_one_to_evaluate(tmp_path):
    for start in range(0, 40, 2):
        data = load(tmp_path, *MATH_ROWS[start : start + 2])
        assert (len(data.train["math"]), len(data.eval["math"])) == (1, 1)


def test_rows_over_the_token_cap_are_dropped_and_counted(tmp_path):
    long = {"id": "long", "question": "word " * 50, "answer": "1"}
    data = load(
        tmp_path, *MATH_ROWS, long, token_count=lambda text: len(text.split()), max_prompt_tokens=20
    )
    assert len(everything(data, "math")) == 40
    assert data.notes[0].endswith("; 1 dropped for a prompt over the cap of 20 tokens (long)")


def test_the_sample_rows_are_what_the_command_writes_and_load(tmp_path):
    written = write_samples(tmp_path)
    for path in written:
        assert (samples_folder() / path.name).read_bytes() == path.read_bytes(), (
            "run `python -m cascade_kit.samples data_samples` after a change to the generators"
        )
    data = load_data(tmp_path)
    assert set(data.train) == {"rlhf", "instruct", "math", "code", "swe"}
    assert len(data.train_pairs) + len(data.eval_pairs) == 40
    read, split = data.notes[:5], data.notes[5:]
    assert all("40 " in note and "dropped" not in note for note in read)
    # The generators write alike: a few prompts share nine words with a held-out one.
    left = {domain: len(everything(data, domain)) for domain in data.train if domain != "rlhf"}
    assert left == {"code": 39, "instruct": 39, "math": 38, "swe": 40}
    assert [note for note in split if "2 train prompts share 9 words in a row" in note] == [
        "math: 30 train and 8 eval problems; 2 train prompts share 9 words in a row with an eval "
        "prompt and were dropped"
    ]
    assert all(problem.target["one_liner"] for problem in data.train["code"])


def test_the_sample_projects_fail_before_and_pass_after_the_gold_change():
    for row in load_rows(samples_folder() / "swe.jsonl"):
        [(path, gold)] = row["gold_files"].items()
        module = path.removesuffix(".py")
        test = row["buggy_tree"]["tests/test_project.py"]
        asserts = [line.strip().replace(f"{module}.", "") for line in test.splitlines()]
        asserts = [line for line in asserts if line.startswith("assert ") and "(" in line]
        assert len(asserts) == 4
        assert all(_holds(gold, line) for line in asserts)
        assert not all(_holds(row["buggy_tree"][path], line) for line in asserts)


def _holds(source: str, line: str) -> bool:
    names: dict = {}
    exec(source, names)  # generated by this package
    try:
        exec(line, names)
    except (AssertionError, TypeError, IndexError, AttributeError):
        return False
    return True


# Bad input: one line that says what to do


def test_rows_are_read_and_blank_lines_left_out(tmp_path):
    path = write(tmp_path / "x.jsonl", "\ufeff" + json.dumps({"a": "\u2028"}), "", '{"a": 2}\r')
    assert load_rows(path) == [{"a": "\u2028"}, {"a": 2}]


@pytest.mark.parametrize("line", ["{'a': 1}", '{"a": 1', "[" * 100_000, "1" * 5000 + "x", "nope"])
def test_a_malformed_line_is_named(tmp_path, line):
    path = write(tmp_path / "x.jsonl", '{"a": 1}', "", line)
    with pytest.raises(ValueError) as caught:
        load_rows(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: not valid JSON (")
    assert message.endswith("; write one JSON object a line")
    assert "\n" not in message


def test_a_line_that_is_no_object_or_no_text_is_named(tmp_path):
    assert "line 1: not a JSON object; write" in message_of(tmp_path, "[1, 2]")
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(ValueError, match="line 2: not UTF-8 text; save the file as UTF-8"):
        load_data(tmp_path)


def test_empty_files_and_folders_say_what_to_put_there(tmp_path):
    with pytest.raises(ValueError, match=r"does not exist; give a folder that holds \*\.jsonl"):
        load_data(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"holds no \*\.jsonl file; put one a domain into it"):
        load_data(tmp_path)
    assert "rows.jsonl is empty; write one JSON object a line" in message_of(tmp_path, "", "  ")
    with pytest.raises(ValueError, match=r"absent\.jsonl is not a file; give a JSONL file"):
        load_rows(tmp_path / "absent.jsonl")


def test_a_missing_column_is_named_with_its_nearest_match(tmp_path):
    message = message_of(tmp_path, *MATH_ROWS[:3], {"question": "What?", "anwser": "1"})
    assert message == (
        f"{tmp_path / 'rows.jsonl'}, line 4: column 'answer' is missing; "
        "did you mean 'anwser'? Then rename that column"
    )
    message = message_of(tmp_path, {"question": "What?", "Anwser": "1"}, {"question": "Why?"})
    assert "line 1: read as GSM8K rows, column 'answer' is missing; did you mean" in message
    message = message_of(tmp_path, {"problem": "What?", "solution": "1"})
    assert message.endswith(
        "read as MATH rows, column 'answer' is missing (columns here: problem, solution); "
        "add it, or move the file out of the data folder"
    )
    message = message_of(tmp_path, {"prompt": "What?", "test_lists": ["assert f(1) == 1"]})
    assert "read as MBPP rows, column 'test_list' is missing; did you mean 'test_lists'?" in message
    message = message_of(tmp_path, {"chosen": "a", "rejected": "b", "promt": "c"})
    assert "column 'prompt' is missing; did you mean 'promt'?" in message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": 3, "answer": "3"}, "column 'question' holds a number, but a text is needed"),
        ({"question": "q", "answer": None}, "column 'answer' holds null, but a text or a number"),
        ({"question": "q", "answer": True}, "column 'answer' holds true or false, but a text"),
        ({"question": " ", "answer": "3"}, "column 'question' is blank; fill it or delete the row"),
        ({"text": "t", "test_list": "assert f(1)"}, "'test_list' holds a text, but a list of"),
        (
            {"text": "t", "test_list": [1]},
            "something in column 'test_list' is a number, but a list",
        ),
        ({"text": "t", "test_list": []}, "column 'test_list' is empty; add an assert or delete"),
        ({"prompt": "p", "chosen": 1, "rejected": "b"}, "column 'chosen' holds a number, but"),
        ({"prompt": [], "chosen": "a", "rejected": "b"}, "column 'prompt' is empty; fill it or"),
        (
            {"prompt": ["x"], "chosen": "a", "rejected": "b"},
            "something in column 'prompt' is a text",
        ),
        ({"prompt": [{"role": "user"}], "chosen": "a", "rejected": "b"}, "both as text; correct"),
        (
            {"prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": []},
            "column 'kwargs' has 0 entries for 1 constraints",
        ),
        (
            {"prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": ["x"]},
            "something in column 'kwargs' is a text, but a list of objects",
        ),
        (
            {"prompt": "p", "instruction_id_list": "punctuation:no_comma", "kwargs": [{}]},
            "column 'instruction_id_list' holds a text, but a list of texts is needed",
        ),
        ({**SWE_ROW, "buggy_tree": {}}, "column 'buggy_tree' is empty; fill it or delete the row"),
        ({**SWE_ROW, "buggy_tree": {"a.py": 1}}, "something in column 'buggy_tree' is a number"),
        ({**SWE_ROW, "FAIL_TO_PASS": "t"}, "column 'FAIL_TO_PASS' holds a text, but a list of"),
    ],
)
def test_a_wrong_value_is_named_with_line_and_column(tmp_path, row, words):
    message = message_of(tmp_path, row)
    assert message.startswith(f"{tmp_path / 'rows.jsonl'}, line 1: ")
    assert words in message
    assert re.search(r"; (correct|fill|add|give)", message)


def test_a_gold_patch_that_does_not_apply_is_a_fault_of_the_data(tmp_path):
    row = {k: v for k, v in SWE_ROW.items() if k != "gold_files"}
    message = message_of(tmp_path, {**row, "gold_patch": GOLD_PATCH.replace("-    return 2", "-x")})
    assert message == (
        f"{tmp_path / 'rows.jsonl'}, line 1: column 'gold_patch' does not apply to 'buggy_tree' "
        "(line 2 of calc.py is not what a hunk expects); correct or delete the row"
    )
    message = message_of(
        tmp_path, {**row, "gold_patch": GOLD_PATCH.replace("calc.py", "absent.py")}
    )
    assert "(absent.py is not among the files)" in message
    message = message_of(tmp_path, {**row, "gold_patch": GOLD_PATCH[: GOLD_PATCH.index("-    r")]})
    assert "(a hunk is shorter than its header says)" in message


def test_too_few_rows_name_the_domain_and_the_remedy(tmp_path):
    message = message_of(tmp_path, MATH_ROWS[0], MATH_ROWS[0])
    assert message == (
        f"{tmp_path}: too few math rows are left (1 distinct, at least two are needed to train and "
        "to evaluate); add math rows, or move the file out of the folder"
    )
    rows = [{"id": str(i), "question": "w " * i, "answer": "1"} for i in (10, 30, 50)]
    message = message_of(
        tmp_path, *rows, token_count=lambda text: text.count("w"), max_prompt_tokens=15
    )
    assert "2 dropped for a prompt over the cap of 15 tokens (30, 50)" in message
    assert "; raise the cap on prompt tokens to 31 or more, or add math rows" in message


def test_a_folder_without_usable_rows_says_why(tmp_path):
    message = message_of(tmp_path, {"name": "n"})
    assert "rows.jsonl: skipped, its columns fit no format: name" in message
    assert message.endswith("see data_samples/README.md for the columns of each domain")


def test_a_cap_needs_a_way_to_count(tmp_path):
    assert "needs token_count" in message_of(tmp_path, *MATH_ROWS, max_prompt_tokens=10)


# Public rows


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no shared data beside the repository")
def test_the_shared_data_load_with_every_skip_explained():
    data = load_data(SHARED / "data")
    assert set(data.train) == {"rlhf", "instruct", "math", "code", "swe"}
    notes = {note.partition(": ")[0]: note.partition(": ")[2] for note in data.notes}
    skipped = {name for name, words in notes.items() if words.startswith("skipped, ")}
    assert {name.partition("/")[0] for name in skipped} >= {
        "gsm8k_model_outputs",
        "math_model_outputs",
        "quixbugs",
        "swebench_lite",
    }
    assert "ifeval/gpt4_responses_with_verdicts.jsonl" in skipped
    assert "ifbench/sample_responses_with_verdicts.jsonl" in skipped
    assert notes["mbpp/mbpp.jsonl"] == "325 code rows (MBPP)"
    assert notes["swe_mini_exec/tasks.jsonl"] == "10 swe rows (mini-SWE)"
    for row in load_rows(SHARED / "data" / "swe_mini_exec" / "tasks.jsonl"):
        assert apply_gold_patch(row["gold_patch"], row["buggy_tree"]) == row["gold_files"]
    for domain in data.train:
        train, held_out = (
            {" ".join(p.prompt.split()) for p in part[domain]} for part in (data.train, data.eval)
        )
        assert train and held_out and not train & held_out
