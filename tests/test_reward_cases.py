"""Every recorded reward case gets its verdict: tests/cases and the folder of CASCADE_CASES.

A `hard` case must come out as its row says. So must a `policy` case, or it meets the other choice
that the kit has made for its topic: OTHER_CHOICES, which tells the reasons. Besides its own
invariants no case may harm its surroundings or leave a process behind.
"""

import json
import math
import os
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from case_site import Measures, Site, descendants, measured, settled, site_in

from cascade_kit.score import score_rows
from cascade_kit.verifiers import pool, sandbox

HERE = Path(__file__).resolve().parent
SECONDS_TO_SETTLE = 2  # after which nothing of an answer may be running
RIGHT_CODE = {
    "task": {"entry_point": "add", "tests": ["assert add(1, 2) == 3"]},
    "completion": "```python\ndef add(a, b):\n    return a + b\n```",
}
RIGHT_MATH = {"ground_truth": r"\frac{1}{2}", "completion": r"\boxed{x/(2x)}"}  # needs the worker


def rows_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").split("\n")]
    return [json.loads(line) for line in lines if line.strip()]


def other_rows() -> list[dict[str, Any]]:
    """The rows of CASCADE_CASES that are not among the kit's own."""
    folder = os.environ.get("CASCADE_CASES")
    if not folder:
        return []
    if not (rows := rows_in(Path(folder))):
        raise ValueError(f"CASCADE_CASES={folder} holds no rows; name a folder with *.jsonl files")
    return [row for row in rows if row not in OWN]


OWN = rows_in(HERE / "cases")
CASES = OWN + other_rows()


@dataclass(frozen=True)
class Outcome:
    """What the kit did with a case."""

    value: Any = None  # a reward, or a list of them
    fields: Mapping[str, Any] = field(default_factory=dict)  # what `expected` may ask for by name
    refusal: ValueError | None = None
    warned: bool = False


@dataclass(frozen=True)
class Choice:
    """Another choice than the default of a `policy` case."""

    reason: str
    refusal: str  # the kit raises ValueError, and its message matches this


UNJUDGED = "a row that cannot be judged is a fault of the data: 0 would train the model on it"
OTHER_CHOICES: Mapping[tuple[str, str], Choice] = {
    ("instruction_following", "bad-kwargs"): Choice(UNJUDGED, "kwargs|must be"),
    ("instruction_following", "empty-list"): Choice(UNJUDGED, "at least one constraint"),
    ("instruction_following", "unknown-id"): Choice(UNJUDGED, "unknown constraint id"),
}


# ---- asking the kit ------------------------------------------------------------------------------


def scored(case: dict[str, Any], **options: Any) -> Outcome:
    verdict = next(score_rows(case["domain"], [case], workers=1, **options))
    return Outcome(verdict["value"], verdict)


def patched(case: dict[str, Any]) -> Outcome:
    from cascade_kit.verifiers.swe_tests import swe_verdict

    verdict = swe_verdict(case)
    return Outcome(verdict["reward"], verdict)


def judged(case: dict[str, Any]) -> Outcome:
    from cascade_kit.verifiers.judging import preference_outcome

    found = preference_outcome(case["kind"], case["completion"], case["input"])
    return Outcome(found, found if isinstance(found, Mapping) else {})


ASKED: Mapping[str, Callable[[dict[str, Any]], Outcome]] = {
    "math": scored,
    "instruction_following": scored,
    "code": scored,
    "swe": patched,
    "preference": judged,
}


