"""Where rows come from: files, the Hub through `datasets`, reasoning-gym, and --eval-data."""

import builtins
import importlib.util
import json
from pathlib import Path

import pytest

from cascade_kit.commands import run
from cascade_kit.data import load_data, load_rows
from cascade_kit.domains.math import reward

ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(40)]
needs_datasets = pytest.mark.skipif(
    not importlib.util.find_spec("datasets"), reason="no datasets: pip install cascade-kit[data]"
)
needs_gym = pytest.mark.skipif(
    not importlib.util.find_spec("reasoning_gym"), reason="no gym: pip install cascade-kit[gym]"
)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts(part) -> set[str]:
    return {problem.prompt for problems in part.values() for problem in problems}


def fault(*sources, **settings) -> str:
    with pytest.raises(ValueError) as caught:
        load_data(*sources, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Files


def test_every_kind_of_file_gives_the_same_problems(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    files = [write_jsonl(tmp_path / "rows.jsonl", ROWS)]
    files += [tmp_path / f"rows.{suffix}" for suffix in ("json", "csv", "parquet")]
    files[1].write_text(json.dumps(ROWS))
    lines = ["question,answer", *(f'"{row["question"]}",{row["answer"]}' for row in ROWS)]
    files[2].write_text("\r\n".join(lines) + "\r\n", encoding="utf-8-sig")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), files[3])
    first, *others = [load_data(file) for file in files]
    assert len(prompts(first.train) | prompts(first.eval)) == 40
    for other in others:
        assert (prompts(other.train), prompts(other.eval)) == (
            prompts(first.train),
            prompts(first.eval),
        )
    assert load_rows(files[2]) == load_rows(files[0]) == ROWS
    files[1].unlink()
    assert load_data(tmp_path).notes[-1].endswith("; 80 rows repeat another and were dropped")


def test_several_sources_are_one_set_and_keep_their_names(tmp_path):
    write_jsonl(tmp_path / "one" / "rows.jsonl", ROWS[:20])
    write_jsonl(tmp_path / "two" / "rows.jsonl", ROWS[20:])
    data = load_data(tmp_path / "one", tmp_path / "two")
    ids = {problem.id for problem in (*data.train["math"], *data.eval["math"])}
    assert len(ids) == 40 and {"one/rows.jsonl:1", "two/rows.jsonl:1"} <= ids


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "prompt,answer\nhi\n", "row 2: 1 cells for 2 columns; put a cell that holds ','"),
        ("a.csv", 'prompt,answer\n"hi,2\n', "not valid CSV"),
        ("a.csv", "prompt,prompt\na,b\n", "each column needs its own name in the first row"),
        ("a.csv", "prompt,anwser\nWhat?,2\n", "row 2: read as prompt and answer rows, column"),
        ("a.csv", "prompt,answer\n,2\n", "row 2: column 'prompt' is blank; fill it or delete"),
        ("a.csv", "prompt,answer\n", "is empty"),
        ("a.json", "[{]", "not valid JSON"),
        ("a.json", "[1]", "row 1: not an object; give objects with columns"),
        ("a.parquet", "text", "not a Parquet file"),
    ],
)
def test_a_broken_file_is_named_with_the_row(tmp_path, name, text, words):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_text(text)
    message = fault(path)
    assert message.startswith(str(path)) and words in message


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"prompt,answer\n\xff,1\n")
    assert fault(path) == f"{path}: not UTF-8 text; save the file as UTF-8"


def test_the_name_of_a_hub_data_set_is_not_taken_for_a_folder():
    assert "(of the Hub: hub:openai/gsm8k)" in fault("openai/gsm8k")
    assert fault() == "no data: name a folder, a file, hub:OWNER/NAME or gym:TASK"


# The Hub


