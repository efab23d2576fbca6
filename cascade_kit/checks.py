"""What must hold before a run starts: free folder, the same settings on resume, data that suffice.

Every check raises a ValueError of one line that names the remedy, and writes nothing.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_kit import settings
from cascade_kit.data import DataSet
from cascade_kit.policy import Policy
from cascade_kit.problem import Problem
from cascade_kit.stage import Stage


def check_free(folder: Path) -> None:
    """Raise ValueError if a run folder is in use, or cannot be one."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is not a folder; choose another --out")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(
            f"the run folder {folder} exists; choose another --out, or continue it with --resume"
        )


def stored_settings(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an existing run; ValueError names what differs from those wanted now."""
    path = folder / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no run.json: nothing to resume, leave out --resume")
    try:
        stored = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); choose another --out") from error
    # Through JSON, so that tuples and lists compare alike.
    current = json.loads(json.dumps(wanted))
    changed = [k for k in current if k != "started" and stored.get(k) != current[k]]
    if changed == ["threads"]:
        raise ValueError(
            f"{folder} was made with {stored.get('threads')} threads, which round differently; "
            f"set OMP_NUM_THREADS={stored.get('threads')} to resume it"
        )
    if changed:
        raise ValueError(
            f"{folder} was made with other settings ({', '.join(changed)} differ); resume it with "
            "the same options, or choose another --out"
        )
    return stored


def has_truth(problems: Sequence[Problem]) -> bool:
    """Whether a verifier or a hidden truth scores these problems; else a reward model must."""
    return problems[0].domain != "rlhf" or "topic" in problems[0].target


def check_data(data: DataSet, stages: Sequence[Stage], evaluated: Sequence[Stage]) -> None:
    """Raise ValueError if a stage or an evaluation lacks its rows."""
    for split, needing in (("train", stages), ("eval", evaluated)):
        for stage in needing:
            if not getattr(data, split).get(stage.domain.name):
                raise ValueError(
                    f"no {split} rows for {stage.domain.name!r}; add a file of this domain to the "
                    f"data folder, or leave the stage out of --order"
                )
    asks = any(s.needs_reward_model for s in stages) or not all(
        has_truth(data.eval[s.domain.name]) for s in evaluated
    )
    check_isolation([*data.train.items(), *data.eval.items()])
    if asks and not (data.train_pairs and data.eval_pairs):
        raise ValueError(
            "a stage or evaluation needs a reward model, but the data hold no preference pairs; "
            "add a JSONL file with prompt, chosen and rejected"
        )


def check_lengths(policy: Policy, data: DataSet, evaluated: Sequence[Stage]) -> None:
    """Raise ValueError if a prompt and its answer would not fit into the model's positions, or
    if the model has no such mode of thinking."""
    for stage in evaluated:
        policy.chat.check_mode(stage.thinking)
        name = stage.domain.name
        problems = [*data.train.get(name, ()), *data.eval[name]]
        longest = max(policy.prompt_tokens(p.prompt, p.examples) for p in problems)
        if longest + stage.max_new_tokens > policy.max_positions:
            raise ValueError(
                f"{name}: the longest prompt has {longest} tokens, and with {stage.max_new_tokens} "
                f"new ones exceeds the model's {policy.max_positions}; lower --max-new-tokens"
            )


def check_prompt_caps(policy: Policy, data: DataSet, stages: Sequence[Stage]) -> None:
    """Raise ValueError if a stage, in one of its phases, caps prompts so that none is left."""
    for stage in stages:
        caps = [stage.max_prompt_tokens, *(phase.max_prompt_tokens for phase in stage.phases)]
        lowest = min((cap for cap in caps if cap is not None), default=None)
        if lowest is None:
            continue
        problems = data.train[stage.domain.name]
        shortest = min(policy.prompt_tokens(p.prompt, p.examples) for p in problems)
        if shortest > lowest:
            raise ValueError(
                f"stage {stage.name!r}: the shortest prompt has {shortest} tokens, more than "
                f"max_prompt_tokens={lowest}; raise it, or bring shorter rows"
            )


def data_hash(data: DataSet) -> str:
    """A short hash of all problems and pairs: equal hashes mean equal data."""
    problems = [p for rows in (*data.train.values(), *data.eval.values()) for p in rows]
    ids = ["".join([p.id, *itertools.chain(*p.examples), p.prompt]) for p in problems]
    pairs = [p.prompt + p.chosen + p.rejected for p in (*data.train_pairs, *data.eval_pairs)]
    return hashlib.sha256("\0".join([*ids, *pairs]).encode()).hexdigest()[:16]


def check_isolation(problems: Sequence[tuple[str, Sequence[Problem]]]) -> None:
    """Raise ValueError if model-written code would have to run where no sandbox is to be had."""
    from cascade_kit.verifiers.sandbox import IsolationUnavailable, chosen_layer

    runs_code = (rows for domain, rows in problems if domain in ("code", "swe"))
    if all(p.target.get("one_liner") for rows in runs_code for p in rows):
        return
    try:
        chosen_layer(settings.allow_unsafe())
    except IsolationUnavailable as error:
        raise ValueError(str(error)) from error
