"""The runner and the command line, on the embedded model with short settings."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_kit.__main__ import main
from cascade_kit.cascade import Run
from cascade_kit.loading import load_policy
from cascade_kit.run_data import generated_data
from cascade_kit.stage import ORDER, cascade

SHORT = "--steps 1 --prompts 2 --answers 2 --eval-items 4".split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two short stages through the library, with all five domains evaluated."""
    stages = cascade(["rlhf", "code"], steps=2, prompts=2, answers=4)
    domains = cascade(ORDER)
    data = generated_data([replace(s, steps=2, prompts=2) for s in domains], eval_items=6)
    data = replace(data, train_pairs=data.train_pairs[:64], eval_pairs=data.eval_pairs[:20])
    folder = tmp_path_factory.mktemp("runs") / "short"
    run = Run.create(folder, load_policy(), data, stages, domains=domains, seed=4)
    run.events = list(run.go())
    return run


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_run_folder_holds_everything(run):
    folder = run.folder
    settings = json.loads((folder / "run.json").read_text())
    assert settings["order"] == ["rlhf", "code"]
    assert settings["seed"] == 4
    assert settings["threads"] >= 1
    assert settings["versions"].keys() >= {"torch", "transformers", "peft", "bitsandbytes"}
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["0-sft", "1-rlhf", "2-code"]
    for stage in ("0-sft", "1-rlhf", "2-code"):
        assert (folder / stage / "adapter" / "adapter_model.safetensors").is_file()
        for domain in ORDER:
            rows = lines(folder / stage / "eval" / f"{domain}.jsonl")
            assert len(rows) == 6
            assert rows[0].keys() >= {"id", "score", "samples", "prompt", "completions"}
            assert all(0 <= row["score"] <= 1 for row in rows)
    steps = lines(folder / "1-rlhf" / "steps.jsonl")
    assert [s["step"] for s in steps] == [1, 2]
    assert steps[0].keys() >= {
        "reward_mean", "parts", "all_right", "all_wrong", "kl", "entropy", "grad_norm",
        "learning_rate", "length_mean", "truncated", "tokens", "logprob_gap", "seconds",
        "peak_memory_mb",
    }  # fmt: skip
    assert steps[0]["parts"].keys() >= {"reward_model", "true_preference"}
    answers = lines(folder / "2-code" / "rollouts.jsonl")
    assert len(answers) == 2 * 2 * 4
    facts = json.loads((folder / "1-rlhf" / "reward_model" / "reward_model.json").read_text())
    assert 0 <= facts["held_out_accuracy"] <= 1
    report = (folder / "report.html").read_text()
    assert "<table" in report
    assert (folder / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_matrix_json_has_the_promised_shape(run):
    matrix = json.loads((run.folder / "matrix.json").read_text())
    assert matrix["stages"] == ["sft", "rlhf", "code"]
    assert set(matrix["domains"]) == set(ORDER)
    assert [len(row) for row in matrix["scores"]] == [5, 5, 5]
    assert matrix["change"][0] is None
    assert matrix["change"][1][0].keys() == {"mean", "low", "high", "lost", "gained"}
    assert matrix["metrics"].keys() == {
        "acc", "bwt", "fwt", "forgetting", "largest_drop_before_training",
    }  # fmt: skip
    assert "NaN" not in (run.folder / "matrix.json").read_text()


def test_the_score_of_a_row_is_the_mean_of_its_items(run):
    matrix = json.loads((run.folder / "matrix.json").read_text())
    for i, stage in enumerate(("0-sft", "1-rlhf", "2-code")):
        for j, domain in enumerate(matrix["domains"]):
            rows = lines(run.folder / stage / "eval" / f"{domain}.jsonl")
            mean = sum(row["score"] for row in rows) / len(rows)
            assert matrix["scores"][i][j] == pytest.approx(mean)


def test_each_stage_continues_the_one_before(run):
    policy = load_policy()
    hashes = []
    for stage in ("0-sft", "1-rlhf", "2-code"):
        policy.load_adapter(run.folder / stage / "adapter")
        hashes.append(policy.adapter_hash())
    assert len(set(hashes)) == 3
    assert hashes[-1] == run.policy.adapter_hash()
    assert "reference" not in run.policy.model.peft_config


def test_events_tell_what_happens_in_order(run):
    kinds = [(e.kind, e.stage) for e in run.events]
    assert kinds[0] == ("reward model", "rlhf")
    assert kinds.index(("evaluated", "sft")) < kinds.index(("step", "rlhf"))
    assert kinds.index(("evaluated", "rlhf")) < kinds.index(("step", "code"))
    assert kinds[-1] == ("finished", "code")


def test_the_same_items_and_random_numbers_in_every_row(run):
    """A policy that did not change gives the same answers again."""
    before = (run.folder / "2-code" / "eval" / "math.jsonl").read_text()
    list(run.evaluate("code"))
    assert (run.folder / "2-code" / "eval" / "math.jsonl").read_text() == before


def test_a_whole_cascade_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--order", "math,instruct", *SHORT]) == 0
    printed = capsys.readouterr().out
    assert "report.html" in printed
    assert "matrix.png" in printed
    assert json.loads((out / "matrix.json").read_text())["stages"] == ["sft", "math", "instruct"]


def test_a_run_that_was_cut_off_is_continued_to_the_same_end(tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = ["--order", "math,code", *SHORT]
    assert main(["run", "--out", str(whole), *options]) == 0
    shutil.copytree(whole, cut)
    for name in ("matrix.json", "matrix.png", "report.html"):
        (cut / name).unlink()
    for name in ("adapter", "eval"):  # as if killed while the second stage trained
        shutil.rmtree(cut / "2-code" / name)
    kept = (cut / "1-math" / "steps.jsonl").stat().st_mtime_ns
    assert main(["run", "--out", str(cut), "--resume", *options]) == 0
    assert (cut / "1-math" / "steps.jsonl").stat().st_mtime_ns == kept
    assert (cut / "matrix.json").read_text() == (whole / "matrix.json").read_text()
    adapters = [f / "2-code" / "adapter" / "adapter_model.safetensors" for f in (whole, cut)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
    capsys.readouterr()
    assert "stages" in fails(capsys, "--out", str(cut), "--resume", *options, "--steps", "3")
    assert "nothing to resume" in fails(capsys, "--out", str(tmp_path / "no"), "--resume", *options)


def fails(capsys, *arguments: str) -> str:
    """The one line on standard error of a command that must exit with code 2."""
    try:
        code = main(["run", *arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    captured = capsys.readouterr().err
    assert code == 2
    return captured.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--order", "math,poetry"], "unknown stage 'poetry'; choose from rlhf, instruct, math"),
        (["--order", "math,code,math"], "stage 'math' stands twice in the order"),
        (["--order", ","], "the order is empty"),
        (["--answers", "1"], "answers=1 is too small; use at least 2"),
        (["--steps", "0"], "steps=0 is too small; use at least 1"),
        (["--steps", "two"], "'two' is not a whole number"),
        (["--eval-items", "1"], "--eval-items must be at least 2"),
        (["--bits", "5"], "--bits 5 is not possible; choose 4, 8 or 16"),
        (["--model", "./no/such/folder"], "no model at ./no/such/folder"),
        (["--rank", "0"], "--rank must be at least 1"),
    ],
)
def test_bad_arguments_are_one_clear_line_and_leave_nothing(tmp_path, capsys, arguments, message):
    out = tmp_path / "run"
    assert message in fails(capsys, "--out", str(out), *arguments)
    assert not out.exists()


def test_an_existing_run_folder_is_refused_and_kept(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert "exists; choose another --out" in fails(capsys, "--out", str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"question": "1 + 1?", "answer": "2"}\n{"question": \n', "rows.jsonl, line 2"),
        ('{"question": "1 + 1?", "answr": "2"}\n', "'answer'"),
        ('{"question": "1 + 1?", "answer": "2"}\n', "too few math rows"),
    ],
)
def test_bad_data_name_the_file_and_leave_nothing(tmp_path, capsys, content, message):
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.jsonl").write_text(content)
    out = tmp_path / "run"
    line = fails(capsys, "--order", "math", "--data", str(data), "--out", str(out))
    assert message in line
    assert str(data) in line
    assert not out.exists()


def test_help_helps():
    environment = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", "cascade_kit", "run", "--help"]
    text = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout
    for option in ("--model", "--order", "--data", "--answers", "--eval-items", "--seed", "--bits"):
        assert option in text


def test_doctor_trains_two_steps(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "isolation" in printed
    assert "smoke step 2" in printed


def test_the_matrix_of_a_resumed_run_is_built_from_its_rows(tmp_path):
    out = tmp_path / "run"
    options = ["--out", str(out), "--order", "math", *SHORT]
    assert main(["run", *options]) == 0
    true = (out / "matrix.json").read_text()
    (out / "matrix.json").write_text(true.replace("0.5", "0.123"))
    shutil.rmtree(out / "1-math" / "adapter")
    rows = out / "1-math" / "eval" / "code.jsonl"
    rows.write_text(rows.read_text()[:-40])  # torn while it was written
    assert main(["run", "--resume", *options]) == 0
    assert (out / "matrix.json").read_text() == true


def test_answers_that_cannot_fit_are_refused_before_a_folder_is_made(tmp_path, capsys):
    out = tmp_path / "run"
    message = fails(capsys, "--out", str(out), "--order", "math", "--max-new-tokens", "5000")
    assert "exceeds the model's 4096; lower --max-new-tokens" in message
    assert not out.exists()


def test_an_interrupt_names_the_command_that_goes_on(tmp_path, capsys, monkeypatch):
    from cascade_kit.commands import run as program

    def pressed(run, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "watch", pressed)
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--order", "math", *SHORT]) == 130
    assert f"--resume --out {out}" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["weights", "template"])
def test_a_damaged_model_is_one_line(tmp_path, capsys, damage):
    from cascade_kit.loading import MICRO

    model = tmp_path / "model"
    shutil.copytree(MICRO, model)
    if damage == "weights":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    else:
        (model / "chat_template.jinja").write_text("{% for message in %}")
    out = tmp_path / "run"
    assert "cannot be loaded" in fails(capsys, "--model", str(model), "--out", str(out))
    assert not out.exists()
