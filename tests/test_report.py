"""The report of a synthetic run folder: whole, partial, torn and hostile."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.report import reading, steps_table, telling_pairs, write_report
from cascade_kit.run_logs import StageFolder, matrix_of, read_lines, read_matrix, read_stages

DOMAINS = ("rlhf", "instruct", "math")
RIGHT = {  # of 20 items each
    "sft": (8, 12, 6),
    "rlhf": (15, 4, 7),
    "instruct": (14, 16, 7),
    "math": (14, 15, 16),
}
HOSTILE = "</pre><script>alert('x')</script> & \ud800 ünïcode"


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def eval_rows(domain: str, right: int) -> list[dict]:
    return [
        {
            "id": f"{domain}-{k}",
            "score": float(k < right),
            "prompt": f"Question {k} <b>?",
            "completions": [f"answer {k} {HOSTILE}"],
            "samples": [float(k < right)],
        }
        for k in range(20)
    ]


def step_rows(stage: str, count: int = 12) -> list[dict]:
    parts = {"true_preference": 0.5, "reward_model": 0.1} if stage == "rlhf" else {"correct": 0.4}
    return [
        {
            "step": step,
            "reward_mean": 0.1 + 0.05 * step,
            "reward_std": 0.3,
            "parts": parts,
            "all_right": 0.1,
            "all_wrong": 0.2,
            "kl": None,
            "entropy": 1.0 / step,
            "grad_norm": 0.7,
            "learning_rate": 1e-3,
            "length_mean": 20.5,
            "truncated": 0.0,
            "tokens": 1000,
            "logprob_gap": 1e-6,
            "seconds": {"rollout": 1.0, "score": 0.5, "update": 2.0},
            "peak_memory_mb": 512.0,
            "success_mean": 0.4,
        }
        for step in range(1, count + 1)
    ]


def build_run(folder: Path, stages=tuple(RIGHT), matrix: bool = True) -> Path:
    """Write a run folder as the runner does."""
    run = {
        "model": "micro <1.7M>",
        "date": "2026-01-02",
        "seed": 0,
        "versions": {"torch": "2.13.0"},
        "stages": [{"name": "rlhf", "learning_rate": 1e-3}],
        "labels": {"rlhf": "rlhf (proxy)"},
    }
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    for index, stage in enumerate(stages):
        place = folder / f"{index}-{stage}"
        for domain, right in zip(DOMAINS, RIGHT[stage], strict=True):
            write_lines(place / "eval" / f"{domain}.jsonl", eval_rows(domain, right))
        if index:
            write_lines(place / "steps.jsonl", step_rows(stage))
    if matrix:
        built = read_matrix(folder, read_stages(folder))
        (folder / "matrix.json").write_text(json.dumps(built.to_json()), encoding="utf-8")
    return folder


class Page(HTMLParser):
    """Parses the page, checks nesting, and keeps tags, text and the order of figures and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def report_page(folder: Path) -> tuple[str, Page]:
    text = write_report(folder).read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, Page]:
    return report_page(build_run(tmp_path_factory.mktemp("whole") / "run"))


def test_report_is_self_contained_and_complete(whole):
    text, page = whole
    assert [attributes["id"] for attributes in page.named("section")] == [
        "run",
        "matrix",
        "training",
        "proxy",
        "answers",
        "metrics",
    ]
    assert len(page.named("img")) == 2 + 3 + 1  # matrix, trajectories, three stages, proxy
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.named("img"))
    assert all(len(image["alt"]) > 20 for image in page.named("img"))
    assert all(link["href"].startswith("#") for link in page.named("a"))
    assert not page.named("script") and not page.named("link")
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named(
        "meta"
    )


def test_every_figure_is_followed_by_its_table(whole):
    _, page = whole
    order = [tag for tag, _ in page.tags if tag in ("figure", "table")]
    places = [index for index, tag in enumerate(order) if tag == "figure"]
    assert places and all(order[index + 1 : index + 2] == ["table"] for index in places)
    assert len(page.named("caption")) == len(page.named("table"))
    assert all("scope" in attributes for attributes in page.named("th"))


def test_model_and_data_text_is_escaped_and_shown(whole):
    text, page = whole
    assert "<script" not in text and "<b>" not in text and "<1.7M>" not in text
    assert "alert('x')" in "".join(page.text)
    assert "micro &lt;1.7M&gt;" in text
    assert "ünïcode" in text


