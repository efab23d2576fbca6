"""The script for a machine with a GPU runs to its end on a CPU, and says when something failed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "gpu" / "check.py"
sys.path.insert(0, str(SCRIPT.parent))
import check  # noqa: E402


def run(tmp_path, *options: str) -> tuple[int, dict]:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "--json", str(figures), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert figures.exists(), done.stderr
    return done.returncode, json.loads(figures.read_text(encoding="utf-8"))


def test_targets_and_shapes_run_dry(tmp_path):
    code, found = run(tmp_path, "--dry", "--only", "targets,shapes")
    assert code == 0 and found["verdict"]["passed"] is True
    assert set(found["targets"]) == {
        f"qwen2.5-{size}{what}" for size in ("7b", "1.5b") for what in ("", " gap")
    }
    assert found["targets"]["qwen2.5-7b gap"]["nats"] < 1e-4
    assert set(found["shapes"]) == {f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "7b")}
    for stages in found["shapes"].values():
        assert set(stages) == {"rlhf", "instruct", "math", "code", "swe"}
        assert set(stages["rlhf"]) == {"rollout", "update", "reward model"}
        for phases in stages.values():
            assert all(abs(part["ratio"] - 1) <= 0.1 for part in phases.values())


@pytest.mark.slow
def test_every_section_runs_dry(tmp_path):
    pytest.importorskip("trl")
    code, found = run(tmp_path, "--dry")
    assert code == 0
    assert found["micro"]["same dtype against cpu"]["largest"] == 0.0
    assert found["trl"]["ratio"]["median"] > 0


def test_without_time_everything_is_named_as_skipped(tmp_path):
    code, found = run(tmp_path, "--dry", "--minutes", "0", "--only", "shapes")
    assert code == 0
    assert {shape["skipped"] for shape in found["shapes"].values()} == {"no time left"}


def test_a_section_that_fails_is_reported_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    def broken(_):
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(check, "targets", broken)
    monkeypatch.setattr(check, "shapes", lambda it: it.note("shapes", "reached", ok=True))
    figures = tmp_path / "figures.json"
    options = ["--dry", "--only", "targets,shapes", "--json", str(figures)]
    assert check.main(options) == 1
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert "fell off the bus" in found["targets"]["error"]
    assert found["shapes"]["reached"] == {"ok": True}
    assert found["verdict"]["passed"] is False
    assert "fell off the bus" in capsys.readouterr().out


def test_a_missed_aim_is_no_pass(monkeypatch):
    assert check.main(["--dry", "--only", "shapes", "--minutes", "0"]) == 0
    monkeypatch.setattr(check, "shapes", lambda it: it.note("shapes", "math", ratio=2.0, ok=False))
    assert check.main(["--dry", "--only", "shapes"]) == 1


def test_without_a_gpu_the_script_says_so(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert check.main([]) == 0
    assert "--dry runs tiny shapes" in capsys.readouterr().out
