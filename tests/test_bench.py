"""The benchmark against TRL: hand-made results, borders, and one tiny real run."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent / "bench"
sys.path.insert(0, str(BENCH))

import ours  # noqa: E402
import vs_trl  # noqa: E402

GROUPS = [
    {"prompt": 20, "answers": [4, 6], "flat": False},
    {"prompt": 30, "answers": [2, 8], "flat": True},
]
JOB = vs_trl.job_of(vs_trl.parse(["--prompts", "2", "--answers", "2", "--steps", "3"]))


def child(seconds: list[float], above: float, imports: float) -> dict:
    return {
        "source": "/somewhere/model",
        "seconds": seconds,
        "schedules": [GROUPS for _ in seconds],
        "memory_mb": {"imports": imports, "peak": imports + above, "above_imports": above},
        "configuration": {"name": above},
        "threads": 1,
        "stop_ids": [2],
    }


def pair(ours_seconds: list[float], trl_seconds: list[float], bound: float = 0.5) -> dict:
    parts = {"decode": bound / 4, "update": bound * 3 / 4}
    return {
        "ours": child(ours_seconds, 100.0, 400.0),
        "trl": child(trl_seconds, 400.0, 500.0),
        "bound": {"ours": parts, "trl": parts},
    }


# Medians within the children: ours 1, 2, 1; TRL 3, 4, 5; ratios 3, 2, 5.
PAIRS = [
    pair([9.0, 1.0, 0.5], [3.0, 1.0, 7.0]),
    pair([2.0, 2.0, 2.0], [4.0, 4.0, 4.0]),
    pair([1.0, 1.0, 1.0], [5.0, 5.0, 5.0]),
]


# ---- figures -----------------------------------------------------------------------------------


def test_report_has_the_agreed_shape_and_hand_computed_figures():
    figures = vs_trl.report(JOB, PAIRS, 1)
    assert figures["model"] == "micro"
    assert figures["seconds_per_step"] == {
        "ours": 1.0,
        "trl": 4.0,
        "ratio": {"median": 3.0, "min": 2.0, "max": 5.0},
    }
    # 2 prompts x 2 answers a step.
    assert figures["samples_per_second"] == {
        "ours": 4.0,
        "trl": 1.0,
        "ratio": {"median": 3.0, "min": 2.0, "max": 5.0},
    }
    assert figures["peak_memory_mb"] == {"ours": 100.0, "trl": 400.0, "ratio": 0.25}
    assert figures["imports_mb"] == {"ours": 400.0, "trl": 500.0}
    assert figures["peak_with_imports_mb"] == {"ours": 500.0, "trl": 900.0}
    # Shares a pair: ours 0.5 / 1, 0.5 / 2, 0.5 / 1; TRL 0.5 / 3, 0.5 / 4, 0.5 / 5.
    assert figures["bound_share"] == {"ours": 0.5, "trl": 0.125}
    assert figures["work"]["mean_tokens"] == {"ours": 5.0, "trl": 5.0}
    assert figures["work"]["flat_groups"] == {"ours": 0.5, "trl": 0.5}
    assert figures["versions"]["trl"] == "1.16.0"
    assert figures["configuration"]["trl"] == {"name": 400.0}
    assert len(figures["pairs"]) == 3


def test_report_names_no_path_of_this_machine():
    text = json.dumps(
        vs_trl.report({**JOB, "name": "model", "model": "/somewhere/model"}, PAIRS, 1)
    )
    assert "/somewhere" not in text
    assert json.loads(text)["model"] == "model"


def test_the_median_step_is_a_step_that_was_measured():
    assert vs_trl.median_step(child([5.0, 1.0, 3.0], 1.0, 1.0)) == 2
    assert vs_trl.median_step(child([4.0, 1.0, 2.0, 9.0], 1.0, 1.0)) == 2  # the lower middle
    assert vs_trl.seconds_of(child([4.0, 1.0, 2.0, 9.0], 1.0, 1.0)) == 3.0


def test_table_shows_both_engines_and_says_that_few_pairs_are_no_result():
    text = vs_trl.table(vs_trl.report(JOB, PAIRS, 1))
    assert "3.00 (2.00 to 5.00)" in text
    assert re.search(r"peak memory.* 100 +400 +0\.25", text)
    assert re.search(r"share of the bound +50% +12%", text)
    assert "not a result" in text
    assert "not a result" not in vs_trl.table(vs_trl.report(JOB, PAIRS * 2, 1))


def test_scaling_rows_give_time_only_where_it_means_something():
    job = {**JOB, "max_new_tokens": 16}
    timed = vs_trl.scaling_row("answers", 2, job, PAIRS[0])
    assert timed["seconds_per_step"] == {"ours": 1.0, "trl": 3.0, "ratio": 3.0}
    assert timed["prompt_tokens"] == 25
    vocabulary = vs_trl.scaling_row("vocabulary", 32_000, job, PAIRS[0])
    assert vocabulary["seconds_per_step"] is None
    assert vocabulary["peak_memory_mb"]["ratio"] == 0.25
    lines = vs_trl.scaling_table([timed, vocabulary]).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1  # columns stand below each other


# ---- what makes the script fail ----------------------------------------------------------------


def test_a_share_above_the_bound_fails(tmp_path, monkeypatch, capsys):
    children = {"ours": PAIRS[2]["ours"], "trl": PAIRS[2]["trl"]}
    bound = {who: {"decode": 0.6, "update": 0.6} for who in children}
    monkeypatch.setattr(
        vs_trl, "run_child", lambda who, *_: bound if who == "bound" else dict(children[who])
    )
    file = tmp_path / "figures.json"
    assert vs_trl.main(["--pairs", "2", "--json", str(file)]) == 1
    message = capsys.readouterr().err
    assert "ours spends 120% of a step in the bound" in message
    assert "trl" not in message.replace("vs_trl", "")
    assert json.loads(file.read_text())["bound_share"] == {"ours": 1.2, "trl": 0.24}


def test_engines_take_turns_and_the_order_is_swapped(monkeypatch, capsys):
    asked = []

    def run_child(who, task, *_):
        asked.append(who)
        return PAIRS[2]["bound"] if who == "bound" else dict(PAIRS[2][who])

    monkeypatch.setattr(vs_trl, "run_child", run_child)
    assert vs_trl.main(["--pairs", "2"]) == 0
    assert asked == ["ours", "trl", "bound", "trl", "ours", "bound"]
    assert "pair 2/2" in capsys.readouterr().out


def test_a_failed_child_is_named_with_its_last_words(monkeypatch, capsys, tmp_path):
    (tmp_path / "ours.py").write_text("raise SystemExit('no room for this model')")
    monkeypatch.setattr(vs_trl, "HERE", tmp_path / "tests" / "bench")
    monkeypatch.setitem(vs_trl.SCRIPTS, "ours", str(tmp_path / "ours.py"))
    assert vs_trl.main(["--pairs", "1"]) == 1
    message = capsys.readouterr().err
    assert "exit code 1" in message and "no room for this model" in message


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--pairs", "0"], "--pairs must be at least 1"),
        (["--answers", "1"], "--answers must be at least 2"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        (["--model", "no/such/folder"], "no model at no/such/folder"),
        (["--micro-batch", "7"], "--micro-batch must divide"),
        (["--json", "no/such/folder/x.json"], "create it first"),
        (["--lengths", "long"], "invalid choice"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, remedy, capsys):
    with pytest.raises(SystemExit) as ended:
        vs_trl.main(arguments)
    assert ended.value.code == 2
    assert remedy in capsys.readouterr().err.splitlines()[-1]


# ---- borders -----------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module.split(".")[0])
    return found


def test_the_bound_imports_neither_engine():
    others = {"torch", "transformers", "peft"}
    assert imports(BENCH / "bound.py") <= others | set(sys.stdlib_module_names)
    text = (BENCH / "bound.py").read_text(encoding="utf-8")
    assert not re.search(r"cascade_kit|trl|importlib|__import__|exec\(|runpy", text)


def test_the_parent_imports_no_engine_and_no_torch():
    assert imports(BENCH / "vs_trl.py") <= set(sys.stdlib_module_names)


# ---- the work ----------------------------------------------------------------------------------


def test_prompts_are_filled_to_the_wanted_length():
    from cascade_kit.domains.math import MATH

    problem = MATH.problems("train", 1)[0]
    long = ours.lengthened(problem, 100, str.split)
    assert len(long.prompt.split()) == 100
    assert long.prompt.endswith(problem.prompt)
    assert (long.id, long.target) == (problem.id, problem.target)
    with pytest.raises(ValueError, match="cannot be filled to 100 tokens"):
        ours.lengthened(problem, 100, lambda text: [0] * 1000)


def test_alternating_rewards_leave_no_group_flat_and_flat_groups_are_seen():
    values = [score.value for score in ours.alternating_scores([None] * 4, ["a"] * 4)]
    assert values == [0.0, 1.0, 0.0, 1.0]
    assert ours.schedule_entry(5, [1, 2], values[:2])["flat"] is False
    assert ours.schedule_entry(5, [1, 2], [1.0, 1.0])["flat"] is True


def test_a_smaller_vocabulary_keeps_whole_merges():
    pairs = {
        "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3},
        "merges": [["a", "b"], ["ab", "ab"]],
    }
    ours.cut_vocabulary(pairs, 3)
    assert pairs == {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}


# ---- the real thing ----------------------------------------------------------------------------


def test_the_gpu_check_says_so_where_there_is_none():
    done = subprocess.run(
        [sys.executable, str(BENCH.parent / "gpu" / "check.py")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "no CUDA device" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1


@pytest.mark.slow
def test_one_tiny_pair_on_micro(tmp_path):
    pytest.importorskip("trl", reason="TRL is a development dependency: pip install -e .[dev]")
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable, str(BENCH / "vs_trl.py"), "--pairs", "1", "--steps", "1",
            "--prompts", "2", "--answers", "2", "--threads", "1", "--json", str(file),
        ],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    figures = json.loads(file.read_text())
    # So little work is mostly noise, so the bound's verdict may go either way, but not be ignored.
    assert done.returncode == int(max(figures["bound_share"].values()) > 1.0), done.stderr
    assert set(figures["seconds_per_step"]) == {"ours", "trl", "ratio"}
    assert set(figures["seconds_per_step"]["ratio"]) == {"median", "min", "max"}
    assert set(figures["bound_share"]) == {"ours", "trl"}
    assert figures["seconds_per_step"]["trl"] > 0 and figures["peak_memory_mb"]["ours"] > 0
    only = figures["pairs"][0]
    for who in ("ours", "trl"):
        assert len(only[who]["seconds"]) == 1
        assert [len(g["answers"]) for g in only[who]["schedules"][0]] == [2, 2]
        assert all(1 <= n <= 48 for g in only[who]["schedules"][0] for n in g["answers"])
        assert only[who]["stop_ids"] == [2]
        assert only[who]["threads"] == 1
    # The same prompts, so the same lengths.
    prompts = [[g["prompt"] for g in only[who]["schedules"][0]] for who in ("ours", "trl")]
    assert prompts[0] == prompts[1]
    grpo = figures["configuration"]["trl"]["grpo"]
    assert (grpo["gradient_checkpointing"], grpo["bf16"], grpo["beta"]) == (False, False, 0.0)
    assert (grpo["loss_type"], grpo["num_iterations"]) == ("dapo", 1)
