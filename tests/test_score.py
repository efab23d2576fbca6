"""Bulk scoring: rows in, verdicts out, in order; faults stop it by name; the summary counts."""

import json
import os
from pathlib import Path

import pytest

from cascade_kit.__main__ import main
from cascade_kit.score import Tally, score_rows
from cascade_kit.score_columns import agreements
from cascade_kit.verifiers import math_answer, sandbox

SHARED = Path(
    os.environ.get("CASCADE_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)
needs_isolation = pytest.mark.skipif(
    sandbox.isolation().name == "none", reason="no sandbox works here"
)
ADD = "def add(a, b):\n    return a + b\n"
FILES = {
    "calc.py": "def low(a, b):\n    return max(a, b)\n",
    "tests/test_calc.py": "from calc import low\n\n\ndef test_low():\n    assert low(1, 2) == 1\n",
}
EDIT = "### calc.py\n<<<<<<< SEARCH\n    return max(a, b)\n=======\n    return {}(a, b)\n"
EDIT += ">>>>>>> REPLACE"
NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
TWO = ["punctuation:no_comma", "length_constraints:number_words"]
TWO_KWARGS = [{"num_words": None}, {"relation": "at least", "num_words": 3.0}]


def pair(chosen, rejected, **more):
    return {"prompt": "Hi", "chosen": chosen, "rejected": rejected, **more}


# ---- every format --------------------------------------------------------------------------------

ROWS = {
    "gold in ground_truth": ("math", {"ground_truth": "18", "completion": r"\boxed{18}"}, 1.0),
    "stated answer": ("math", {"ground_truth": "18", "completion": "so\nA: 18"}, 1.0),
    "GSM8K with its solution": ("math", {"answer": "2+3=5\n#### 5", "response": "#### 5"}, 1.0),
    "gold as a number": ("math", {"answer": 0.5, "response": r"\boxed{\frac12}"}, 1.0),
    "wrong answer": ("math", {"ground_truth": "18", "completion": r"\boxed{19}"}, 0.0),
    "a batch with its golds": (
        "math",
        {"ground_truth": ["1", "2"], "completion": [r"\boxed{1}", r"\boxed{1}"]},
        [1.0, 0.0],
    ),
    "a batch with one gold": (
        "math",
        {"ground_truth": "2", "completion": [r"\boxed{1}", r"\boxed{2}"]},
        [0.0, 1.0],
    ),
    "think format": (
        "math",
        {"reward_kind": "think_format", "ground_truth": None, "completion": "<think>a</think>b"},
        1.0,
    ),
    "think format after an open tag": (
        "math",
        {
            "reward_kind": "think_format",
            "context": {"prompt_ends_with": "<think>\n"},
            "completion": "a</think>b",
        },
        1.0,
    ),
    "IFEval": ("instruct", {**NO_COMMA, "key": 7, "response": "One and two."}, 1.0),
    "IFEval that fails": ("instruct", {**NO_COMMA, "response": "One, two."}, 0.0),
    "padded kwargs": (
        "instruct",
        {"instruction_id_list": TWO, "kwargs": TWO_KWARGS, "response": "One and two."},
        1.0,
    ),
    "the domain's name in the cases": (
        "instruction_following",
        {**NO_COMMA, "completion": ["One.", "a, b"]},
        [1.0, 0.0],
    ),
    "a pair": ("preference", pair("long answer", "short"), 1.0),
    "a pair that length gets wrong": ("rlhf", pair("short", "long answer"), 0.0),
    "a tie": ("preference", pair("one", "two"), 0.5),
    "a pair of messages": (
        "preference",
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "long answer"},
            "rejected": {"from": "gpt", "value": "short"},
        },
        1.0,
    ),
    "a recorded kind": (
        "preference",
        {"kind": "pairwise", "completion": None, "input": {"judge_ab": "A", "judge_ba": "A"}},
        0.5,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_formats(name):
    domain, row, value = ROWS[name]
    verdict = next(score_rows(domain, [row]))
    assert verdict["value"] == value
    assert set(verdict) >= {"id", "value", "parts", "why"}
    json.dumps(verdict, allow_nan=False)


ASSERTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
CODE_ROWS = {
    "tests of a case": ({"task": {"tests": ASSERTS, "entry_point": "add"}}, ADD),
    "MBPP": ({"task_id": 3, "test_list": ASSERTS, "test_setup_code": ""}, f"```python\n{ADD}```"),
    "HumanEval": (
        {
            "prompt": "def add(a, b):\n",
            "entry_point": "add",
            "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
        },
        "    return a + b\n",
    ),
    "program": ({"task": {"io": [{"stdin": "4\n", "stdout": "5\n"}]}}, "print(int(input()) + 1)"),
    "one line, without a sandbox": (
        {"one_liner": True, "test_list": ASSERTS},
        "def add(a, b): return a + b",
    ),
}


@needs_isolation
@pytest.mark.parametrize("name", CODE_ROWS)
def test_code_formats(name):
    row, right = CODE_ROWS[name]
    wrong = right.replace("+", "-")
    verdict = next(score_rows("code", [{**row, "completion": [right, wrong, ""]}]))
    assert verdict["value"] == [1.0, 0.0, 0.0]
    assert verdict["why"] == ["passed", "failed", "no code"]


def test_one_line_functions_need_no_sandbox(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: sandbox.Isolation("none", "nothing works"))
    row = {"id": 5, "one_liner": True, "test_list": ASSERTS}
    answers = ["def add(a, b): return a + b", "import os\ndef add(a, b): return 3"]
    verdict = next(score_rows("code", [{**row, "completion": answers}]))
    assert verdict["why"] == ["passed", "forbidden"]
    with pytest.raises(ValueError, match="row 5: nothing here can isolate.*--allow-unsafe"):
        next(score_rows("code", [{"id": 5, "test_list": ASSERTS, "completion": ADD}]))


@needs_isolation
def test_repository_formats():
    tests = {"FAIL_TO_PASS": ["tests.test_calc::test_low"], "PASS_TO_PASS": []}
    mini = {"id": "m", "buggy_tree": FILES, **tests}
    answers = [EDIT.format("min"), EDIT.format("sum"), ""]
    assert next(score_rows("swe", [{**mini, "completion": answers}]))["value"] == [1.0, 0.0, -1.0]
    case = {"format": "search_replace", "task": {"repo_files": FILES, "gold_files": FILES, **tests}}
    tagged = f"<think>\nx\n</think>\n<solution>\n{answers[0]}\n</solution>"
    verdict = next(score_rows("swe", [{**case, "completion": [tagged, answers[0]]}]))
    assert verdict["value"] == [1.0, -1.0]  # a case that names the format wants its tags


def test_loose_and_official_verdicts_of_a_constraint():
    row = {**NO_COMMA, "response": "Well, here:\nOne and two."}
    verdict = next(score_rows("instruct", [row]))
    assert (verdict["value"], verdict["strict"], verdict["loose"]) == (0.0, [False], [True])
    row = {**NO_COMMA, "response": "一，二"}  # the official checker knows only the ASCII comma
    assert next(score_rows("instruct", [row]))["value"] == 0.0
    assert next(score_rows("instruct", [row], official=True))["value"] == 1.0


def test_extraction_modes():
    row = {"ground_truth": "8", "completion": r"\boxed{7}, no: the answer is 8"}
    values = {mode: next(score_rows("math", [row], extract=mode))["value"] for mode in
              ("auto", "boxed", "last")}  # fmt: skip
    assert values == {"auto": 0.0, "boxed": 0.0, "last": 1.0}
    stated = {"ground_truth": "8", "completion": "the answer is 8"}
    assert next(score_rows("math", [stated], extract="boxed"))["why"] == "no box"


def test_ids_come_from_the_first_column_that_names_a_row():
    row = {"ground_truth": "1", "completion": "1"}
    named = [{"key": 4}, {"task_id": "t", "key": 4}, {"id": "i", "task_id": "t"}, {}, {"name": "n"}]
    verdicts = score_rows("math", [{**row, **columns} for columns in named])
    assert [verdict["id"] for verdict in verdicts] == [4, "t", "i", "line 4", "n"]


@needs_isolation
def test_verdicts_keep_the_order_of_the_rows():
    slow = "import time\n" + ADD.replace("return", "time.sleep(0.5); return")
    texts = [slow, ADD, "", slow, ADD.replace("+", "-"), ADD]
    rows = [{"id": i, "test_list": ASSERTS[:1], "completion": text} for i, text in enumerate(texts)]
    verdicts = list(score_rows("code", rows, workers=3))
    assert [verdict["id"] for verdict in verdicts] == list(range(6))
    assert [verdict["value"] for verdict in verdicts] == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]


def test_rows_are_read_only_a_little_ahead():
    taken = []
    rows = ({"id": taken.append(i) or i, "ground_truth": "1", "completion": "1"} for i in range(99))
    verdicts = score_rows("math", rows, workers=2)
    next(verdicts)
    verdicts.close()
    assert len(taken) <= 10


# ---- faults --------------------------------------------------------------------------------------

FAULTS = {
    "no answer": ("math", {"id": "r", "ground_truth": "1"}, "column 'completion' or 'response'"),
    "answer of another type": ("math", {"id": "r", "completion": 3}, "holds a number, but a text"),
    "no gold": ("math", {"id": "r", "completion": "1"}, "'ground_truth' or 'answer'"),
    "empty gold": ("math", {"id": "r", "ground_truth": "", "completion": "1"}, "gold answer ''"),
    "gold of another type": (
        "math",
        {"id": "r", "ground_truth": {"a": 1}, "completion": "1"},
        "'ground_truth' holds an object",
    ),
    "golds and answers": (
        "math",
        {"id": "r", "ground_truth": ["1"], "completion": ["1", "2"]},
        "1 ground truths for 2 answers",
    ),
    "unknown kind of reward": (
        "math",
        {"id": "r", "reward_kind": "length", "completion": "a"},
        "only one is 'think_format'",
    ),
    "no constraints": ("instruct", {"id": "r", "completion": "a"}, "'instruction_id_list'"),
    "kwargs of another type": (
        "instruct",
        {"id": "r", "instruction_id_list": ["a"], "kwargs": {"a": 1}, "completion": "a"},
        "'kwargs' holds an object",
    ),
    "unknown constraint": (
        "instruct",
        {"id": "r", "instruction_id_list": ["punctuation:no_coma"], "completion": "a"},
        "did you mean 'punctuation:no_comma'",
    ),
    "no tests": ("code", {"id": "r", "completion": ADD}, "row r: no tests"),
    "no files": ("swe", {"id": "r", "completion": "x"}, "no buggy_tree or repo_files"),
    "no prompt": ("preference", {"id": "r", "chosen": "a", "rejected": "b"}, "'prompt' is missing"),
    "unknown kind": ("preference", {"id": "r", "kind": "pairwize", "input": {}}, "'pairwise'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_row_at_fault_stops_the_run_by_its_place_and_id(name):
    domain, row, message = FAULTS[name]
    with pytest.raises(ValueError, match="^rows, line 1, row r: ") as stopped:
        list(score_rows(domain, [row]))
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_unknown_domains_and_no_workers_are_refused_at_once():
    with pytest.raises(ValueError, match="choose one of math, instruct, code, swe, preference"):
        score_rows("maths", [])
    with pytest.raises(ValueError, match="use at least one"):
        score_rows("math", [], workers=0)


# ---- the command ---------------------------------------------------------------------------------


def written(path: Path, rows: list) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def verdicts_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def told(capsys) -> str:
    """The one line about a fault, the progress bar left out."""
    error = capsys.readouterr().err
    assert error.count("cascade-kit: ") == 1
    return error[error.index("cascade-kit: ") :].rstrip("\n")


GOOD = {"id": "a", "ground_truth": "1", "completion": r"\boxed{1}", "is_correct": True}


def test_the_command_writes_verdicts_and_a_summary(tmp_path, capsys):
    rows = [GOOD, "", {**GOOD, "id": "b", "completion": "2"}, {**GOOD, "id": "c"}]
    path, out = written(tmp_path / "rows.jsonl", rows), tmp_path / "new" / "verdicts.jsonl"
    assert main(["score", "--domain", "math", path, "--out", str(out)]) == 0
    assert [(v["id"], v["value"]) for v in verdicts_of(out)] == [("a", 1.0), ("b", 0.0), ("c", 1.0)]
    printed = capsys.readouterr()
    assert printed.out == (
        "3 rows; mean value 0.6667; agrees with 2 of 3 known verdicts (66.67%); differs on b\n"
    )
    assert "3/3" in printed.err


def test_without_a_file_stdout_holds_only_verdicts(tmp_path, capsys):
    path = written(tmp_path / "rows.jsonl", [GOOD, GOOD])
    assert main(["score", "--domain", "math", path, "--workers", "1"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["value"] for line in printed.out.splitlines()] == [1.0, 1.0]
    assert "2 rows; mean value 1.0000" in printed.err


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"id": "bad", "ground_truth": "", "completion": "1"}, "line 4, row bad: gold answer '' "),
        ({"id": "bad", "ground_truth": "1"}, "line 4, row bad: no answer; add it as"),
        ('{"id": "bad",', "line 4: not valid JSON"),
        ('["bad"]', "line 4: not a JSON object"),
    ],
)
def test_a_bad_row_stops_the_command_and_keeps_what_is_scored(tmp_path, capsys, bad, message):
    rows = [GOOD, {**GOOD, "id": "b"}, "", bad, {**GOOD, "id": "d"}]
    path, out = written(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["score", "--domain", "math", path, "--out", str(out)]) == 2
    line = told(capsys)
    assert line.startswith(f"cascade-kit: {path}, {message}")
    assert "\n" not in line
    assert [verdict["id"] for verdict in verdicts_of(out)] == ["a", "b"]


