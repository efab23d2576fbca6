"""How one recorded answer is read from its row, given to the verifier, and written as a verdict.

The columns of each domain:
- math: `ground_truth` or `answer` (what follows `####` in it, if that is there), or `reward_kind`
  "think_format";
- instruct: `instruction_id_list` and `kwargs`; `prompt` only helps to find the row;
- code: what verifiers/code_rows.py reads; swe: what verifiers/swe_tests.py reads;
- preference: `chosen` and `rejected` with their prompt, or a recorded `kind` and `input`;
and in all but the last `completion` or `response`: a text, or a list of texts that are one batch.
Verdicts known beforehand: `is_correct`, `upstream_score`, `expected_reward`, `expected.resolved`,
and one a constraint in `strict`, `loose` or `follow_instruction_list`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cascade_kit.data_columns import Row
from cascade_kit.data_preferences import read_preference
from cascade_kit.data_rows import Dropped
from cascade_kit.problem import Score

ALIASES = {"instruction_following": "instruct", "rlhf": "preference"}
ID_COLUMNS = ("id", "task_id", "instance_id", "key", "name")  # in the order of preference
ANSWER_COLUMNS = ("completion", "response")
GOLD_COLUMNS = ("ground_truth", "answer")
KNOWN_COLUMNS = ("is_correct", "upstream_score", "expected_reward")

# id, value, parts and why; where there is one: `known` (verdicts given beforehand, by the name of
# the field they are about), `strict` and `loose` (a verdict a constraint), `subset`.
Verdict = dict[str, Any]
PairScorer = Callable[[Sequence[str], Sequence[str]], Sequence[float]]


def answer_lengths(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """The length-only baseline of a reward model: the characters of each answer."""
    return [float(len(completion)) for completion in completions]


@dataclass(frozen=True)
class Options:
    """How rows are scored; a domain reads what concerns it."""

    extract: str = "auto"  # math: boxed, auto or last
    official: bool = False  # instruct: with the known faults of the official checker
    allow_unsafe: bool = False  # code, swe: run model text where nothing isolates it
    pair_scorer: PairScorer = answer_lengths  # preference: (prompts, answers) -> scores


def score_row(domain: str, row: Row, options: Options) -> Verdict:
    """The verdict on one row. Raises ValueError for a row that cannot be scored."""
    if domain == "preference":
        return preference_verdict(row, options)
    singles, batch = answers(row)
    scores = [SCORERS[domain](single, options) for single in singles]
    verdict: Verdict = {"id": name_of(row)}
    for field in ("value", "parts", "why"):
        column = [asdict(score)[field] for score in scores]
        verdict[field] = column if batch else column[0]
    if domain == "instruct" and not batch:
        verdict |= constraint_verdicts(singles[0], options)
    known = known_verdicts(row)
    return {**verdict, "known": known} if known else verdict


def name_of(row: Row) -> str | int:
    """What the row calls itself, else its line."""
    for column in ID_COLUMNS:
        if isinstance(row.values.get(column), str | int):
            return row.values[column]
    return f"line {row.line}"


def answers(row: Row) -> tuple[list[Row], bool]:
    """(one row an answer, with the text in `completion`; whether the row holds a list of them)."""
    column = next((name for name in ANSWER_COLUMNS if row.values.get(name) is not None), None)
    if column is None and "completion_generator" in row.values:
        return [row], False  # swe_tests.py makes the text
    if column is None:
        raise row.fault("no answer; add it as column 'completion' or 'response'")
    batch = isinstance(row.values[column], list)
    texts = row.texts(column) if batch else [row.values[column]]
    if not all(isinstance(text, str) for text in texts):
        raise row.wrong_type(column, texts[0], "a text or a list of texts")
    golds = row.values.get("ground_truth")
    shared = not (batch and isinstance(golds, list))
    if not shared and len(golds) != len(texts):
        raise row.fault(f"{len(golds)} ground truths for {len(texts)} answers; give one for each")
    own = [{"completion": text} for text in texts]
    if not shared:
        own = [{**one, "ground_truth": gold} for one, gold in zip(own, golds, strict=True)]
    return [replace(row, values={**row.values, **one}) for one in own], batch


# ---- one answer ----------------------------------------------------------------------------------


def math_score(row: Row, options: Options) -> Score:
    from cascade_kit.verifiers.math_answer import grade_answer
    from cascade_kit.verifiers.math_extract import think_format

    completion, kind = row.values["completion"], row.values.get("reward_kind")
    if kind == "think_format":
        context = row.values.get("context") or {}
        return think_format(completion, prompt_end=context.get("prompt_ends_with", ""))
    if kind is not None:
        raise row.fault(f"reward_kind {kind!r} is unknown; the only one is 'think_format'")
    column = next((name for name in GOLD_COLUMNS if row.values.get(name) is not None), None)
    if column is None:
        raise row.fault("no gold answer; add it as column 'ground_truth' or 'answer'")
    gold = row.text_or_number(column).split("####")[-1].strip()
    return grade_answer(gold, completion, extract=options.extract)


def instruct_score(row: Row, options: Options) -> Score:
    from cascade_kit.verifiers.ifeval import score_instructions

    return score_instructions(*constraints_of(row), official=options.official)


def constraint_verdicts(row: Row, options: Options) -> Verdict:
    """One verdict a constraint, as IFEval reports them."""
    from cascade_kit.verifiers.ifeval import check_constraints

    report = check_constraints(*constraints_of(row), official=options.official)
    return {"strict": list(report.strict), "loose": list(report.loose)}


def constraints_of(row: Row) -> tuple[list[str], Any, str]:
    """(ids, their keyword arguments, the answer)."""
    if "instruction_id_list" not in row.values:
        raise row.fault("no constraints; add them as columns 'instruction_id_list' and 'kwargs'")
    kwargs = row.values.get("kwargs")
    if not isinstance(kwargs, list | None):
        raise row.wrong_type("kwargs", kwargs, "a list of objects, one a constraint,")
    return row.texts("instruction_id_list"), kwargs, row.values["completion"]


def code_score(row: Row, options: Options) -> Score:
    from cascade_kit.domains.code import score_of
    from cascade_kit.verifiers import sandbox
    from cascade_kit.verifiers.code_rows import job_of_row
    from cascade_kit.verifiers.expressions import grade_one_liners
    from cascade_kit.verifiers.python_tests import grade

    job = job_of_row(row.values, row.values["completion"])
    if row.values.get("one_liner") is True and job.code is not None:
        report = grade_one_liners(job.code, job.tests)
        alone = sandbox.isolation().name == "none" and not options.allow_unsafe
        if report.status != "forbidden" or alone:
            return score_of(report)
    return score_of(grade(job, allow_unsafe=options.allow_unsafe))


def swe_score(row: Row, options: Options) -> Score:
    """SWE-RL's tags are required only where the row names the format of its answer: the kit's own
    prompts ask for bare edits."""
    from cascade_kit.verifiers.swe_tests import completion_of, grade_swe, task_from_row

    return grade_swe(
        task_from_row(row.values),
        completion_of(row.values),
        format=row.values.get("format", "auto"),
        tags="required" if "format" in row.values else "optional",
        allow_unsafe=options.allow_unsafe,
    )


SCORERS: Mapping[str, Callable[[Row, Options], Score]] = {
    "math": math_score,
    "instruct": instruct_score,
    "code": code_score,
    "swe": swe_score,
}
DOMAINS = (*SCORERS, "preference")


def canonical_domain(domain: str) -> str:
    """The kit's name of a domain. Raises ValueError for an unknown one."""
    known = ALIASES.get(domain, domain)
    if known not in DOMAINS:
        raise ValueError(f"domain {domain!r} is unknown; choose one of {', '.join(DOMAINS)}")
    return known


