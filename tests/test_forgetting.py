"""Metrics against the paper's derived values and hand-made tables; the matrix from item scores."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from cascade_kit.forgetting import (
    PAPER_BENCHMARKS,
    PAPER_DOMAINS,
    PAPER_MATRICES,
    PAPER_STAGES,
    Change,
    ForgettingMatrix,
    acc,
    bwt,
    forgetting,
    fwt,
    largest_drop_before_training,
    paired_change,
)
from cascade_kit.intervals import paired_share_interval

PAPER = {  # shared/handbook/paper.md section 3: ACC, BWT, forgetting, FWT
    "8B unified": (73.30, -1.150, 1.575, -0.525),
    "8B-Thinking": (72.16, -0.525, 1.275, -1.400),
    "14B-Thinking": (74.48, -0.800, 1.600, 0.500),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_metrics(name):
    table = (PAPER_MATRICES[name], PAPER_STAGES, PAPER_DOMAINS)
    values = (acc(*table), bwt(*table), forgetting(*table), fwt(*table))
    assert values == pytest.approx(PAPER[name], abs=1e-9)
    assert all(type(value) is float for value in values)


def test_paper_drop_before_training_is_instruct_at_rlhf():
    drops = [
        largest_drop_before_training(table, PAPER_STAGES, PAPER_DOMAINS)
        for table in PAPER_MATRICES.values()
    ]
    assert {(drop["domain"], drop["stage"]) for drop in drops} == {("instruct", "rlhf")}
    assert [drop["drop"] for drop in drops] == pytest.approx([20.7, 20.8, 13.6])
    assert len(PAPER_BENCHMARKS) == len(PAPER_DOMAINS)


# Two of three domains trained, not in column order: c first, then a. b is never trained.
STAGES, DOMAINS = ("sft", "c", "a"), ("a", "b", "c")
SCORES = [[0.2, 0.5, 0.3], [0.1, 0.3, 0.8], [0.6, 0.4, 0.7]]


def test_metrics_by_hand_in_any_order_with_an_untrained_domain():
    table = (SCORES, STAGES, DOMAINS)
    assert acc(*table) == pytest.approx((0.7 + 0.6) / 2)
    assert bwt(*table) == pytest.approx(0.7 - 0.8)
    assert fwt(*table) == pytest.approx(0.1 - 0.2)
    assert forgetting(*table) == pytest.approx(0.8 - 0.7)
    drop = largest_drop_before_training(*table)
    assert (drop["domain"], drop["stage"]) == ("b", "c")  # never trained counts as not yet trained
    assert drop["drop"] == pytest.approx(0.2)


def test_forgetting_maximum_includes_stages_before_the_domain_was_trained():
    scores = [[0.0, 0.0, 0.0], [0.9, 0.8, 0.0], [0.9, 0.5, 0.0], [0.9, 0.4, 0.5]]
    # domain a: 0.9 - 0.9; domain b: best earlier 0.8 (after stage a) - 0.4
    assert forgetting(scores, ("sft", "a", "b", "c"), ("a", "b", "c")) == pytest.approx(0.2)


def test_undefined_metrics_are_none():
    start = ([[0.1, 0.2]], ("sft",), ("a", "b"))
    one = ([[0.1, 0.2], [0.5, 0.2]], ("sft", "a"), ("a", "b"))
    assert [f(*start) for f in (acc, bwt, fwt, forgetting)] == [None] * 4
    assert [f(*one) for f in (acc, bwt, fwt, forgetting)] == [0.5, None, None, None]
    assert largest_drop_before_training(*start) is None
    assert largest_drop_before_training(*one) is None  # b stayed, a is its own stage


@pytest.mark.parametrize(
    ("scores", "stages", "message"),
    [
        ([[0.1, 0.2]], ("sft", "a"), "shape"),
        ([[0.1, float("nan")]], ("sft",), "evaluate every domain"),
        ([[0.1, 0.2], [0.1, 0.2]], ("sft", "z"), "'z' is no column"),
    ],
)
def test_metrics_refuse_bad_tables(scores, stages, message):
    with pytest.raises(ValueError, match=message):
        acc(scores, stages, ("a", "b"))


def test_paired_change_counts_flips_of_binary_items():
    before = {f"i{k}": (float(k < 5),) for k in range(20)}
    after = {f"i{k}": (float(2 <= k < 12),) for k in range(20)}
    change = paired_change(before, after)
    assert (change.lost, change.gained) == (2, 7)
    assert change.mean == pytest.approx(0.25)
    assert (change.low, change.high) == paired_share_interval(2, 7, 20)


def test_paired_change_of_several_samples_uses_item_means():
    before = {"a": (0.0, 1.0), "b": (0.0, 0.0), "c": (1.0, 1.0)}
    after = {"c": (1.0, 1.0), "b": (1.0, 0.0), "a": (1.0, 1.0)}  # order does not matter
    change = paired_change(before, after)
    # differences 0.5, 0.5, 0: mean 1/3, s^2 = 1/12, t(2) = 4.30265; clipped at 1
    half = 4.30265 * (1 / 12 / 3) ** 0.5
    assert (change.lost, change.gained) == (0, 2)
    assert (change.mean, change.low, change.high) == pytest.approx(
        (1 / 3, 1 / 3 - half, 1.0), abs=1e-5
    )


@pytest.mark.parametrize("samples", [(1.0,), (1.0, 1.0), (0.25,)])
def test_paired_change_without_any_change_is_not_a_point(samples):
    items = {str(k): samples for k in range(50)}
    change = paired_change(items, items)
    assert change.low < -0.02 and change.high > 0.02
    assert (change.mean, change.lost, change.gained) == (0.0, 0, 0)


def test_paired_change_refuses_different_items():
    with pytest.raises(ValueError, match="item 'b'"):
        paired_change({"a": (1.0,)}, {"a": (1.0,), "b": (0.0,)})


def small_matrix() -> ForgettingMatrix:
    """Two stages on two domains with names that must be escaped; 10 binary items each."""

    def cell(right: int) -> dict[str, tuple[float]]:
        return {f"i{k}": (float(k < right),) for k in range(10)}

    rights = {"sft": (4, 6), "a<b": (9, 2), "c&d": (8, 7)}
    domains = ("a<b", "c&d")
    items = {
        (stage, domain): cell(right)
        for stage, row in rights.items()
        for domain, right in zip(domains, row, strict=True)
    }
    return ForgettingMatrix.from_items(tuple(rights), domains, items)


def test_matrix_from_items():
    matrix = small_matrix()
    assert matrix.scores == ((0.4, 0.6), (0.9, 0.2), (0.8, 0.7))
    assert matrix.n == ((10, 10),) * 3
    assert matrix.interval[0][0] == pytest.approx((0.1216, 0.7376), abs=5e-5)  # Clopper-Pearson
    assert matrix.change[0] is None
    assert (matrix.change[1][1].lost, matrix.change[1][1].gained) == (4, 0)
    assert matrix.change[1][1].mean == pytest.approx(-0.4)
    assert matrix.metrics["bwt"] == pytest.approx(-0.1)


def test_json_shape_and_round_trip():
    matrix = small_matrix()
    text = json.dumps(matrix.to_json(), allow_nan=False)
    data = json.loads(text)
    assert list(data) == ["stages", "domains", "scores", "n", "interval", "change", "metrics"]
    assert data["stages"][0] == "sft"
    assert data["change"][0] is None
    assert set(data["change"][1][0]) == {"mean", "low", "high", "lost", "gained"}
    assert list(data["metrics"]) == [
        "acc",
        "bwt",
        "fwt",
        "forgetting",
        "largest_drop_before_training",
    ]
    drop = data["metrics"]["largest_drop_before_training"]
    assert drop == {"domain": "c&d", "stage": "a<b", "drop": pytest.approx(0.4)}
    assert ForgettingMatrix.from_json(text) == matrix == ForgettingMatrix.from_json(data)


def test_bare_scores_have_no_intervals():
    scores = np.array(PAPER_MATRICES["8B unified"]) / 100
    matrix = ForgettingMatrix.from_scores(PAPER_STAGES, PAPER_DOMAINS, scores)
    assert matrix.change[1][1] == Change(pytest.approx(-0.207), None, None, None, None)
    assert matrix.metrics["acc"] == pytest.approx(0.7330)
    assert ForgettingMatrix.from_json(json.dumps(matrix.to_json())) == matrix
    assert "instruct fell 0.21 after rlhf, before its own stage" in matrix.summary()


def test_start_alone_is_a_matrix_with_undefined_metrics():
    items = {("sft", "a"): {"i": (1.0,)}}
    matrix = ForgettingMatrix.from_items(("sft",), ("a",), items)
    assert set(matrix.metrics.values()) == {None}
    assert matrix.summary() == "The start, before any stage."
    assert "nan" not in str(matrix).lower()


def test_matrix_refuses_scores_outside_the_unit_interval_and_double_names():
    with pytest.raises(ValueError, match="a after sft: item 'i'"):
        ForgettingMatrix.from_items(("sft",), ("a",), {("sft", "a"): {"i": (-1.0,)}})
    with pytest.raises(ValueError, match="no items"):
        ForgettingMatrix.from_items(("sft",), ("a",), {("sft", "a"): {}})
    with pytest.raises(ValueError, match="named twice"):
        ForgettingMatrix.from_scores(("sft", "a", "a"), ("a",), [[0.1], [0.2], [0.3]])


def test_summary_names_the_largest_drop_with_its_interval():
    summary = small_matrix().summary()
    assert summary.startswith("The mean score of the 2 trained domains went from 0.50 to 0.75;")
    assert "c&d fell 0.40 after a<b, before its own stage, the largest drop (95 % " in summary


def test_summary_also_names_clear_falls_of_the_newest_stage():
    right = {  # of 40 items; b falls by half at a, then a falls by a quarter at b
        ("sft", "a"): 10, ("sft", "b"): 30,
        ("a", "a"): 40, ("a", "b"): 10,
        ("b", "a"): 30, ("b", "b"): 40,
    }  # fmt: skip
    items = {cell: {f"i{k}": (float(k < n),) for k in range(40)} for cell, n in right.items()}
    summary = ForgettingMatrix.from_items(("sft", "a", "b"), ("a", "b"), items).summary()
    assert "b fell 0.50 after a" in summary
    assert summary.endswith(" After b, the newest stage, a fell 0.25.")


def test_text_table_fits_a_terminal():
    values = {"sft": 0.4, "rlhf": 0.5, "instruct": 0.6, "math": 0.2, "code": 0.5, "swe": 0.5}
    items = {
        (stage, domain): {f"i{k}": (float(k / 40 < share),) for k in range(40)}
        for stage, share in values.items()
        for domain in PAPER_DOMAINS
    }
    text = str(ForgettingMatrix.from_items(PAPER_STAGES, PAPER_DOMAINS, items))
    lines = text.split("\n")
    assert max(len(line) for line in lines[:-1]) <= 80
    assert "*0.50" in text and "(0.40)" in text and "0.25..0.57" in text and "*-0.40" in text


class Tags(HTMLParser):
    """Counts tags and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_accessible_tables_and_escaped():
    page = small_matrix()._repr_html_()
    tags = Tags(page)
    assert not tags.open
    assert "a<b" not in page and "a&lt;b" in page and "c&d" not in page
    assert sum(tag == "table" for tag, _ in tags.seen) == 3
    assert sum(tag == "caption" for tag, _ in tags.seen) == 3
    assert all("scope" in attributes for tag, attributes in tags.seen if tag == "th")
    assert all("style" not in attributes for _, attributes in tags.seen)


def test_rows_are_flat():
    rows = small_matrix().to_rows()
    assert len(rows) == 6
    assert rows[0]["change"] is None and rows[0]["standing"] == "before"
    assert [row["standing"] for row in rows[2:]] == ["own", "before", "after", "own"]
    assert rows[3]["change"] == pytest.approx(-0.4) and rows[3]["lost"] == 4
