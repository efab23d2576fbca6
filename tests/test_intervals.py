"""Intervals against closed forms, published values and exact coverage by enumeration."""

import math

import numpy as np
import pytest

from cascade_kit.intervals import (
    bounded_mean_interval,
    clopper_pearson,
    incomplete_beta,
    mean_change_interval,
    paired_share_interval,
    score_interval,
    student_t_quantile,
)


def test_incomplete_beta_closed_forms():
    assert incomplete_beta(0.5, 2, 3) == pytest.approx(11 / 16, rel=1e-13)  # P(Bin(4, 1/2) >= 2)
    assert incomplete_beta(0.3, 1, 4) == pytest.approx(1 - 0.7**4, rel=1e-13)
    assert incomplete_beta(0.9, 5, 1) == pytest.approx(0.9**5, rel=1e-13)
    assert incomplete_beta(0.25, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(0.5), rel=1e-12)
    assert (incomplete_beta(0.0, 2, 3), incomplete_beta(1.0, 2, 3)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("degrees", "value"),  # printed t tables, two-sided 95 %
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (30, 2.0423), (199, 1.9720), (1_000_000, 1.9600)],
)
def test_student_t_quantile(degrees, value):
    assert student_t_quantile(0.95, degrees) == pytest.approx(value, abs=6e-5)


def test_student_t_quantile_closed_form_of_two_degrees():
    # F(t) = 1/2 + t / (2 sqrt(2 + t^2)), so t = c sqrt(2 / (1 - c^2)) at two-sided confidence c
    assert student_t_quantile(0.99, 2) == pytest.approx(0.99 * math.sqrt(2 / (1 - 0.99**2)))


def test_clopper_pearson_known_values():
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10) == pytest.approx((0.025**0.1, 1.0))
    assert clopper_pearson(5, 10) == pytest.approx((0.1871, 0.8129), abs=5e-5)
    assert clopper_pearson(81, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)  # Newcombe 1998


def test_clopper_pearson_coverage_is_never_below_its_level():
    for share in np.linspace(0.01, 0.99, 33):
        covered = sum(
            math.comb(12, k) * share**k * (1 - share) ** (12 - k)
            for k in range(13)
            if clopper_pearson(k, 12)[0] <= share <= clopper_pearson(k, 12)[1]
        )
        assert covered >= 0.95


def test_bounded_mean_equals_clopper_pearson_at_the_ends_and_solves_its_equation():
    assert bounded_mean_interval([1.0] * 8) == pytest.approx(clopper_pearson(8, 8))
    assert bounded_mean_interval([0.0] * 8) == pytest.approx(clopper_pearson(0, 8))
    low, high = bounded_mean_interval([0.5] * 20)
    assert low + high == pytest.approx(1.0)
    divergence = 0.5 * math.log(0.5 / high) + 0.5 * math.log(0.5 / (1 - high))
    assert 20 * divergence == pytest.approx(math.log(40))


def test_score_interval_by_hand_on_item_means():
    # item means 0.25, 0.5, 0.75, 0.5: s^2 = 0.125 / 3, t(3) = 3.1824
    half = 3.18245 * math.sqrt(0.125 / 3 / 4)
    values = [(0.0, 0.5), (0.5, 0.5), (1.0, 0.5), (0.0, 1.0)]
    assert score_interval(values) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        [(1.0,)] * 30,
        [(0.0,)] * 30,
        [(1.0, 1.0)] * 30,
        [(0.0, 0.0, 0.0)] * 30,
        [(0.5, 0.5)] * 30,
        [(0.7,)],
        [(1.0, 1.0)] * 29 + [(0.5, 1.0)],
    ],
)
def test_score_interval_is_never_a_point(values):
    low, high = score_interval(values)
    mean = sum(sum(item) / len(item) for item in values) / len(values)
    assert 0.0 <= low <= mean <= high <= 1.0
    assert high - low > 0.05


def test_score_interval_without_items_names_the_remedy():
    with pytest.raises(ValueError, match="--eval-items"):
        score_interval([])


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_paired_interval_covers_exactly_at_every_true_value(n):
    """No simulation: the coverage summed over every outcome, on a grid of (lost, gained) shares."""
    intervals = {
        (lost, gained): paired_share_interval(lost, gained, n)
        for lost in range(n + 1)
        for gained in range(n + 1 - lost)
    }
    ways = {
        (b, c): math.factorial(n)
        // (math.factorial(b) * math.factorial(c) * math.factorial(n - b - c))
        for b, c in intervals
    }
    grid = [(i / 20, j / 20) for i in range(21) for j in range(21 - i)]
    for loss, gain in grid:
        same = max(1.0 - loss - gain, 0.0)
        covered = sum(
            ways[b, c] * loss**b * gain**c * same ** (n - b - c)
            for (b, c), (low, high) in intervals.items()
            if low - 1e-9 <= gain - loss <= high + 1e-9
        )
        assert covered >= 0.95 - 1e-9, (loss, gain)


def test_paired_interval_coverage_by_simulation():
    draws = np.random.default_rng(0).multinomial(40, [0.15, 0.25, 0.6], size=800)
    intervals = {tuple(row[:2]): paired_share_interval(*row[:2], 40) for row in draws.tolist()}
    hits = [intervals[lost, gained] for lost, gained, _ in draws.tolist()]
    assert np.mean([low <= 0.10 <= high for low, high in hits]) >= 0.95


def test_paired_interval_without_flips_is_honest():
    for n in (1, 10, 200, 1000):
        low, high = paired_share_interval(0, 0, n)
        assert low == pytest.approx(-high)
        assert high >= 1 - 0.05 ** (1 / n)  # no shorter than the one-sided limit of zero flips
    assert paired_share_interval(0, 0, 200)[1] == pytest.approx(4.82 / 200, abs=1e-4)


def test_paired_interval_is_antisymmetric_and_contains_the_estimate():
    low, high = paired_share_interval(20, 40, 200)
    assert paired_share_interval(40, 20, 200) == pytest.approx((-high, -low))
    assert 0.0 < low < 0.1 < high
    # between the approximate (Wald) interval and the one of two Bonferroni Clopper-Pearson limits
    assert (
        (0.1 - 0.0746)
        > low
        > clopper_pearson(40, 200, 0.975)[0] - clopper_pearson(20, 200, 0.975)[1]
    )


def test_paired_interval_at_the_ends():
    low, high = paired_share_interval(0, 200, 200)
    assert high == 1.0
    assert 0.95 < low < 1.0


def test_mean_change_is_student_t_where_items_vary():
    differences = [0.5, 0.0, 0.25, -0.25]  # mean 0.125, s^2 = 0.3125 / 3, t(3) = 3.1824
    half = 3.18245 * math.sqrt(0.3125 / 3 / 4)
    assert mean_change_interval(differences) == pytest.approx(
        (0.125 - half, 0.125 + half), abs=1e-5
    )


def test_mean_change_without_change_is_honest():
    low, high = mean_change_interval([0.0] * 200)
    assert high == pytest.approx(1 - 0.0125 ** (1 / 200))  # half the error for each direction
    assert low == pytest.approx(-high)
    low, high = mean_change_interval([0.25] * 10)
    assert low < 0.25 < high


def test_mean_change_coverage_where_few_items_change():
    """One item in 50 rises by a half: in 13 % of the draws none does, and t would say [0, 0]."""
    moved = np.random.default_rng(1).random((300, 100)) < 0.02
    hits = [mean_change_interval((0.5 * row).tolist()) for row in moved]
    assert np.mean([low <= 0.01 <= high for low, high in hits]) >= 0.95