def outcome_of(case: dict[str, Any]) -> Outcome:
    """What the kit says, or the ValueError by which it refuses to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = ASKED[case["domain"]](case)
        except ValueError as refusal:
            found = Outcome(refusal=refusal)
    warned = any(issubclass(warning.category, UserWarning) for warning in caught)
    return Outcome(found.value, found.fields, found.refusal, warned)


# ---- comparing -----------------------------------------------------------------------------------


def same(found: Any, wanted: Any) -> bool:
    """Whether a value is the wanted one; a wanted None is content with all."""
    if wanted is None:
        return True
    if isinstance(wanted, Mapping):  # {"gt": 0.3, "lt": 1.0}
        above, below = wanted.get("gt", -math.inf), wanted.get("lt", math.inf)
        return found is not None and above < found < below
    if isinstance(wanted, list):
        return found is not None and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, bool | str):
        return found == wanted
    return found is not None and math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-6)


def wanted_of(case: dict[str, Any]) -> dict[str, Any]:
    """All that a row says about its outcome, by the name of the field."""
    expected = case.get("expected")
    wanted = dict(expected) if isinstance(expected, Mapping) else {"value": expected}
    if wanted.get("value") is None:
        wanted["value"] = case.get("expected_reward")
    if case["domain"] == "instruction_following":
        wanted["strict"] = case["ground_truth"]["follow_instruction_list"] or None
    wanted |= {"loose": case.get("loose"), "fraction": case.get("fraction")}
    wanted["passed"] = case.get("modes", {}).get("fraction")  # the share of tests that pass
    return {name: value for name, value in wanted.items() if value not in (None, [None])}


def differences(case: dict[str, Any], outcome: Outcome) -> list[str]:
    """Where the outcome is not what the row expects."""
    wanted = wanted_of(case)
    if wanted.pop("raises", False):
        return [] if outcome.refusal else [f"no error but {outcome.value!r}"]
    if outcome.refusal:
        return [f"refused: {outcome.refusal}"] if wanted else []
    parts = outcome.fields.get("parts", {})
    found = {**(parts if isinstance(parts, Mapping) else {}), **outcome.fields}
    found["value"] = outcome.value
    return [
        f"{name} is {found.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if not same(found.get(name), value)
    ]


# ---- invariants ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A case that has been answered, and all that was seen."""

    case: dict[str, Any]
    outcome: Outcome
    measures: Measures
    harm: list[str]
    left_running: bool

    @property
    def files(self) -> Mapping[str, str]:
        """The repository after the answer, as it was if the answer was rejected."""
        return self.outcome.fields.get("files") or self.case["task"]["repo_files"]


