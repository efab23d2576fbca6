"""The whole cascade on a real pretrained model and public rows (slow).

SmolLM2-135M-Instruct comes from the fixture `smollm2` of conftest.py.
"""

import json

import pytest

from cascade_kit.__main__ import main
from cascade_kit.stage import ORDER


@pytest.mark.slow
def test_five_stages_on_public_rows(smollm2, shared, tmp_path, capsys):
    out = tmp_path / "run"
    options = "--steps 1 --prompts 2 --answers 2 --max-new-tokens 32 --eval-items 3 --pairs 8"
    command = ["run", "--model", str(smollm2), "--data", str(shared / "data"), "--out", str(out)]
    command += ["--skip-preflight"]  # answers of 32 tokens are hopeless, and not the point here
    assert main([*command, *options.split()]) == 0
    assert "report.html" in capsys.readouterr().out
    matrix = json.loads((out / "matrix.json").read_text())
    assert matrix["stages"] == ["sft", *ORDER]
    assert sorted(matrix["domains"]) == sorted(ORDER)
    assert all(0 <= score <= 1 for row in matrix["scores"] for score in row)
    run = json.loads((out / "run.json").read_text())
    assert run["policy"]["bits"] == 4
    assert "/" not in run["policy"]["model"]
    for place, stage in enumerate(ORDER, start=1):
        steps = (out / f"{place}-{stage}" / "steps.jsonl").read_text().splitlines()
        assert len(steps) == 1
        gap = json.loads(steps[0])["logprob_gap"]
        assert gap is None or gap < 1e-3
