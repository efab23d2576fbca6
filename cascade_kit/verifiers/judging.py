"""Preferences and judges: reading a judge's score, swapped pairs, Bradley-Terry, group rewards.

Plain Python on plain numbers. A text of the judge that cannot be read is None ("not scored"), never
0; a fault of the data or of the settings raises ValueError with the remedy.

Rules chosen where more than one is in use:
- of several scores in a judge's answer the last one counts, quotations and thinking left out; a
  last score that is no finite number makes the answer unreadable; "8/10" and "80%" are 0.8;
- a verdict on a pair counts only if it survives swapping the two answers, else it is a tie;
- a pair of equal answers is dropped with a warning;
- the penalty for a missing end of turn is positive and subtracted once.
"""

import difflib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade_kit.verifiers.judging_rewards import (
    bradley_terry_loss,
    bradley_terry_probability,
    check_batch,
    check_rewards,
    group_advantages,
    has_end,
    pair_accuracy,
    penalise_missing_end,
)
from cascade_kit.verifiers.thinking import answer_part

__all__ = [
    "PREFERENCE_KINDS",
    "bradley_terry_loss",
    "bradley_terry_probability",
    "check_batch",
    "check_pair",
    "check_rewards",
    "group_advantages",
    "has_end",
    "judge_pairs",
    "pair_accuracy",
    "pairwise",
    "parse_scalar",
    "parse_verdict",
    "penalise_missing_end",
    "preference_outcome",
    "split_dialogue",
    "split_prompt",
]

# -- reading a judge ------------------------------------------------------------------------------

_NUMBER = r"[+\-−–]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][+\-−]?\d+)?"
_SCORE = (
    r"(?<![^\W_]){label}[\"'*_`\s]*(?:[:=：]|\bis\b|\bof\b)[\"'*_`\s\[({{$]*(?:\\boxed{{)?"
    rf"(?P<number>{_NUMBER.replace('{', '{{').replace('}', '}}')})?"
    r"(?P<rest>\s*(?:/\s*\d+(?:\.\d+)?|%)|\S*)"
)
_QUOTED = re.compile(r'"[^"\n]*"(?!\s*:)|“[^”\n]*”|`[^`\n]*`|^[ \t]*>.*$', re.M)