@needs_datasets
def test_a_hub_data_set_is_read_by_split(tmp_path, monkeypatch):
    """The real library on a local folder: the Hub's own folders look the same."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    write_jsonl(folder / "train.jsonl", ROWS[:30])
    write_jsonl(folder / "test.jsonl", ROWS[30:])
    data = load_data(f"hub:{folder}")
    assert len(prompts(data.train) | prompts(data.eval)) == 30
    assert prompts(load_data(f"hub:{folder}@train").train) == prompts(data.train)
    both = load_data(f"hub:{folder}", eval_sources=[f"hub:{folder}"])  # its test split
    assert (len(both.train["math"]), len(both.eval["math"])) == (30, 10)
    message = fault(f"hub:{folder}@valid")
    assert message.startswith(f"hub:{folder}@valid: could not be loaded (") and "valid" in message
    assert f"the split (hub:{folder}@SPLIT, read: valid)" in message
    assert "could not be loaded" in fault(f"hub:{tmp_path}/absent")
    assert "write hub:OWNER/NAME[:CONFIG][@SPLIT]" in fault("hub:")


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [("hub:a/b", "datasets", "data"), ("gym:chain_sum", "reasoning_gym", "gym")],
)
def test_a_missing_extra_is_named_with_its_command(source, package, extra, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert fault(source).endswith(f'pip install "cascade-kit[{extra}]"')


# reasoning-gym


@needs_gym
def test_gym_problems_come_from_seeds_that_cannot_meet():
    data, again, other = (load_data("gym:chain_sum:50", seed=seed) for seed in (0, 0, 1))
    assert data == again
    assert len(data.eval["math"]) == 10 and 40 <= len(data.train["math"]) <= 50  # some repeat
    assert not prompts(data.train) & prompts(data.eval)
    assert prompts(other.eval) == prompts(data.eval)
    assert not prompts(other.train) & prompts(data.train)
    seeds = [{int(p.id.split(":")[1]) for p in part["math"]} for part in (data.train, data.eval)]
    assert seeds[0] <= set(range(50)) and seeds[1] == set(range(10**9, 10**9 + 10))


@needs_gym
def test_gym_answers_are_judged_by_the_tasks_own_scorer():
    for problem in load_data("gym:chain_sum:20").train["math"]:
        right = problem.target["gym_entry"]["answer"]
        assert reward(problem, f"So \\boxed{{{right}}}").value == 1.0
        assert reward(problem, f"So \\boxed{{{right}1}}").value == 0.0
        assert reward(problem, right).why == "no box"
    # A scorer that accepts any right solution, not only the recorded one.
    [problem, *_] = load_data("gym:countdown:5").train["math"]
    target = problem.target["gym_entry"]["metadata"]["target"]
    recorded = problem.target["gym_entry"]["answer"]
    assert reward(problem, f"\\boxed{{({recorded})}}").value == 1.0
    almost = reward(problem, f"\\boxed{{{target}}}")  # the number alone uses none of those given
    assert almost.value == 0.0 and almost.parts["scorer"] < 1.0


@needs_gym
def test_an_unknown_gym_task_is_named_with_the_nearest():
    assert fault("gym:chain_sums").endswith("no task 'chain_sums'; did you mean gym:chain_sum?")
    assert "COUNT must be between 5 and" in fault("gym:chain_sum:2")
    assert "write gym:TASK or gym:TASK:COUNT" in fault("gym:chain-sum")


# Evaluation sources


def test_named_evaluation_rows_are_the_only_ones_of_their_domain(tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", ROWS)
    held_out = write_jsonl(tmp_path / "test.jsonl", [*ROWS[:5], {"question": "Why?", "answer": 1}])
    code = [{"text": f"Write f{i}.", "test_list": [f"assert f{i}(1) == 2"]} for i in range(10)]
    other = write_jsonl(tmp_path / "code.jsonl", code)
    data = load_data(train, other, eval_sources=[held_out])
    assert len(data.eval["math"]) == 6 and len(data.train["math"]) == 35
    assert not prompts(data.train) & prompts(data.eval)
    assert data.train["code"] and data.eval["code"]  # not named: a part is held out
    assert "eval: test.jsonl/test.jsonl: 6 math rows (GSM8K)" in data.notes
    assert any(
        note == "math: 35 train and 6 eval problems; 5 rows repeat another and were dropped"
        for note in data.notes
    )
    only_evaluated = load_data(train, eval_sources=[other])
    assert "code" not in only_evaluated.train and len(only_evaluated.eval["code"]) == 10


def test_pairs_with_a_named_prompt_do_not_train(tmp_path):
    def pair(i: int, n: int) -> dict:
        return {"prompt": f"P{i}", "chosen": f"good {n}", "rejected": "bad"}

    train = write_jsonl(tmp_path / "a.jsonl", [pair(i, n) for i in range(4) for n in range(2)])
    held_out = write_jsonl(tmp_path / "b.jsonl", [pair(3, 7)])
    data = load_data(train, eval_sources=[held_out])
    assert {p.prompt for p in data.train_pairs} == {"P0", "P1", "P2"}
    assert [(p.prompt, p.chosen) for p in data.eval_pairs] == [("P3", "good 7")]


def test_evaluation_sources_reach_the_command(tmp_path):
    import argparse

    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    train = str(write_jsonl(tmp_path / "train.jsonl", ROWS))
    absent = str(tmp_path / "absent")
    arguments = parser.parse_args(["--data", train, "--eval-data", train, "--eval-data", absent])
    assert arguments.eval_data == [train, absent]
    with pytest.raises(ValueError, match="absent does not exist; give a folder"):
        run.check_data(arguments)
    with pytest.raises(ValueError, match="--eval-data needs rows to train on"):
        run.check_data(parser.parse_args(["--eval-data", train]))
