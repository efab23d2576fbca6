"""95 % intervals for scores in [0, 1] and for paired changes, without scipy.

Three situations, one rule each; none of them ever answers [x, x]:

1. One binary answer an item: `clopper_pearson` for a score, `paired_share_interval` for a change.
   Both are exact: their coverage is at least the stated one for every n and every true value.
2. Several or graded answers an item: Student's t on the item means (`student_t_interval`), so that
   answers to the same item are not mistaken for independent ones. Coverage is approximate.
3. Item means that hardly vary (all equal, or fewer than five of at least twenty off the common
   value), where t would claim certainty: Hoeffding's bound (`bounded_mean_interval`), which holds
   for any values in [0, 1] and equals Clopper-Pearson when all of them are 0 or all are 1.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

CONFIDENCE = 0.95
FEW_ITEMS_OFF = 5  # fewer items off the common value than this say little about the spread
ENOUGH_ITEMS = 20  # below it every item may be needed; t is then used unless nothing varies at all
NUISANCE_ERROR = 0.2  # share of the error of a paired interval spent on its nuisance parameter

Interval = tuple[float, float]


def solve_rising(function: Callable[[float], float], low: float, high: float) -> float:
    """Return x in [low, high] where a rising function crosses 0, by bisection to 1e-15."""
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-15 * high:
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b): the beta distribution's CDF."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast only below the mean
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of I_x(a, b) (DLMF 8.17.22) by the modified Lentz method."""
    tiny = 1e-300
    c = 1.0
    d = 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / ((1.0 + term * d) or tiny)
            c = (1.0 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the x with I_x(a, b) = probability."""
    return solve_rising(lambda x: incomplete_beta(x, a, b) - probability, 0.0, 1.0)


def student_t_quantile(confidence: float, degrees: int) -> float:
    """Return the t with P(|T| < t) = confidence; 2.776 for 0.95 and 4 degrees of freedom."""
    share = beta_quantile(confidence, 0.5, degrees / 2)  # T^2 / (degrees + T^2) is beta(1/2, v/2)
    return math.sqrt(degrees * share / (1.0 - share))


def clopper_pearson(successes: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the exact interval of a binomial share (Clopper and Pearson 1934)."""
    tail = (1.0 - confidence) / 2
    low = beta_quantile(tail, successes, n - successes + 1) if successes else 0.0
    high = beta_quantile(1.0 - tail, successes + 1, n - successes) if successes < n else 1.0
    return low, high


def bounded_mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return an interval for the mean of independent values in [0, 1] of any distribution.

    All m with n * KL(mean || m) <= log(2 / (1 - confidence)), KL between Bernoulli variables:
    theorem 1 of Hoeffding (1963). Coverage is at least `confidence` for every n.
    """
    mean = math.fsum(values) / len(values)
    budget = math.log(2.0 / (1.0 - confidence)) / len(values)

    def excess(m: float) -> float:
        hit = mean * math.log(mean / m) if mean > 0.0 else 0.0
        miss = (1.0 - mean) * math.log((1.0 - mean) / (1.0 - m)) if mean < 1.0 else 0.0
        return hit + miss - budget

    low = solve_rising(lambda m: -excess(m), 0.0, mean) if mean > 0.0 else 0.0
    high = solve_rising(excess, mean, 1.0) if mean < 1.0 else 1.0
    return low, high


def student_t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return mean -/+ t * s / sqrt(n) of n >= 2 independent values, s Bessel-corrected."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_t_quantile(confidence, n - 1) * math.sqrt(variance / n)
    return mean - half, mean + half


def barely_varies(values: Sequence[float]) -> bool:
    """Tell whether too few values differ from the commonest one to estimate a spread from them."""
    counts = Counter(round(value, 12) for value in values)
    off = len(values) - max(counts.values())
    return off == 0 or (off < FEW_ITEMS_OFF and len(values) >= ENOUGH_ITEMS)


def score_interval(values: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a mean of item means; `values[i]` are item i's k scores in [0, 1].

    One binary score an item: Clopper-Pearson. Else t on the item means clipped to [0, 1], or
    Hoeffding's bound where they barely vary. Raises ValueError without items.
    """
    if not values:
        raise ValueError("no items to score: evaluate at least one item (--eval-items)")
    if all_binary(values):
        return clopper_pearson(sum(item[0] == 1 for item in values), len(values), confidence)
    means = [math.fsum(item) / len(item) for item in values]
    if barely_varies(means):
        return bounded_mean_interval(means, confidence)
    low, high = student_t_interval(means, confidence)
    return max(low, 0.0), min(high, 1.0)


def all_binary(values: Sequence[Sequence[float]]) -> bool:
    """Tell whether every item has exactly one score and that score is 0 or 1."""
    return all(len(item) == 1 and item[0] in (0, 1) for item in values)


def mean_change_interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a mean of paired item differences in [-1, 1].

    Student's t, clipped to [-1, 1]. Where the differences barely vary: Hoeffding's bound for the
    mean rise and for the mean fall, each at half the error (Bonferroni), so that n items without
    any change give about -/+ 4.4 / n and never [0, 0].
    """
    if not barely_varies(differences):
        low, high = student_t_interval(differences, confidence)
        return max(low, -1.0), min(high, 1.0)
    each = 1.0 - (1.0 - confidence) / 2
    rise = bounded_mean_interval([max(value, 0.0) for value in differences], each)
    fall = bounded_mean_interval([max(-value, 0.0) for value in differences], each)
    return rise[0] - fall[1], rise[1] - fall[0]


def paired_share_interval(
    lost: int, gained: int, n: int, confidence: float = CONFIDENCE
) -> Interval:
    """Return an exact interval for P(gained) - P(lost) of n paired binary answers.

    A difference is refuted if its exact (trinomial) chance of a gained - lost this extreme is too
    small. That chance also depends on how many pairs flip, so the limit takes the worst case over
    the share of flips against the observed direction, up to that share's own exact upper limit,
    on which a fifth of the error is spent (Berger and Boos 1994, JASA 89:1012). Coverage is at
    least `confidence` for every n; no flips among n pairs give about -/+ 4.8 / n.
    """
    low = _lowest_difference(lost, gained, n, confidence)
    return low, -_lowest_difference(gained, lost, n, confidence)


def _lowest_difference(lost: int, gained: int, n: int, confidence: float) -> float:
    """Return the smallest P(gained) - P(lost) that the counts do not refute, rounded outward."""
    tail = (1.0 - confidence) / 2
    enough = (1.0 - NUISANCE_ERROR) * tail

    def refuted_at_best(
        loss: float,
    ) -> float:  # > 0 if no gain beside this loss explains the counts
        loss = np.array([loss])
        return enough - float(_chance_of_at_least(gained - lost, n, loss, 1.0 - loss)[0])

    most = beta_quantile(1.0 - NUISANCE_ERROR * tail, lost + 1, n - lost) if lost < n else 1.0
    if refuted_at_best(most) >= 0:
        most = solve_rising(refuted_at_best, 0.0, most) * (1.0 - 1e-9)
    loss = most * np.arange(9) / 8  # the worst loss is nearly always the largest
    low, high = np.zeros_like(loss), 1.0 - loss  # brackets of the smallest gain not refuted
    for _ in range(24):
        middle = (low + high) / 2
        kept = _chance_of_at_least(gained - lost, n, loss, middle) > enough
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return float((low - loss).min())


def _chance_of_at_least(observed: int, n: int, loss: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return P(gained - lost >= observed), (N,), for N pairs of single-pair chances.

    The distribution of a sum of n steps -1, 0, +1 is the inverse Fourier transform of the n-th
    power of one step's characteristic function, exact to about 1e-14.
    """
    length = 2 * n + 1
    turn = np.exp(2j * np.pi * np.arange(n + 1) / length)
    step = (1.0 - loss - gain)[:, None] + gain[:, None] / turn + loss[:, None] * turn
    chances = np.fft.irfft(step**n, length, axis=1)  # (N, 2n + 1), index = difference mod length
    return chances[:, np.arange(observed, n + 1) % length].sum(axis=1)