def within(scene: Scene, seconds: float) -> bool:
    """Whether it was quick enough; limits are meant for a machine that does nothing else."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return scene.measures.seconds < seconds * max(1.0, load)


def repeats(scene: Scene, runs: str) -> bool:
    first = (scene.outcome.value, str(scene.outcome.refusal))
    again = (outcome_of(scene.case) for _ in range(int(runs) - 1))
    return all((found.value, str(found.refusal)) == first for found in again)


def told(scene: Scene) -> bool:
    """Whether the refusal, or the reason of the verdict, says what is wrong with the row."""
    return bool(scene.outcome.refusal or scene.outcome.fields.get("why"))


def loose_covers_strict(scene: Scene) -> bool:
    pairs = zip(scene.outcome.fields["loose"], scene.outcome.fields["strict"], strict=True)
    return all(loose >= strict for loose, strict in pairs)


def gold_or_unchanged(scene: Scene, path: str) -> bool:
    task = scene.case["task"]
    before = task["repo_files"].get(path)
    return scene.files.get(path) in (before, task["gold_files"].get(path, before))


def crlf_on_every_line(scene: Scene, path: str) -> bool:
    text = scene.files[path]
    return text.count("\n") == text.count("\r\n") > 0


def judges_on(scene: Scene) -> bool:
    """Whether the next answer of the domain gets its right verdict."""
    return judges("math" if scene.case["domain"] == "math" else "code")


def judges(domain: str) -> bool:
    row = RIGHT_MATH if domain == "math" else RIGHT_CODE
    return next(score_rows(domain, [row], workers=1))["value"] == 1.0


def judges_a_batch(scene: Scene) -> bool:
    """Whether right answers judged at the same time get their verdicts."""
    batch = [RIGHT_CODE, scene.case, RIGHT_CODE, RIGHT_CODE]
    verdicts = [verdict["value"] for verdict in score_rows("code", batch, workers=2)]
    return verdicts == [1.0, scene.outcome.value, 1.0, 1.0]


# What an invariant says (a pattern) -> whether it holds; groups are passed on.
INVARIANTS: Mapping[str, Callable[..., bool]] = {
    r"within the limit": lambda scene: within(scene, scene.case["limits"]["max_seconds"]),
    r"does not wait (\d+) s": lambda scene, seconds: within(scene, float(seconds)),
    r"no process|nothing (?:is )?left|no child": lambda scene: not scene.left_running,
    r"alive": judges_on,
    r"other completions": judges_a_batch,
    # Whatever the words are: everything around the case must be as it was.
    r"_DIR|outside|canary|still exist": lambda scene: not scene.harm,
    r"PORT|listen|connect|network": lambda scene: not scene.harm,
    r"same verdict on (\d+) runs": repeats,
    r"non-main thread": lambda scene: True,  # `score_rows` always judges in another thread
    r"error is reported": told,
    r"loose >= strict": loose_covers_strict,
    r"reward is not 1": lambda scene: scene.outcome.value != 1.0,
    r"bad gold": lambda scene: "gold answer" in str(scene.outcome.refusal),
    r"warning is given": lambda scene: scene.outcome.warned,
    r"no exception": lambda scene: scene.outcome.refusal is None,
    r"unchanged after a rejected": lambda scene: scene.outcome.fields["files"] is None,
    r"(\S+) is either the gold text or unchanged": gold_or_unchanged,
    r"(\S+) still uses CRLF on every line": crlf_on_every_line,
}


def check_of(invariant: str) -> Callable[[Scene], bool] | None:
    """The check that an invariant asks for, None if its words are not known."""
    for pattern, check in INVARIANTS.items():
        if found := re.search(pattern, invariant):
            return lambda scene: check(scene, *found.groups())
    return None


def broken(scene: Scene) -> list[str]:
    """Invariants and limits that do not hold."""
    found = [*scene.harm, *(["a process is still running"] if scene.left_running else [])]
    for invariant in scene.case["invariants"]:
        check = check_of(invariant)
        if check is None:
            warnings.warn(f"{scene.case['id']}: not checked: {invariant}", stacklevel=2)
        elif not check(scene):
            found.append(f"does not hold: {invariant}")
    limits = scene.case.get("limits", {})
    if not within(scene, limits.get("max_seconds", math.inf)):
        found.append(f"took {scene.measures.seconds:.1f} s")
    if scene.measures.extra_mb > limits.get("max_extra_rss_mb", math.inf):
        found.append(f"took {scene.measures.extra_mb:.0f} MB")
    if scene.measures.below_mb > limits.get("sandbox_rss_mb", math.inf):
        found.append(f"the sandbox took {scene.measures.below_mb:.0f} MB")
    return found


# ---- the tests -----------------------------------------------------------------------------------


def played(case: dict[str, Any], site: Site) -> Scene:
    """The case answered in its surroundings."""
    runs_code = case["domain"] in ("code", "swe")
    if runs_code:  # the pool's own processes are there from here on
        assert judges("code")
    before = len(descendants())
    with measured() as measures:
        outcome = outcome_of(case)
    if runs_code:  # a parent that the answer has ended is replaced
        assert judges("code")
    left = runs_code and not settled(before, SECONDS_TO_SETTLE)
    return Scene(case, outcome, measures, site.harm(), left)


def choice_is_met(case: dict[str, Any], outcome: Outcome) -> bool:
    """Whether a `policy` case meets the other choice of its topic."""
    choice = OTHER_CHOICES.get((case["domain"], case.get("topic")))
    if case["certainty"] != "policy" or choice is None or outcome.refusal is None:
        return False
    return re.search(choice.refusal, str(outcome.refusal)) is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case, tmp_path, monkeypatch):
    if case["domain"] in ("code", "swe") and sandbox.isolation().name == "none":
        pytest.skip("no sandbox works here")
    secrets = case.get("harness", {}).get("set_env", ())
    for name in secrets:
        monkeypatch.setenv(name, f"feathers of {name}")
    if secrets:
        pool.close_pools()  # the next parent starts beside the secrets
    with site_in(tmp_path) as site:
        monkeypatch.chdir(tmp_path / "work" / "repo")
        scene = played(site.filled(case), site)
    found = differences(scene.case, scene.outcome)
    if found and choice_is_met(scene.case, scene.outcome):
        found = []
    assert found + broken(scene) == []


def test_modes_of_math_extraction():
    """`modes` of a case tells what stricter extraction gives."""
    asked = [case for case in CASES if "boxed_only" in case.get("modes", {})]
    wanted = [case["modes"]["boxed_only"] for case in asked]
    verdicts = score_rows("math", asked, extract="boxed", workers=1)
    assert [verdict["value"] for verdict in verdicts] == wanted


def test_every_invariant_of_the_own_cases_is_checked():
    unknown = {text for case in OWN for text in case.get("invariants", []) if not check_of(text)}
    assert unknown == set()


@pytest.mark.parametrize(
    ("domain", "topic", "row"),
    [
        ("instruction_following", "bad-kwargs", (["punctuation:no_comma"], [{"commas": 1}])),
        ("instruction_following", "empty-list", ([], [])),
        ("instruction_following", "unknown-id", (["punctuation:no_coma"], [{}])),
    ],
)
def test_every_other_choice_is_what_the_kit_does(domain, topic, row):
    case = {"domain": domain, "topic": topic, "certainty": "policy", "completion": "Hello."}
    case |= {"instruction_id_list": row[0], "kwargs": row[1]}
    assert choice_is_met(case, outcome_of(case))


# ---- the tests of the tests ----------------------------------------------------------------------


def test_the_site_sees_every_kind_of_harm(tmp_path):
    with site_in(tmp_path) as site:
        assert site.harm() == []
        (site.canary / "song.txt").unlink()
        (site.canary / "deeper" / "song.txt").write_text("silence")
        (tmp_path / "outside_canary.txt").write_text("owned")
        socket.create_connection(site.listener.getsockname()).close()
        harm = site.harm()
    assert sorted(harm) == [
        "canary/deeper/song.txt was changed",
        "canary/song.txt is gone",
        "outside_canary.txt is new",
        "somebody connected to the listener",
    ]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_processes_and_memory_are_seen():
    count = len(descendants())
    hungry = "import time; kept = bytearray(200 << 20); print('ready', flush=True); time.sleep(60)"
    with measured() as measures:
        process = subprocess.Popen([sys.executable, "-c", hungry], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.2)
    assert measures.below_mb > 200
    assert measures.extra_mb > 200
    assert not settled(count, seconds=0.1)
    process.kill()
    process.communicate()
    assert settled(count, seconds=10)


def test_differences_are_told():
    case = {"domain": "swe", "expected_reward": None, "ground_truth": {}}
    case["expected"] = {"resolved": True, "similarity": {"gt": 0.3, "lt": 1.0}, "applies": None}
    right = Outcome(1.0, {"resolved": True, "similarity": 0.5, "applies": False})
    assert differences(case, right) == []
    wrong = Outcome(0.0, {"resolved": False, "similarity": 1.0})
    assert differences(case, wrong) == [
        "resolved is False, not True",
        "similarity is 1.0, not {'gt': 0.3, 'lt': 1.0}",
    ]
    assert differences(case, Outcome(refusal=ValueError("no"))) == ["refused: no"]
    raising = {**case, "expected": {"raises": True}}
    assert differences(raising, Outcome(1.0)) == ["no error but 1.0"]
    assert differences(raising, Outcome(refusal=ValueError("no"))) == []
