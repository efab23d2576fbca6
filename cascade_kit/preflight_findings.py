"""What the measures of a pre-flight mean: findings, each with the setting to change.

A finding is "refuse" (the training would be in vain), "warn" or "note". The thresholds are rules of
thumb, but for the exact ones: everything cut, nothing scored, every group flat.
"""

from collections.abc import Iterator

from cascade_kit.policy import Policy
from cascade_kit.preflight_report import Finding, Preflight
from cascade_kit.stage import Stage

# What would sample otherwise, if transformers' own generation were used.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}


def refusals(report: Preflight, stage: Stage, generated: bool) -> Iterator[Finding]:
    """What makes a training vain."""
    if report.truncated == 1.0:
        yield Finding(
            "refuse",
            f"all {report.answers} answers are cut at {stage.max_new_tokens} tokens",
            f"raise max_new_tokens (--max-new-tokens {4 * stage.max_new_tokens})",
        )
    if not report.scored:
        first = report.faults[0]
        yield Finding(
            "refuse",
            f"no group can be scored: {first.error} (row {first.problem_id})",
            "mend the rows or the reward; in a training this raises",
        )
    if report.gap > report.tolerance:
        yield Finding(
            "refuse",
            f"what samples is not what is trained: log-probabilities differ by {report.gap:.2g} "
            f"nats, more than {report.tolerance:g}",
            "sampling is overridden or the decoding copy is stale: load the policy anew, or use "
            "load_policy(decoding='layers')",
        )
    if report.spread == 0.0 and report.truncated < 1.0:
        yield flat(report, generated)


def flat(report: Preflight, generated: bool) -> Finding:
    """All groups have one reward each, in every draw."""
    solved = report.pass_rate == 1.0
    remedy = "a higher temperature, so that answers differ, or another reward"
    if solved:
        remedy = "harder problems: difficulty=3, or rows of your own"
    elif report.pass_rate == 0.0:
        remedy = f"easier problems: {easier(generated)}; or a stronger --model"
    passed = round((report.pass_rate or 0.0) * report.scored)
    what = f"the reward is flat: no group of {report.prompts} has a spread"
    if report.pass_rate is not None:
        what += f", {passed} of {report.scored} answers pass"
    if generated:
        what += "; the problems are the kit's, so this does not stop a run"
    return Finding("warn" if generated else "refuse", what, remedy)


def easier(generated: bool) -> str:
    return "difficulty=1" if generated else "--data easy, or easier rows"


def warnings(report: Preflight, stage: Stage, generated: bool) -> Iterator[Finding]:
    """What makes a training slow or doubtful."""
    if 0.2 < report.truncated < 1.0:
        yield Finding(
            "warn",
            f"{report.truncated:.0%} of the answers are cut at {stage.max_new_tokens} tokens",
            f"raise max_new_tokens (--max-new-tokens {2 * stage.max_new_tokens})",
        )
    if report.unreadable > 0.5:
        yield Finding(
            "warn",
            f"in {report.unreadable:.0%} of the answers the verifier finds nothing to judge "
            f"({', '.join(report.reasons)})",
            "show the form by worked examples (--data easy), or lower the temperature",
        )
    if report.faults and report.scored:
        rows = ", ".join(sorted({fault.problem_id for fault in report.faults})[:3])
        yield Finding(
            "warn",
            f"the reward raises on {rows}: {report.faults[0].error}",
            "mend or drop the rows; a training stops there",
        )
    if report.spread is not None and 0.0 < report.spread < 0.25:
        yield Finding(
            "warn",
            f"only {report.spread:.0%} of the groups have a spread",
            "easier problems (difficulty), or more answers a prompt (--answers)",
        )
    if report.distinct == 1.0:
        yield Finding("warn", "all answers to a prompt are the same", "raise the temperature")
    rate = report.pass_rate
    if rate is not None and rate < 0.1:
        yield Finding("warn", f"the start is below 10 %: {rate:.1%} pass", easier(generated))
    elif rate is not None and rate > 0.9:
        yield Finding(
            "warn", f"{rate:.1%} pass already", "difficulty=3, or harder rows of your own"
        )


def notes(report: Preflight, policy: Policy) -> Iterator[Finding]:
    """What is good to know."""
    if report.spread is None and not report.faults:
        yield Finding(
            "note", "this reward needs a reward model, which is not there yet: spread not judged"
        )
    if report.template_tail.rstrip().endswith("<think>"):
        yield Finding("note", "the template opens <think>; answers are judged after </think>")
    config = policy.model.generation_config
    asked = {name: getattr(config, name, None) for name in SAMPLING}
    asked = {n: v for n, v in asked.items() if v is not None and v != SAMPLING[n]}
    if asked:
        told = ", ".join(f"{name}={value}" for name, value in asked.items())
        yield Finding(
            "note", f"the model's generation config asks for {told}: not used, the stage decides"
        )
