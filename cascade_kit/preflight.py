"""Pre-flight: a few sampled answers before a training, and what they say about its chances.

    report = preflight(policy, stage, problems)
    print(report)
    report.insist()  # raises PreflightRefused where training would be in vain

Sampling, scoring and log-probabilities are those of the training, at the stage's settings. Nothing
is changed: neither weights nor flags, nor a random stream that the training draws from.

The interval of the pass rate is for the prompts that were drawn. Their answers are independent, if
not equally likely to pass, for which Clopper-Pearson is on the safe side (Hoeffding 1956). A flat
draw proves little: at a pass rate of 10 %, four groups of eight are all flat 3 times in 100. So
other prompts are drawn, twice; twelve flat groups happen to such a stage 4 times in 100,000.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from cascade_kit import shaping
from cascade_kit.grpo import RewardModel, group_advantages, score_groups
from cascade_kit.intervals import bounded_mean_interval, clopper_pearson
from cascade_kit.logprobs import answer_logps, micro_batches
from cascade_kit.policy import Policy
from cascade_kit.preflight_findings import notes, refusals, warnings
from cascade_kit.preflight_report import Example, Fault, Preflight
from cascade_kit.preflight_report import PreflightRefused as PreflightRefused
from cascade_kit.problem import Problem, Score
from cascade_kit.rollout import Rollout, rollouts
from cascade_kit.stage import Stage

ANSWERS = 32  # a draw, in groups of the stage's own size
DRAWS = 3
TAIL = 40  # characters of the template that are shown
# Largest |update - rollout| that is rounding, in nats. Another temperature is off by some nats.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.25, torch.bfloat16: 1.0}
TOLERANCE_8_BITS = 1.0  # int8 layers round their inputs, the merged copy does not
FORWARDS = 3  # an update costs about as many bare forwards; one more with a KL term
NOTHING_TO_JUDGE = {"no box", "no answer", "no code"}  # said by the verifiers of math and code


@dataclass
class Seen:
    """What was sampled and scored so far; `judged` holds groups without a fault."""

    sampled: list[list[Rollout]] = field(default_factory=list)
    judged: list[tuple[list[Rollout], list[Score], np.ndarray]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"rollout": 0.0, "score": 0.0, "forward": 0.0}
    )
    gap: float = 0.0
    draws: int = 0

    @property
    def spreads(self) -> list[bool]:
        """Whether each judged group has an advantage that is not 0."""
        rewards = [torch.from_numpy(np.asarray(r, dtype=np.float64))[None] for *_, r in self.judged]
        return [bool(group_advantages(r).abs().max() > 0) for r in rewards]


def preflight(
    policy: Policy,
    stage: Stage,
    problems: Sequence[Problem],
    *,
    reward_model: RewardModel | None = None,
    seed: int = 0,
    generated: bool = False,
) -> Preflight:
    """Sample 16 to 32 answers of a stage as it stands, up to three times, and judge its chances.

    `problems` are the training problems. Where the stage's reward needs a reward model and none is
    given, the domain alone judges, and a flat reward is not looked for. `generated`: the kit made
    the problems, so their difficulty is known and a flat reward is a warning, not a refusal.
    Exceptions of a reward become findings here; in a training they raise. Raises ValueError without
    problems, or for a prompt that leaves no room for an answer.
    """
    if not problems:
        raise ValueError(f"stage {stage.name!r} has no training problems; give it some rows")
    rewarded = reward_model is not None or not stage.needs_reward_model
    now = stage.at(1)  # the settings that the training starts with
    asked = now if rewarded else replace(now, reward=shaping.verifier)
    problems = within_cap(policy, now, problems)
    seen = Seen()
    with keeping_streams():
        for draw in range(DRAWS):
            look(policy, asked, drawn(problems, stage, seed, draw), reward_model, seed, seen)
            truncated = not any(r.stopped for group in seen.sampled for r in group)
            if any(seen.spreads) or not rewarded or truncated or not seen.judged:
                break
    return summed_up(policy, now, seen, rewarded=rewarded, generated=generated)


def within_cap(policy: Policy, stage: Stage, problems: Sequence[Problem]) -> list[Problem]:
    """The problems whose prompts are short enough for the stage; ValueError if none is."""
    cap = stage.max_prompt_tokens
    kept = [p for p in problems if not cap or policy.prompt_tokens(p.prompt, p.examples) <= cap]
    if not kept:
        raise ValueError(
            f"stage {stage.name!r}: no prompt has at most {cap} tokens; raise max_prompt_tokens"
        )
    return kept


@contextlib.contextmanager
def keeping_streams() -> Iterator[None]:
    """Put the process-wide random states back afterwards: a reward may draw from them."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def drawn(problems: Sequence[Problem], stage: Stage, seed: int, draw: int) -> list[Problem]:
    """The prompts of a draw: other ones each time, as long as there are any."""
    size = min(max(1, ANSWERS // stage.answers), len(problems))
    order = list(problems)
    random.Random(f"{seed}/{stage.name}/pre-flight").shuffle(order)
    return [order[(draw * size + i) % len(order)] for i in range(size)]


def look(
    policy: Policy,
    stage: Stage,
    problems: Sequence[Problem],
    reward_model: RewardModel | None,
    seed: int,
    seen: Seen,
) -> None:
    """Sample, score and forward one draw, and add what was found to `seen`."""
    started = time.perf_counter()
    groups = rollouts(
        policy,
        problems,
        stage.answers,
        max_new_tokens=stage.max_new_tokens,
        temperature=stage.temperature,
        thinking=stage.thinking,
        key=f"{seed}/{stage.name}/pre-flight/{seen.draws}",
    )
    sampled = time.perf_counter()
    judged, faults = judge(stage, groups, reward_model)
    scored = time.perf_counter()
    seen.gap = max(seen.gap, logprob_gap(policy, stage, groups))
    seen.sampled += groups
    seen.judged += judged
    seen.faults += faults
    seen.draws += 1
    took = (sampled - started, scored - sampled, time.perf_counter() - scored)
    for name, seconds in zip(seen.seconds, took, strict=True):
        seen.seconds[name] += seconds


def judge(stage: Stage, groups: list[list[Rollout]], reward_model: RewardModel | None):
    """(group, scores, rewards (G,)) of every group that can be scored, and the faults of others."""
    try:
        scores, rewards = scored_finite(stage, groups, reward_model)
        return list(zip(groups, scores, rewards, strict=True)), []
    except Exception as error:  # shown as a finding: that is what a pre-flight is for
        whole = error
    judged, faults = [], []
    for group in groups:
        try:
            scores, rewards = scored_finite(stage, [group], reward_model)
        except Exception as error:
            faults += faults_of(stage, group) or [fault(group[0], error)]
        else:
            judged.append((group, scores[0], rewards[0]))
    if not faults:  # only the batch as a whole fails, as every step would
        return [], [fault(groups[0][0], whole)]
    return judged, faults


def scored_finite(stage: Stage, groups: list[list[Rollout]], reward_model: RewardModel | None):
    """What `score_groups` returns; ValueError for a reward that is no number, which would make
    the weights NaN. Where only a reward model can tell, and there is none, it may be."""
    scores, rewards = score_groups(stage, groups, reward_model)
    for group, row, verdicts in zip(groups, rewards, scores, strict=True):
        known = [s.success is not None or reward_model is not None for s in verdicts]
        if not np.isfinite(row[known]).all():
            raise ValueError(f"a reward of {group[0].problem.id} is not a finite number")
    return scores, rewards


def faults_of(stage: Stage, group: Sequence[Rollout]) -> list[Fault]:
    """The answers of a group whose reward raises when they are scored alone."""
    found = []
    for answer in group:
        try:
            stage.domain.score([answer.problem], [answer.text])
        except Exception as error:
            found.append(fault(answer, error))
    return found


def fault(answer: Rollout, error: Exception) -> Fault:
    return Fault(answer.problem.id, f"{type(error).__name__}: {error}", answer.text)


@torch.no_grad()
def logprob_gap(policy: Policy, stage: Stage, groups: list[list[Rollout]]) -> float:
    """Largest |difference| of the sampled log-probabilities and those of the update, in nats."""
    gap = 0.0
    for batch in micro_batches(policy, [answer for group in groups for answer in group]):
        logps = answer_logps(policy, batch.rows, stage.temperature)  # (N,)
        sampled = logps.new_tensor(
            [p for row in batch.rows for answer in row for p in answer.logps]
        )
        gap = max(gap, (logps - sampled).abs().max().item())
    return gap


# ---- what it says ------------------------------------------------------------------------------


def summed_up(
    policy: Policy, stage: Stage, seen: Seen, *, rewarded: bool, generated: bool
) -> Preflight:
    """The measures of all draws together, and the findings that follow from them."""
    answers = [answer for group in seen.sampled for answer in group]
    scores = [score for _, verdicts, _ in seen.judged for score in verdicts]
    successes = [s.success for s in scores if s.success is not None]
    spreads = seen.spreads
    each = {name: seconds / len(answers) for name, seconds in seen.seconds.items()}
    forwards = FORWARDS + (stage.kl_coef > 0)
    cost = each["rollout"] + each["score"] + forwards * each["forward"]
    tail = policy.tokenizer.decode(list(answers[0].prompt_ids))[-TAIL:]
    report = Preflight(
        stage=stage.name,
        draws=seen.draws,
        prompts=len(seen.sampled),
        answers=len(answers),
        scored=len(scores),
        pass_rate=float(np.mean(successes)) if successes else None,
        interval=exact_interval(successes) if successes else None,
        spread=float(np.mean(spreads)) if spreads and rewarded else None,
        truncated=float(np.mean([not answer.stopped for answer in answers])),
        unreadable=float(np.mean([nothing_to_judge(s) for s in scores])) if scores else 0.0,
        reasons=dict(Counter(s.why for s in scores).most_common(3)),
        distinct=float(np.mean([len({a.text for a in group}) for group in seen.sampled])),
        template_tail=tail,
        faults=tuple(seen.faults),
        gap=seen.gap,
        tolerance=TOLERANCE_8_BITS if policy.bits == 8 else TOLERANCE[policy.dtype],
        seconds={name: round(seconds, 3) for name, seconds in seen.seconds.items()},
        estimate_seconds=stage.steps * stage.prompts * stage.answers * cost,
        examples=tuple(examples(seen)),
        findings=(),
    )
    found = [
        *refusals(report, stage, generated),
        *warnings(report, stage, generated),
        *notes(report, policy),
    ]
    return replace(report, findings=tuple(found))


def exact_interval(successes: Sequence[float]) -> tuple[float, float]:
    """Clopper-Pearson for verdicts of 0 and 1, else Hoeffding's bound."""
    if set(successes) <= {0.0, 1.0}:
        return clopper_pearson(int(sum(successes)), len(successes))
    return bounded_mean_interval(successes)


def nothing_to_judge(score: Score) -> bool:
    """Whether the verifier found no box, no code or no patch in an answer."""
    return score.why in NOTHING_TO_JUDGE or score.parts.get("format") == 0.0


def examples(seen: Seen) -> Iterator[Example]:
    """The first answer of each of the first three groups."""
    verdicts = {id(group): (scores[0].why, float(r[0])) for group, scores, r in seen.judged}
    for group in seen.sampled[:3]:
        why, reward = verdicts.get(id(group), ("the reward raised", None))
        yield Example(group[0].problem.prompt, group[0].text, reward, why, group[0].stopped)