def test_keep_going_reports_bad_rows_and_scores_the_others(tmp_path, capsys):
    rows = [GOOD, "nonsense", {"id": "c", "ground_truth": "", "completion": "1"}, GOOD]
    path, out = written(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ["score", "--domain", "math", path, "--out", str(out), "--keep-going"]
    assert main(command) == 2
    assert [verdict["value"] for verdict in verdicts_of(out)] == [1.0, None, None, 1.0]
    assert "line 3, row c: gold answer ''" in verdicts_of(out)[2]["why"]
    assert capsys.readouterr().out.startswith("4 rows; 2 at fault; mean value 1.0000; agrees")


@pytest.mark.parametrize("fault", [TypeError("a slip"), RuntimeError("a worker died")])
def test_a_verifier_at_fault_stops_the_command_whatever_is_asked(
    tmp_path, capsys, monkeypatch, fault
):
    def broken(gold, completion, **options):
        if gold == "7":
            raise fault
        return original(gold, completion, **options)

    original = math_answer.grade_answer
    monkeypatch.setattr(math_answer, "grade_answer", broken)
    rows = [GOOD, {"id": "seven", "ground_truth": "7", "completion": "7"}, GOOD]
    path, out = written(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ["score", "--domain", "math", path, "--out", str(out), "--keep-going"]
    assert main(command) == 2
    assert f"{path}, line 2, row seven: " in (line := told(capsys))
    assert str(fault) in line
    assert [verdict["id"] for verdict in verdicts_of(out)] == ["a"]


def test_files_that_cannot_be_read_or_written(tmp_path, capsys):
    path = written(tmp_path / "rows.jsonl", [GOOD])
    for arguments, message in (
        ([str(tmp_path / "none.jsonl")], "is not a file"),
        ([written(tmp_path / "empty.jsonl", [""])], "is empty"),
        ([path, "--out", path], "would overwrite the rows"),
        ([path, "--out", str(tmp_path)], "is a folder"),
    ):
        assert main(["score", "--domain", "math", *arguments]) == 2
        assert message in told(capsys)
    assert json.loads(Path(path).read_text(encoding="utf-8")) == GOOD


# ---- the summary ---------------------------------------------------------------------------------


def test_agreement_with_known_verdicts():
    assert agreements(1.0, True) == [True]
    assert agreements(0.5, True) == [False]
    assert agreements(-1.0, False) == [True]
    assert agreements(0.1, 0.1) == [True]
    assert agreements(None, 0.1) == [False]
    assert agreements([1.0, 0.0], [1.0, 1.0]) == [True, False]
    assert agreements([True, False], [None, False]) == [True]


def test_the_summary_counts_constraints_subsets_and_rows_without_a_value():
    tally = Tally()
    known = {"strict": [True, True], "loose": [True, True]}
    found = {"strict": [True, False], "loose": [True, True]}
    tally.add({"id": 3, "value": 0.0, "parts": {}, "why": "", **found, "known": known})
    tally.add({"id": 4, "value": [1.0, 0.5], "parts": [], "why": [], "subset": "Hard"})
    tally.add({"id": 5, "value": None, "parts": {}, "why": "left out: two turns"})
    assert tally.words() == (
        "3 rows; 1 left out: two turns; mean value 0.5000; of which Hard 0.750, others 0.000; "
        "agrees with 1 of 2 known strict verdicts (50.00%); agrees with 2 of 2 known loose "
        "verdicts (100.00%); differs on 3"
    )
    assert tally.faults == 0


# ---- pairs ---------------------------------------------------------------------------------------


def test_pair_accuracy_of_the_length_only_baseline(tmp_path, capsys):
    turns = [{"from": role, "value": "x"} for role in ("human", "gpt", "human")]
    long_talk = {"conversations": turns, "chosen": turns[1], "rejected": {**turns[1], "value": "y"}}
    rows = [
        pair("longer", "short", subset="Natural"),
        pair("as long", "as wide", subset="Natural"),
        pair("short", "longer", subset="Adversarial"),
        long_talk,
    ]
    path, out = written(tmp_path / "pairs.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["score", "--domain", "preference", path, "--out", str(out)]) == 0
    assert [verdict["value"] for verdict in verdicts_of(out)] == [1.0, 0.5, 0.0, None]
    assert verdicts_of(out)[0]["parts"] == {"chosen": 6.0, "rejected": 5.0}
    assert capsys.readouterr().out == (
        "4 rows; 1 left out: a conversation of more than one user turn; pair accuracy (length-only "
        "baseline) 0.5000; of which Natural 0.750, Adversarial 0.000\n"
    )


def test_pair_accuracy_of_a_reward_model_of_a_run(tmp_path, capsys):
    from cascade_kit.loading import load_policy
    from cascade_kit.reward_model import RewardModel

    model = RewardModel(load_policy(rank=4), seed=3)
    model.head.bias.data.fill_(0.25)
    folder = tmp_path / "run" / "1-rlhf" / "reward_model"
    model.save(folder, held_out_accuracy=0.5)
    rows = [pair("Certainly! The sea is deep.", "Look it up yourself."), pair("Yes.", "No.")]
    path, out = written(tmp_path / "pairs.jsonl", rows), tmp_path / "out.jsonl"
    command = ["score", "--domain", "preference", path, "--out", str(out), "--reward-model"]
    assert main([*command, str(tmp_path / "run")]) == 0
    assert "pair accuracy (" in capsys.readouterr().out
    for row, verdict in zip(rows, verdicts_of(out), strict=True):
        expected = model.score(["Hi", "Hi"], [row["chosen"], row["rejected"]])
        assert list(verdict["parts"].values()) == pytest.approx(expected.tolist(), abs=1e-4)
        assert verdict["value"] == float(expected[0] > expected[1])
    assert main([*command, str(tmp_path / "run" / "0-sft")]) == 2
    assert "holds no reward model; name the folder RUN/1-rlhf/reward_model" in told(capsys)


# ---- public rows ---------------------------------------------------------------------------------

# The question asks "at what time": 2:30 p.m. and 7200 s make 4:30 p.m. The gold answer is
# \text{4:30 p.m.}, the answers box 4:30 \text{ p.m.}; the label calls them wrong, because the
# checker that made it read only "4:30".
WRONG_LABELS = {"qwenmath-3-0", "qwenmath-3-1", "qwenmath-3-2"}


def public_rows(name: str) -> list[dict]:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip("no shared data: set CASCADE_SHARED to the folder that holds it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tally_of(domain: str, rows: list[dict], **options) -> Tally:
    tally = Tally()
    for verdict in score_rows(domain, rows, **options):
        tally.add(verdict)
    return tally


def share(same: list[bool]) -> float:
    return sum(same) / len(same)


def test_agreement_on_public_math_answers():
    for name in ("gsm8k_model_outputs", "math_model_outputs"):
        rows = public_rows(f"{name}/labelled_completions.jsonl")
        right = [row for row in rows if row["id"] not in WRONG_LABELS]
        assert share(tally_of("math", right).same["value"]) >= 0.995
        others = [row for row in rows if row["id"] in WRONG_LABELS]
        assert all(verdict["value"] == 1.0 for verdict in score_rows("math", others))


def test_agreement_on_public_constraints():
    tally = tally_of(
        "instruct", public_rows("ifeval/gpt4_responses_with_verdicts.jsonl"), official=True
    )
    assert len(tally.same["strict"]) == len(tally.same["loose"]) > 400
    assert share(tally.same["strict"]) >= 0.995
    assert share(tally.same["loose"]) >= 0.995


def test_agreement_on_other_public_constraints():
    rows = public_rows("ifbench/sample_responses_with_verdicts.jsonl")
    # These two types need a word list or a tagger that would have to be downloaded.
    unknown = {"words:odd_even_syllables", "words:start_verb"}
    known = [row for row in rows if not unknown & set(row["instruction_id_list"])]
    tally = tally_of("instruct", known, official=True)
    assert share(tally.same["strict"]) >= 0.99
    assert share(tally.same["loose"]) >= 0.99


def references(step: int) -> list[dict]:
    """Rows with a right completion; every `step`-th of each set."""
    column = {
        "humaneval/HumanEval.jsonl": "canonical_solution",
        "humanevalfix_python/humanevalpack_python.jsonl": "canonical_solution",
        "mbpp/mbpp.jsonl": "code",
        "quixbugs/quixbugs.jsonl": "fixed",
    }
    return [
        {**row, "completion": row[name]}
        for path, name in column.items()
        for row in public_rows(path)[:: max(step // 5, 1) if name == "fixed" else step]
    ]


def faulty(step: int) -> list[dict]:
    fixes = public_rows("humanevalfix_python/humanevalpack_python.jsonl")[::step]
    bugs = public_rows("quixbugs/quixbugs.jsonl")[:: max(step // 5, 1)]
    rows = [{**row, "completion": row["buggy_solution"]} for row in fixes]
    return rows + [{**row, "completion": row["buggy"]} for row in bugs]


def values(domain: str, rows: list[dict]) -> dict[str, float]:
    return {str(verdict["id"]): verdict["value"] for verdict in score_rows(domain, rows)}


@needs_isolation
def test_some_public_programs():
    assert set(values("code", references(40)).values()) == {1.0}
    assert set(values("code", faulty(40)).values()) == {0.0}


@needs_isolation
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_public_programs():
    wrong = [name for name, value in values("code", references(1)).items() if value != 1.0]
    assert wrong == []
    wrong = [name for name, value in values("code", faulty(1)).items() if value != 0.0]
    assert wrong == []


def tried(row: dict) -> dict:
    """A mini-SWE row with the gold patch, no patch, and one that adds a comment."""
    path = row["source_files"][0]
    first = row["buggy_tree"][path].split("\n")[0]
    comment = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1,2 @@\n {first}\n+# looked at\n"
    return {**row, "completion": [row["gold_patch"], "", comment]}


@needs_isolation
def test_one_public_repository():
    row = next(r for r in public_rows("swe_mini_exec/tasks.jsonl") if r["id"].startswith("tomli"))
    assert values("swe", [tried(row)])[row["id"]] == [1.0, -1.0, 0.0]


@needs_isolation
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_public_repositories():
    found = values("swe", [tried(row) for row in public_rows("swe_mini_exec/tasks.jsonl")])
    assert {name: value for name, value in found.items() if value != [1.0, -1.0, 0.0]} == {}


def test_length_only_baseline_on_public_pairs():
    tally = tally_of("preference", public_rows("llmbar/pairs.jsonl"))
    means = {name: sum(group) / len(group) for name, group in tally.values.items()}
    # The makers of the set report 0.565 for it on the whole of Natural and 0.272 on all pairs.
    assert means["Natural"] == pytest.approx(0.58)
    assert sum(map(sum, tally.values.values())) / tally.rows == pytest.approx(0.2786, abs=1e-4)
    demo = tally_of("preference", public_rows("dpo_en_demo/dpo_en_demo.jsonl"))
    assert sum(demo.without_value.values()) == 56  # of more than one user turn
