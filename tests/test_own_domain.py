"""The reader's own domain: the cells of 06_forgetting_matrix, as they stand in the notebook."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from cascade_kit import settings
from cascade_kit.session import data as session_data
from cascade_kit.session import open_session
from cascade_kit.stage import ORDER

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "06_forgetting_matrix.ipynb"
OWN_CELLS = (
    "own-domain", "own-reward", "own-stage", "own-open", "own-train", "own-evaluate", "own-matrix",
    "own-explorer", "own-chat", "attach", "hand-over",
)  # fmt: skip
HELD_OUT = 16  # every third of the 48 problems in the notebook


def code_cells() -> dict[str, str]:
    """Cell id -> source of the notebook's code cells, in order, without the setup cell."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    found = {c["id"]: "".join(c["source"]) for c in cells if c["cell_type"] == "code"}
    return {name: source for name, source in found.items() if name != "setup"}


def prepared() -> dict[str, Any]:
    """Names as the notebook has them when it comes to the own domain: imports and parameters."""
    names: dict[str, Any] = {"settings": settings}
    cells = code_cells()
    for name, source in cells.items():
        nodes = ast.parse(source).body
        if name != "parameters":
            nodes = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(nodes, []), name, "exec"), names)
    return names


def run(names: dict[str, Any], *cells: str) -> None:
    for name in cells:
        exec(compile(code_cells()[name], name, "exec"), names)


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.setenv("CASCADE_FAST", "1")
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    monkeypatch.setattr(session_data, "FAST_EVAL_ITEMS", 2)


def test_the_cells_add_a_sixth_column_to_a_cascade(capsys):
    math = open_session("math")
    math.configure(steps=1, prompts=2, answers=2, max_new_tokens=16)
    list(math.train())
    names = prepared()
    run(names, *OWN_CELLS)
    assert "brief continues from math, the newest finished stage" in capsys.readouterr().out
    assert [record.step for record in names["own_history"].records] == [1, 2]
    matrix = names["six"]
    assert matrix.stages == ("sft", "math", "brief")
    assert matrix.domains[:2] == ("math", "brief")
    assert set(matrix.domains) == {*ORDER, "brief"}
    assert [row[matrix.domains.index("brief")] for row in matrix.n] == [HELD_OUT] * 3
    assert [row[matrix.domains.index("code")] for row in matrix.n] == [2] * 3
    folder = settings.notebook_folder()
    assert json.loads((folder / "matrix.json").read_text())["domains"] == list(matrix.domains)
    assert (folder / "6-brief" / "adapter" / "adapter_config.json").exists()
    ((reply,),) = open_session("math").answers("Describe the sea.", stage="brief")
    assert reply.stage == "brief"

    # Run again, the stage is loaded; a changed reward is trained and tested anew on request.
    run(names, "own-open", "own-train")
    assert "brief is finished (2 steps) and was loaded" in capsys.readouterr().out
    own = names["own_stage"](
        "brief", names["problems"], lambda problem, text: names["Score"](0.25), steps=1, prompts=2
    )
    changed = open_session(own, problems=names["problems"], again=True)
    list(changed.train())
    list(changed.evaluate())
    column = changed.matrix().domains.index("brief")
    assert [row[column] for row in changed.matrix().scores] == [0.25] * 3


def test_the_reward_of_the_notebook_by_hand():
    names = prepared()
    run(names, "own-domain")
    problem, reward = names["problems"][0], names["reward"]
    assert (problem.prompt, problem.domain) == ("Describe the sea. Be brief.", "brief")
    words = {6: 1.0, 12: 0.5, 15: 0.25, 18: 0.0, 30: 0.0}
    for count, value in words.items():
        assert reward(problem, " ".join(["sea"] * count)).value == pytest.approx(value)
    assert reward(problem, "Look it up yourself.").value == 0.0
    assert reward(problem, "").value == 0.0


def test_the_held_out_topics_are_those_that_the_text_names():
    names = prepared()
    run(names, "own-domain")
    train, held_out = session_data.split_problems("brief", names["problems"])
    topics = {p.target["topic"] for p in held_out}
    assert topics == {"sun", "city", "library", "ship"}
    assert not topics & {p.target["topic"] for p in train}
    assert len(held_out) == HELD_OUT


def test_the_hand_computations_agree_on_any_matrix():
    """The cells on ACC, BWT, FWT and forgetting, on the paper's models and on another order."""
    from cascade_kit.forgetting import ForgettingMatrix

    names = prepared()
    run(names, "paper")
    assert len(names["papers"]) == 3
    scores = [[0.2, 0.5, 0.3], [0.1, 0.3, 0.8], [0.6, 0.4, 0.7]]  # c first, then a; never b
    other = ForgettingMatrix.from_scores(("sft", "c", "a"), ("a", "b", "c"), scores)
    for example in (*names["papers"].values(), other):
        names["papers"] = {"8B unified": example}
        run(names, "example", "acc", "bwt", "fwt", "forgetting", "check")  # the last one asserts
        assert names["acc"] == pytest.approx(example.metrics["acc"])
        assert names["forgetting"] >= -names["bwt"] - 1e-12
    assert names["bwt"] == pytest.approx(0.7 - 0.8)
