"""Answers to problems of reasoning-gym: the task's own scorer judges what stands in the box."""

from collections.abc import Mapping
from typing import Any

from cascade_kit.problem import Score

from .math_extract import extract_answer


def grade_gym_answer(target: Mapping[str, Any], completion: str) -> Score:
    """1 if the task's scorer gives full marks, else 0; its mark is the part `scorer` (weight 0).

    Many scorers give a little for any answer, which would reward nonsense. Raises ImportError where
    reasoning-gym is not installed.
    """
    from reasoning_gym import get_score_answer_fn

    answer = extract_answer(completion, "boxed")
    if answer is None:
        return Score(0.0, {"scorer": 0.0}, why="no box")
    mark = float(get_score_answer_fn(target["gym_task"])(answer, target["gym_entry"]))
    why = "right" if mark >= 1 else f"wrong answer: {answer[:40]}"
    return Score(float(mark >= 1), {"scorer": mark}, why=why)