def test_report_says_what_gained_and_what_fell(whole):
    words = "".join(whole[1].text)
    assert "rlhf raised its own score from 0.40 to 0.75 (+0.35, 95 % interval" in words
    assert "instruct fell after rlhf, before it was trained (-0.40, 95 % interval" in words
    assert "12 step(s) in 42 s (rollout 12 s, score 6 s, update 24 s), peak memory 512 MB." in words
    assert "rlhf (proxy)" in words
    assert "instruct, before and after rlhf" in words  # the largest fall has examples too
    assert "torch" in words and "stages.rlhf.learning_rate" in words


def test_reading_counts_small_falls_as_possible_chance(tmp_path):
    folder = build_run(tmp_path / "run")
    lines = reading(read_matrix(folder, read_stages(folder)))
    assert lines[-1] == "2 more cell(s) fell by an amount that may be chance."
    assert len(lines) == 3 + 1 + 1


@pytest.mark.parametrize("stages", [("sft",), ("sft", "rlhf"), ("sft", "math", "rlhf")])
def test_partial_runs_are_reported(tmp_path, stages):
    folder = build_run(tmp_path / "run", stages, matrix=False)
    text, page = report_page(folder)
    matrix = read_matrix(folder, read_stages(folder))
    assert matrix.stages == stages
    assert set(matrix.domains) == set(DOMAINS)
    assert len(page.named("img")) == (1 if len(stages) == 1 else 2 + len(stages) - 1 + 1)
    assert "nan" not in "".join(page.text).lower()


def test_a_run_that_crashed_inside_a_stage(tmp_path):
    folder = build_run(tmp_path / "run", ("sft", "rlhf"), matrix=False)
    log = folder / "1-rlhf" / "steps.jsonl"
    log.write_bytes(log.read_bytes()[:-40])  # the last row is torn
    (folder / "1-rlhf" / "eval" / "math.jsonl").unlink()
    stages = read_stages(folder)
    assert len(stages[1].steps) == 11
    assert read_matrix(folder, stages).stages == ("sft",)
    assert "its last stages have no row yet" in report_page(folder)[0]


def test_a_run_without_any_evaluation(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    text, page = report_page(folder)
    assert "No domain has been evaluated yet." in text
    assert not page.named("img")


def test_unknown_true_preference_is_said(tmp_path):
    folder = build_run(tmp_path / "run")
    rows = [{**row, "parts": {}} for row in step_rows("rlhf")]
    write_lines(folder / "1-rlhf" / "steps.jsonl", rows)
    assert "The true preference is not known for this data" in report_page(folder)[0]


def test_broken_input_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json"):
        write_report(tmp_path)
    broken = tmp_path / "steps.jsonl"
    broken.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"steps\.jsonl:2: not JSON"):
        list(read_lines(broken))


def test_stage_folders_are_read_in_numeric_order(tmp_path):
    for name in ("10-swe", "2-instruct", "0-sft", "logs"):
        (tmp_path / name).mkdir()
    assert [stage.name for stage in read_stages(tmp_path)] == ["sft", "instruct", "swe"]


def test_long_step_tables_are_thinned_and_keep_the_last_step():
    table = steps_table([{"step": step, "kl": None} for step in range(1, 1001)], ("step", "kl"))
    assert table.count("<tr>") == 1 + 40
    assert "Every 25th step" in table
    assert '<th scope="row">1000</th>' in table and '<th scope="row">1</th>' not in table
    assert "kl" not in table  # a column without any value is left out


def test_shown_items_are_the_same_before_and_after():
    before = {k: {"id": k, "score": s} for k, s in {"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0}.items()}
    after = {k: {"id": k, "score": s} for k, s in {"b": 0.0, "a": 0.0, "d": 1.0, "e": 1.0}.items()}
    pairs = telling_pairs(before, after, 3)
    assert [pair[0]["id"] for pair in pairs] == ["d", "b", "a"]  # rose, fell, equal
    assert all(first["id"] == second["id"] for first, second in pairs)


def test_report_uses_the_matrix_of_the_run_when_it_is_there(tmp_path):
    folder = build_run(tmp_path / "run")
    matrix = ForgettingMatrix.from_json((folder / "matrix.json").read_text())
    rebuilt = read_matrix(folder, read_stages(folder))
    assert rebuilt == matrix
    (folder / "matrix.json").write_text("{}")
    with pytest.raises(ValueError, match="no 'stages'"):
        write_report(folder)


def test_untrained_domains_stand_in_the_usual_order_and_own_ones_last():
    row = {"id": "1", "score": 1.0}
    domains = ("brief", "code", "instruct", "math", "rlhf", "swe")
    evals = {domain: {"1": row} for domain in domains}
    start, math = StageFolder("sft", (), evals), StageFolder("math", (), evals)
    matrix = matrix_of([start, math])
    assert list(matrix.domains) == ["math", "rlhf", "instruct", "code", "swe", "brief"]