def parse_scalar(
    judge_output: str | None,
    judged_text: str = "",
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> float | None:
    """The score in a judge's answer ("Reward: 0.7"), or None where none can be read.

    Only `judge_output` is read; where it repeats `judged_text`, that part is cut out first, since
    a judged answer may carry a forged score. A score outside [low, high] counts as unreadable.
    """
    text = answer_part(judge_output or "")
    if judged_text.strip():
        text = text.replace(judged_text.strip(), " ")
    for label in ("reward", "score", "rating"):
        pattern = re.compile(_SCORE.format(label=label), re.I)
        own = list(pattern.finditer(_QUOTED.sub(" ", text))) or list(pattern.finditer(text))
        if own:
            return _within(_score_value(own[-1]["number"], own[-1]["rest"]), low, high)
    bare = re.fullmatch(rf"\W*?(?P<number>{_NUMBER})(?P<rest>\s*(?:/\s*\d+|%)?)[\s.*_`]*", text)
    return _within(_score_value(bare["number"], bare["rest"]), low, high) if bare else None


def _score_value(number: str | None, rest: str) -> float | None:
    """The number with what follows it: a "/10" or "%" scales, a letter or digit spoils it."""
    rest = rest.strip()
    scale = re.match(r"/\s*(\d+(?:\.\d+)?)|%", rest)
    if number is None or (not scale and re.match(r"[.,]?\w", rest)):
        return None
    number = re.sub("[−–]", "-", number)
    if re.fullmatch(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", number):
        number = number.replace(",", "")  # thousands
    try:
        value = float(number.replace(",", "."))
    except ValueError:  # 1.2.3
        return None
    divisor = float(scale[1] or 100) if scale else 1.0
    return value / divisor if divisor and math.isfinite(value) else None


def _within(value: float | None, low: float, high: float) -> float | None:
    return value if value is not None and low <= value <= high else None


def parse_verdict(judge_output: str | None) -> str | None:
    """ "A", "B" or "tie" from a judge's answer ("[[A]]", "Answer B", "tie"), None if unreadable."""
    text = (judge_output or "").strip()
    marked = re.findall(r"\[\[\s*(A|B|C|tie)\s*\]\]", text, re.I)
    if marked:
        found = marked[-1].upper()
    else:
        bare = re.fullmatch(
            r"\W*(?:(?:the\s+)?(?:better\s+)?(?:answer|response|assistant|winner|verdict|choice)"
            r"(?:\s+is)?\W*)*(A|B|C|tie|draw|equal|both|same)(?:\W+(?:is\s+better|wins))?\W*",
            text,
            re.I,
        )
        if bare is None:
            return None
        found = bare[1].upper()
    return found if found in ("A", "B") else "tie"


def pairwise(judge_ab: str | None, judge_ba: str | None) -> float | None:
    """1.0 if the first answer wins in both orders, 0.0 if the second does, else 0.5.

    `judge_ba` saw the answers swapped, so its "B" means the first answer. None if a verdict cannot
    be read: a judge that failed is not a tie.
    """
    first, second = parse_verdict(judge_ab), parse_verdict(judge_ba)
    if first is None or second is None:
        return None
    if (first, second) == ("A", "B"):
        return 1.0
    return 0.0 if (first, second) == ("B", "A") else 0.5


def judge_pairs(
    pairs: Sequence[tuple[str, str]],
    judge: Callable[[list[tuple[str, str]]], Sequence[str | None]],
) -> list[float | None]:
    """One result per pair: `judge` sees all pairs in both orders in one batch of 2n."""
    both = [*pairs, *((second, first) for first, second in pairs)]
    verdicts = list(judge(both)) if both else []
    if len(verdicts) != len(both):
        raise ValueError(
            f"the judge gave {len(verdicts)} verdicts for {len(both)} prompts: return one for each"
        )
    half = len(pairs)
    return [pairwise(ab, ba) for ab, ba in zip(verdicts[:half], verdicts[half:], strict=True)]


# -- preference data ------------------------------------------------------------------------------


def check_pair(prompt: Any, chosen: Any, rejected: Any, name: str = "pair") -> dict | None:
    """The pair as a dict, or None with a warning where it carries no preference.

    Texts or lists of chat messages. ValueError where one is missing or neither text nor messages.
    """
    for key, value in (("prompt", prompt), ("chosen", chosen), ("rejected", rejected)):
        if not isinstance(value, str | list):
            raise ValueError(f"{name}: {key} must be a text or a list of messages, not {value!r}")
    one, two = _comparable(chosen), _comparable(rejected)
    reason = None
    if one == two:
        reason = "chosen and rejected are the same"
    elif not one or not two:
        reason = "an answer is empty"
    if reason:
        warnings.warn(f"{name} dropped: {reason}, it teaches nothing", stacklevel=2)
        return None
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _comparable(answer: str | list) -> str:
    if isinstance(answer, str):
        return " ".join(answer.split())
    return " ".join(f"{m.get('role', '')}: {m.get('content', '')}" for m in answer).strip(": ")


def split_prompt(chosen: str | list, rejected: str | list) -> dict[str, Any]:
    """The common beginning of two conversations as `prompt`, and what is left of each.

    Texts are cut before the last blank in front of the first difference, never inside a word; in
    the "\\n\\nHuman: ... \\n\\nAssistant: ..." form after the last common "Assistant:". Where one
    is the beginning of the other its own rest is empty. Lists of messages are cut between messages.
    """
    if type(chosen) is not type(rejected) or not isinstance(chosen, str | list):
        raise ValueError("chosen and rejected must both be texts or both be lists of messages")
    index = 0
    while index < min(len(chosen), len(rejected)) and chosen[index] == rejected[index]:
        index += 1
    if isinstance(chosen, str):
        index = _text_cut(chosen, rejected, index)
    return {"prompt": chosen[:index], "chosen": chosen[index:], "rejected": rejected[index:]}


def _text_cut(chosen: str, rejected: str, index: int) -> int:
    turn = "\n\nAssistant:"
    if turn in chosen and turn in rejected:
        common = chosen.rfind(turn, 0, index)
        if common != -1:
            return common + len(turn)
    if any(text[index : index + 1].isalnum() for text in (chosen, rejected)):
        while index and chosen[index - 1].isalnum():  # the difference is inside a word
            index -= 1
    return index - 1 if index and chosen[index - 1] == " " else index


def split_dialogue(text: str, separator: str = "\n\nAssistant:") -> dict[str, str]:
    """A text cut after its last separator: earlier turns stay in the prompt."""
    head, found, tail = text.rpartition(separator)
    if not found:
        raise ValueError(f"no {separator!r} in the text: give the separator that ends the prompt")
    return {"prompt": head + found, "response": tail}


# -- the kinds of recorded cases ------------------------------------------------------------------


def _numbers(values: Sequence[Any]) -> list[Any]:
    """JSON has no NaN: the recorded cases write "nan" and "inf"."""
    return [float(value) if isinstance(value, str) else value for value in values]


def _batch_case(completion: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    count = inputs["n_pairs"]
    pairs = inputs.get("pairs") or [(f"first {i}", f"second {i}") for i in range(count)]
    outputs = judge_pairs(pairs, lambda batch: ["A"] * len(batch))
    return {"n_outputs": len(outputs), "outputs": outputs}


def _advantage_case(completion: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    report = group_advantages(_numbers(inputs["rewards"]), inputs.get("scale_by_std", True))
    finite = all(math.isfinite(value) for value in report.advantages)
    return {
        "advantages": list(report.advantages),
        "finite": finite,
        "dead": report.dead,
        "unscored": report.unscored,
    }


def _truncated_case(completion: Any, inputs: Mapping[str, Any]) -> float | None:
    ended = inputs.get("has_eos")
    if ended is None:
        ended = has_end(inputs["completion_ids"], inputs["eos_token_id"])
    return penalise_missing_end(inputs["score"], ended, inputs.get("missing_eos_penalty"))


def _rewards_of_pair(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The two rewards under the names in use: chosen and rejected, a and b, first and second."""
    for one, two in (("chosen", "rejected"), ("a", "b"), ("first", "second")):
        for template in ("reward_{}", "{}", "{}_reward", "score_{}"):
            if template.format(one) in inputs and template.format(two) in inputs:
                return inputs[template.format(one)], inputs[template.format(two)]
    raise ValueError(
        f"no pair of rewards among {sorted(inputs)}: name them reward_chosen and reward_rejected"
    )


def _split_case(completion: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "chosen" in inputs:
        return split_prompt(inputs["chosen"], inputs["rejected"])
    text = inputs.get("text", completion)
    return split_dialogue(text, inputs.get("separator", "\n\nAssistant:"))


def _config_case(completion: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    devices = next(
        (inputs[name] for name in ("num_processes", "n_devices", "num_devices") if name in inputs),
        1,
    )
    return check_batch(
        inputs.get("per_device_train_batch_size", 1),
        inputs["num_generations"],
        devices,
        inputs.get("gradient_accumulation_steps", 1),
    )


Case = Callable[[Any, Mapping[str, Any]], Any]  # (the row's completion, its input) -> outcome

PREFERENCE_KINDS: Mapping[str, Case] = {
    "parse_scalar": lambda text, given: parse_scalar(text, given.get("judged_text", "")),
    "pairwise": lambda text, given: pairwise(given["judge_ab"], given["judge_ba"]),
    "pairwise_batch": _batch_case,
    "bradley_terry_loss": lambda text, given: bradley_terry_loss(*_rewards_of_pair(given)),
    "bradley_terry_probability": lambda text, given: bradley_terry_probability(
        *_rewards_of_pair(given)
    ),
    "pairwise_data": lambda text, given: check_pair(
        given.get("prompt"), given.get("chosen"), given.get("rejected")
    ),
    "reward_fn_contract": lambda text, given: check_rewards(
        given["returned"], given["n_completions"]
    ),
    "group_advantage": _advantage_case,
    "truncated": _truncated_case,
    "split_prompt": _split_case,
    "config": _config_case,
}
_ALIASES = {  # other names in use for the same kinds
    "bradley_terry_prob": "bradley_terry_probability",
    "bradley_terry_preference": "bradley_terry_probability",
    "bt_probability": "bradley_terry_probability",
    "preference_probability": "bradley_terry_probability",
    "bt_loss": "bradley_terry_loss",
    "extract_prompt": "split_prompt",
    "prompt_extraction": "split_prompt",
    "prompt_split": "split_prompt",
    "config_check": "config",
    "config_validation": "config",
    "batch_config": "config",
    "grpo_config": "config",
    "missing_eos": "truncated",
}


def preference_outcome(kind: str, completion: Any, inputs: Mapping[str, Any]) -> Any:
    """What the kit answers to one recorded preference case; an unknown kind raises by name."""
    known = _ALIASES.get(kind, kind)
    if known not in PREFERENCE_KINDS:
        near = difflib.get_close_matches(kind, [*PREFERENCE_KINDS, *_ALIASES], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown preference kind {kind!r}{hint}")
    try:
        return PREFERENCE_KINDS[known](completion, inputs)
    except KeyError as missing:
        raise ValueError(f"a case of kind {kind!r} needs {missing} in its input; add it") from None