# ---- preferences ---------------------------------------------------------------------------------


def preference_verdict(row: Row, options: Options) -> Verdict:
    """On a pair: 1 if the chosen answer scores higher, 0.5 for a tie, else 0."""
    if "kind" in row.values:
        return recorded_case(row)
    pair = read_preference(row)
    verdict: Verdict = {"id": name_of(row), "value": None, "parts": {}, "why": ""}
    if "subset" in row.values:
        verdict["subset"] = row.values["subset"]
    if isinstance(pair, Dropped):
        return {**verdict, "why": f"left out: {pair.reason}"}
    scores = options.pair_scorer([pair.prompt] * 2, [pair.chosen, pair.rejected])
    chosen, rejected = map(float, scores)
    verdict["value"] = 0.5 if chosen == rejected else float(chosen > rejected)
    verdict["parts"] = {"chosen": chosen, "rejected": rejected}
    words = {1.0: "the chosen answer", 0.5: "a tie", 0.0: "the rejected answer"}
    return {**verdict, "why": words[verdict["value"]]}


def recorded_case(row: Row) -> Verdict:
    """What the kit answers to a recorded kind of case; value is None where that is no number."""
    from cascade_kit.verifiers.judging import preference_outcome

    kind, known = row.values["kind"], known_verdicts(row)
    outcome = preference_outcome(kind, row.values.get("completion"), row.value("input"))
    verdict: Verdict = {"id": name_of(row), "value": None, "parts": {}, "why": kind}
    if isinstance(outcome, Mapping):
        verdict["parts"] = dict(outcome)
        verdict["why"] = f"{kind}: no single number"
    else:
        verdict["value"] = outcome
    return {**verdict, "known": known} if known else verdict


# ---- verdicts known beforehand -------------------------------------------------------------------


def known_verdicts(row: Row) -> dict[str, Any]:
    """Verdicts that the row itself gives, by the field of the verdict that they are about."""
    values, known = row.values, {}
    column = next((name for name in KNOWN_COLUMNS if values.get(name) is not None), None)
    if column is not None:
        known["value"] = values[column]
    resolved = (values.get("expected") or {}).get("resolved") if "task" in values else None
    if resolved is not None:
        known["value"] = resolved
    for field in ("strict", "loose"):
        if isinstance(values.get(field), list):
            known[field] = values[field]
    official = values.get("follow_instruction_list")
    if isinstance(official, list):
        known["strict"] = official
    return known


def agreements(found: Any, known: Any) -> list[bool]:
    """Whether a verdict is the known one, for each entry of it; None says nothing.

    A known True or False is about a full reward: 1 or anything else.
    """
    if known is None:
        return []
    if isinstance(known, list):
        found = found if isinstance(found, list) else [found] * len(known)
        pairs = zip(found, known, strict=True)
        return [same for one, other in pairs for same in agreements(one, other)]
    if isinstance(known, bool):
        return [(found == 1) == known]
    return [found is not None and abs(found - known) < 1e-6]
