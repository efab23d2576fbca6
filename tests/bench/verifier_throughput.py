"""Verifications a second, by domain and number of workers, and what isolation costs.

    python tests/bench/verifier_throughput.py [--count 64] [--json FILE]

Code answers are judged by the warm pool twice: inside the best layer of this machine, and by the
same pool as plain subprocesses. Only programs of this file run there, never model text. The
target is a cost of at most 2x. The other domains score generated problems through their public
reward, split over as many threads.
"""

import argparse
import importlib
import json
import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cascade_kit.micro.demonstrations import demonstrate
from cascade_kit.verifiers import layers, pool, sandbox
from cascade_kit.verifiers.python_tests import TestsJob, grade

WORKERS = (1, 2, 4)
ROUNDS = 3  # the best of them counts: other work on the machine only ever slows it down
PROGRAMS = [
    ("def f(a, b):\n    return a + b", ["assert f(1, 2) == 3", "assert f(-1, 1) == 0"]),
    ("def f(a, b):\n    return a - b", ["assert f(1, 2) == 3", "assert f(-1, 1) == 0"]),
    (
        "import re\ndef f(text):\n    return re.findall(r'\\b\\w{4,}\\b', text)",
        ["assert f('Jing Eco and Tech') == ['Jing', 'Tech']", "assert f('') == []"],
    ),
    (
        "def f(n):\n    return [d for d in range(2, n) if all(d % k for k in range(2, d))]",
        ["assert f(10) == [2, 3, 5, 7]", "assert len(f(500)) == 95"],
    ),
    (
        "from collections import Counter\ndef f(words):\n    return Counter(words).most_common(2)",
        ["assert f(['a', 'b', 'a']) == [('a', 2), ('b', 1)]", "assert f([]) == []"],
    ),
    ("def f(x)\n    return x", ["assert f(1) == 1"]),
]


def seconds_of(work: Callable[[Any], Any], items: Sequence[Any], workers: int) -> float:
    """Wall time of one round over all items."""
    with ThreadPoolExecutor(max_workers=workers) as threads:
        started = time.perf_counter()
        list(threads.map(work, items))
        return time.perf_counter() - started


def code_rates(tried: Sequence[layers.Isolation], count: int) -> list[dict[int, float]]:
    """Verifications a second of the pool in each layer, by number of workers.

    The layers take turns, so that other work on the machine slows all of them down alike.
    """
    jobs = [TestsJob(*PROGRAMS[i % len(PROGRAMS)], "f") for i in range(count)]
    rates: list[dict[int, float]] = [{} for _ in tried]
    for workers in WORKERS:
        for turn in range(ROUNDS + 1):
            for layer, found in zip(tried, rates, strict=True):
                items = jobs if turn else jobs[: 4 * workers]  # the first turn is a warm-up
                seconds = seconds_of(lambda job, own=layer: grade(job, layer=own), items, workers)
                if turn:
                    found[workers] = max(found.get(workers, 0.0), count / seconds)
    return rates


def domain_rates(name: str, count: int) -> dict[int, float]:
    """Scores a second of a domain's reward on generated problems, by number of workers."""
    domain = getattr(importlib.import_module(f"cascade_kit.domains.{name}"), name.upper())
    problems, rng = domain.problems("train", count), random.Random(0)
    pairs = [(problem, demonstrate(problem, rng)) for problem in problems]
    return {
        workers: count
        / min(seconds_of(lambda pair: domain.reward(*pair), pairs, workers) for _ in range(ROUNDS))
        for workers in WORKERS
    }


def measure(count: int, domains: Sequence[str]) -> dict[str, Any]:
    layer = sandbox.isolation()
    tried = [layers.Isolation("none", "the same pool without a layer"), layer]
    found = code_rates(tried[: 1 + (layer.name != "none")], count)
    names = ["code, plain subprocesses", f"code, {layer.name}"]
    rates: dict[str, Any] = dict(zip(names, found, strict=False))
    cost = {n: found[0][n] / found[1][n] for n in WORKERS} if len(found) > 1 else {}
    pool.close_pools()
    rates |= {name: domain_rates(name, min(count, 32)) for name in domains}
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "isolation": f"{layer.name} ({layer.detail})",
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "verifications_a_second": rates,
        "cost_of_isolation": cost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=64, help="verifications in one round")
    parser.add_argument("--domains", nargs="*", default=["math", "instruct"], help="besides code")
    parser.add_argument("--json", help="write the figures to this file as well")
    arguments = parser.parse_args()
    figures = measure(arguments.count, arguments.domains)
    print(f"isolation: {figures['isolation']}; load {figures['load']}")
    print(f"{'verifications a second':32}" + "".join(f"{f'{n} workers':>12}" for n in WORKERS))
    for name, rates in figures["verifications_a_second"].items():
        print(f"{name:32}" + "".join(f"{rates[n]:12.1f}" for n in WORKERS))
    if cost := figures["cost_of_isolation"]:
        print(f"{'cost of isolation':32}" + "".join(f"{cost[n]:11.2f}x" for n in WORKERS))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
