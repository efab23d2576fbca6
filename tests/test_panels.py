"""The panels without a browser: set values, click, and read the text that is shown."""

import json
import random
from html import unescape
from pathlib import Path

import pytest

from cascade_kit.domains import Domain
from cascade_kit.live.browse import chosen_groups, read_groups, rollout_browser
from cascade_kit.live.chat import chat
from cascade_kit.live.explore import matrix_explorer
from cascade_kit.live.panel import stage_panel
from cascade_kit.live.sandbox import reward_sandbox, right_answer
from cascade_kit.problem import Problem, Score
from cascade_kit.session import Reply, Session, open_session, own_stage
from cascade_kit.stage import MICRO_STAGES, ORDER, cascade

HOSTILE = "a  b\n\tc <script>alert(1)</script> \ud800"
DOMAINS = ("math", "code")
# Whether items 0..3 are solved, by row and domain.
SOLVED = {
    "sft": {"math": (0, 0, 1, 1), "code": (1, 1, 1, 0)},
    "math": {"math": (1, 1, 1, 0), "code": (1, 0, 0, 0)},
}


def children(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from children(child)


def labelled(panel, label):
    """The one control with this label."""
    (found,) = [w for w in children(panel) if getattr(w, "description", "") == label]
    return found


def shown(panel) -> str:
    """All text of the panel's visible HTML."""
    if getattr(panel, "layout", None) is not None and panel.layout.display == "none":
        return ""
    own = panel.value if type(panel).__name__ == "HTML" else ""
    return unescape(own) + "".join(shown(child) for child in getattr(panel, "children", ()))


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rollout_row(step: int, problem: str, sample: int, reward: float, advantage: float) -> dict:
    return {
        "step": step,
        "problem_id": problem,
        "sample": sample,
        "prompt": f"What is {problem}?",
        "completion": f"answer {sample} {HOSTILE}",
        "value": reward,
        "parts": {"correct": reward},
        "why": "correct" if reward else "wrong answer: 7",
        "success": reward,
        "reward": reward,
        "advantage": advantage,
        "tokens": 10 + sample,
        "stop": "length" if problem == "p3" else "stop",
    }


def eval_row(stage: str, domain: str, item: int) -> dict:
    score = float(SOLVED[stage][domain][item])
    return {
        "id": f"{domain}-{item}",
        "score": score,
        "samples": [score],
        "prompt": f"Held-out {item}",
        "completions": [f"{stage} says {item} {HOSTILE}"],
        "why": ["correct" if score else "no box"],
        "stopped": [True],
    }


@pytest.fixture
def run_folder(tmp_path) -> Path:
    """A run of one stage: a mixed group and a flat one in step 1, a mixed and cut one in step 2."""
    run = tmp_path / "run"
    for place, stage in enumerate(SOLVED):
        for domain in DOMAINS:
            write_lines(
                run / f"{place}-{stage}" / "eval" / f"{domain}.jsonl",
                [eval_row(stage, domain, item) for item in range(4)],
            )
    groups = {(1, "p1"): (0.0, 1.0), (1, "p2"): (1.0, 1.0), (2, "p3"): (1.0, 0.0)}
    write_lines(
        run / "1-math" / "rollouts.jsonl",
        [
            rollout_row(step, problem, sample, reward, 0.0 if problem == "p2" else 2 * reward - 1)
            for (step, problem), rewards in groups.items()
            for sample, reward in enumerate(rewards)
        ],
    )
    write_lines(run / "1-math" / "steps.jsonl", [{"step": 1}, {"step": 2}])
    (run / "run.json").write_text(json.dumps({"order": ["math"], "labels": {}}), encoding="utf-8")
    return run


# ---- reward sandbox ----------------------------------------------------------------------------


def test_the_sandbox_scores_what_is_typed():
    problem = Problem("m", "math", "What is 3 + 4 < 9?", {"answer": "7"})
    (stage,) = cascade(["math"])
    panel = reward_sandbox(stage, [problem])
    assert "What is 3 + 4 < 9?" in shown(panel)
    labelled(panel, "Answer").value = r"I think \boxed{8} <b>"
    labelled(panel, "Score").click()
    assert "Reward 0, success 0 because: wrong answer: 8." in shown(panel)
    labelled(panel, "Fill in a right answer").click()
    assert labelled(panel, "Answer").value == r"\boxed{7}"
    labelled(panel, "Score").click()
    assert "Reward 1, success 1 because: correct." in shown(panel)


def test_the_sandbox_shows_another_problem_and_forgets_the_verdict():
    panel = reward_sandbox(cascade(["code"])[0])
    labelled(panel, "Fill in a right answer").click()
    labelled(panel, "Score").click()
    assert "Reward 1" in shown(panel)
    first = shown(panel)
    labelled(panel, "Problem").value = 1
    assert "Reward 1" not in shown(panel)
    assert shown(panel) != first


@pytest.mark.parametrize("stage", MICRO_STAGES, ids=lambda stage: stage.name)
def test_right_answers_earn_full_reward(stage):
    problems = stage.domain.problems("train", 4)
    scores = stage.domain.score(problems, [right_answer(problem) for problem in problems])
    assert [score.value for score in scores] == [1.0] * 4


def test_problems_without_a_known_answer_offer_none():
    held = Problem("i", "instruct", "Write.", {"instruction_id_list": [], "kwargs": []})
    deleted = {"files": {"a.py": "x"}, "gold_files": {}}
    assert right_answer(held) is None
    assert right_answer(Problem("s", "swe", "Fix.", deleted)) is None
    panel = reward_sandbox(cascade(["instruct"])[0], [held])
    assert labelled(panel, "Fill in a right answer").disabled


def test_the_sandbox_shows_the_error_of_a_readers_own_reward():
    def generate(rng: random.Random, difficulty: int) -> Problem:
        number = rng.randrange(1000)
        return Problem(f"own-{number}", "own", f"Say {number}.", {"say": number})

    def reward(problem: Problem, completion: str) -> Score:
        return Score(float(int(completion) == problem.target["say"]), why="<read>")

    panel = reward_sandbox(Domain("own", generate, reward))
    labelled(panel, "Answer").value = "<seven>"
    labelled(panel, "Score").click()
    assert "ValueError: invalid literal for int() with base 10: '<seven>'" in shown(panel)
    assert "&lt;seven&gt;" in "".join(getattr(w, "value", "") or "" for w in panel.children[-1:])
    labelled(panel, "Answer").value = "1000"
    labelled(panel, "Score").click()
    assert "Reward 0, success 0 because: <read>." in shown(panel)


def test_the_sandbox_says_that_a_reward_model_stands_in():
    (stage,) = cascade(["rlhf"])
    panel = reward_sandbox(stage)
    labelled(panel, "Fill in a right answer").click()
    labelled(panel, "Score").click()
    assert "a reward model stands in for it" in shown(panel)
    with pytest.raises(ValueError, match="at least one"):
        reward_sandbox(stage, [])


# ---- rollout browser ---------------------------------------------------------------------------


def test_groups_are_filtered_by_step_spread_and_truncation(run_folder):
    groups = read_groups(run_folder, "math")
    assert [len(group) for group in groups] == [2, 2, 2]

    def names(**filters):
        return [group[0]["problem_id"] for group in chosen_groups(groups, **filters)]

    assert names() == ["p1", "p2", "p3"]
    assert names(step=1) == ["p1", "p2"]
    assert names(spread="flat") == ["p2"]
    assert names(spread="mixed only") == ["p1", "p3"]
    assert names(cut=True) == ["p3"]
    assert names(step=1, cut=True) == []


def test_the_browser_shows_a_group_side_by_side(run_folder):
    panel = rollout_browser(run_folder)
    assert "3 groups in 2 steps, 2 mixed and 1 flat, 1 with a truncated" in shown(panel)
    text = shown(panel)
    assert "The mean reward is 0.5: of 2 answers 1 above it are made more likely" in text
    assert text.index("answer 1 a  b\n\tc") < text.index("answer 0 a  b\n\tc")  # best first
    assert "<td>+1.00</td><td>-1.00</td>" in text
    assert "wrong answer: 7" in text and "stopped by itself" in text
    raw = panel.children[2].children[-1].value
    assert "&lt;script&gt;" in raw and "<script>" not in raw
    raw.encode("utf-8")  # half a surrogate pair has become "?"


def test_the_filters_of_the_browser_choose_the_group(run_folder):
    panel = rollout_browser(run_folder, "math")
    labelled(panel, "Group spread").value = "flat"
    assert "1 match the filters" in shown(panel)
    assert "All 2 rewards are 1, so this group has no gradient." in shown(panel)
    labelled(panel, "Truncated only").value = True
    assert "0 match the filters" in shown(panel)
    assert "answer 0" not in shown(panel)
    labelled(panel, "Group spread").value = "all"
    labelled(panel, "Step").value = 2
    assert "cut at the length limit" in shown(panel)


def test_the_browser_compares_before_and_after(run_folder):
    panel = rollout_browser(run_folder)
    labelled(panel, "Show").value = "before and after, held-out items"
    assert "match the filters" not in shown(panel)
    # math: items 0 and 1 rise, 3 falls; code: 1 and 2 fall.
    assert "math: +0.25" in shown(panel) and "items: 2 rose, 1 fell" in shown(panel)
    assert [label for label, _ in labelled(panel, "Items").options] == [
        "lost (1)",
        "gained (2)",
        "unchanged (1)",
        "all (4)",
    ]
    assert labelled(panel, "Items").value == "gained"  # the larger of lost and gained
    labelled(panel, "Items").value = "lost"
    assert labelled(panel, "Item").options == (("math-3: 1.00 → 0.00", "math-3"),)
    assert "sft says 3 a  b\n\tc" in shown(panel) and "math says 3" in shown(panel)
    labelled(panel, "Domain").value = "code"
    assert "items: 0 rose, 2 fell" in shown(panel)


def test_the_browser_says_in_one_line_what_is_missing(run_folder, tmp_path):
    with pytest.raises(ValueError, match="holds no run.json: give the folder of a run"):
        rollout_browser(tmp_path)
    with pytest.raises(ValueError, match="no trained stage 'swe'; it has: math"):
        rollout_browser(run_folder, "swe")
    (run_folder / "1-math" / "rollouts.jsonl").unlink()
    (run_folder / "1-math" / "eval" / "math.jsonl").unlink()
    (run_folder / "1-math" / "eval" / "code.jsonl").unlink()
    panel = rollout_browser(run_folder)
    assert "Stage math has no answers on disk; train it and run this cell again." in shown(panel)
    labelled(panel, "Show").value = "before and after, held-out items"
    assert "math has not been evaluated yet" in shown(panel)
    (run_folder / "1-math" / "steps.jsonl").unlink()
    (run_folder / "1-math" / "eval").rmdir()
    (run_folder / "1-math").rmdir()
    assert "no trained stage yet" in shown(rollout_browser(run_folder))


# ---- matrix explorer ---------------------------------------------------------------------------


def test_the_explorer_opens_at_the_largest_fall_and_a_click_picks_a_cell(run_folder):
    panel = matrix_explorer(run_folder)
    # code fell from 0.75 to 0.25 after math, which did not train it.
    assert "code after math, not yet trained: score 0.25" in shown(panel)
    assert "Change against sft: -0.50" in shown(panel)
    assert labelled(panel, "Item").options[0][0] == "code-1: 1.00 → 0.00"
    assert "sft says 1" in shown(panel) and "math says 1" in shown(panel)
    labelled(panel, "*0.75 +0.25").click()
    assert labelled(panel, "Domain").value == 0
    assert "math after math, which trained it: score 0.75" in shown(panel)
    labelled(panel, "Items").value = "gained"
    assert [value for _, value in labelled(panel, "Item").options] == ["math-0", "math-1"]
    assert "sft says 0" in shown(panel) and "no box" in shown(panel)


def test_the_explorer_shows_the_start_alone(run_folder):
    panel = matrix_explorer(run_folder)
    labelled(panel, "After stage").value = 0
    assert "This is the start: there is no stage before it" in shown(panel)
    assert labelled(panel, "Items").options == (("all (4)", "all"),)
    assert "sft says 0" in shown(panel) and "math says" not in shown(panel)


def test_the_explorer_needs_an_evaluation(run_folder):
    for file in run_folder.glob("*/eval/*.jsonl"):
        file.unlink()
    assert "No row of the matrix is complete yet" in shown(matrix_explorer(run_folder))


# ---- chat --------------------------------------------------------------------------------------


class TwoStages:
    """A session whose stages repeat the prompt in their own way."""

    finished = ["sft", "math"]

    def answers(self, asked, *, stage, samples=1, draw=0):
        prompt = asked if isinstance(asked, str) else asked.prompt
        if prompt == "fail":
            raise ValueError(f"stage {stage} has no adapter; train it")
        text = "same <i>" if prompt == "both" else f"{stage}: {prompt} ({draw})"
        score = None if isinstance(asked, str) else Score(1.0, why="correct")
        problem = Problem("p", "math", prompt)
        return [[Reply(stage, problem, text, score, i == 0, 3 - i) for i in range(samples)]]


def test_chat_asks_one_stage_or_compares_two():
    panel = chat(TwoStages(), ["Compute 1 + 1.", Problem("p", "math", "both")])
    assert labelled(panel, "Stage").value == "math"
    assert labelled(panel, "Prompt").value == "Compute 1 + 1."
    labelled(panel, "Ask").click()
    assert "Answered by math with 3 tokens." in shown(panel)
    assert "math: Compute 1 + 1. (0)" in shown(panel) and "sft: Compute" not in shown(panel)
    assert "verdict" not in shown(panel)
    labelled(panel, "Compare with").value = "sft"
    labelled(panel, "Draw").value = 5
    labelled(panel, "Ask").click()
    assert "sft: Compute 1 + 1. (5)" in shown(panel) and "they differ" in shown(panel)
    labelled(panel, "Example").value = 1
    labelled(panel, "Answers each").value = 2
    labelled(panel, "Ask").click()
    assert "they say the same" in shown(panel)
    assert "1: correct" in shown(panel)  # an example problem is scored
    assert "cut at the length limit after 2 tokens" in shown(panel)
    assert "&lt;i&gt;" in panel.children[-1].value


def test_chat_says_what_went_wrong():
    panel = chat(TwoStages())
    labelled(panel, "Ask").click()
    assert "The prompt is empty" in shown(panel)
    labelled(panel, "Prompt").value = "fail"
    labelled(panel, "Ask").click()
    assert "ValueError: stage math has no adapter; train it" in shown(panel)
    empty = TwoStages()
    empty.finished = []
    assert "No stage can be asked yet" in shown(chat(empty))


# ---- stage panel, and both with a real session -------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    return open_session("math", folder=tmp_path_factory.mktemp("session") / "run", eval_items=2)


def test_the_stage_panel_configures_the_session_and_tells_the_costs(session):
    session.configure(steps=2, prompts=2, answers=2, max_new_tokens=8)
    panel = stage_panel(session)
    assert session.sentence() in shown(panel)
    assert "2 steps of 2 prompts with 2 answers each: 8 answers of at most 8" in shown(panel)
    assert "2 steps, 8 answers" in shown(panel)
    labelled(panel, "Steps").value = 5
    assert session.stage.steps == 5
    assert "20 answers of at most 8 tokens, seed 0" in shown(panel)
    assert "5 steps, 20 answers" in shown(panel)


def test_the_stage_panel_refuses_what_the_stage_refuses(session):
    session.configure(answers=2)
    panel = stage_panel(session)
    labelled(panel, "Answers a prompt").value = 1
    assert "answers=1 is too small; use at least 2" in shown(panel)
    assert "Answers a prompt stays 2." in shown(panel)
    assert session.stage.answers == 2
    assert labelled(panel, "Answers a prompt").value == 2


def test_the_stage_panel_changes_stage_and_seed(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_FAST", "1")
    session = open_session("math", folder=tmp_path / "run", eval_items=2)
    session.configure(steps=3, prompts=2, answers=2, max_new_tokens=8)
    panel = stage_panel(session)
    labelled(panel, "Seed").value = 5
    assert session.run.seed == 5
    assert "3 steps of 2 prompts with 2 answers each" in shown(panel)
    assert "seed 5." in shown(panel)
    next(session.train())
    labelled(panel, "Seed").value = 6
    assert "Refused: " in shown(panel) and "seed=6, folder=...). Seed stays 5." in shown(panel)
    assert labelled(panel, "Seed").value == session.run.seed == 5
    labelled(panel, "Stage").value = "swe"
    assert session.name == "swe"
    assert "The training of math that was left is closed." in shown(panel)
    assert session.sentence() in shown(panel)
    labels = ("Steps", "Prompts a step", "Answers a prompt", "Tokens an answer", "Seed")
    assert [labelled(panel, label).value for label in labels] == [2, 4, 4, 96, 5]
    assert "2 steps, 32 answers" in shown(panel)
    session.configure(steps=4)  # by a cell; the next change shows it
    labelled(panel, "Prompts a step").value = 2
    assert labelled(panel, "Steps").value == 4
    assert "is closed" not in shown(panel)


def test_the_stage_panel_of_an_own_stage_can_leave_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_FAST", "1")
    problems = [Problem(f"own-{i}", "own", f"Say {i}.") for i in range(6)]
    stage = own_stage("own", problems, lambda problem, text: Score(0.0, why="no"))
    session = open_session(stage, folder=tmp_path / "run", problems=problems, eval_items=2)
    panel = stage_panel(session)
    assert labelled(panel, "Stage").options == ("own", *ORDER)
    labelled(panel, "Stage").value = "code"
    assert session.name == "code"
    labelled(panel, "Stage").value = "own"
    assert "open_session(STAGE, problems=...). Stage stays code." in shown(panel)
    assert labelled(panel, "Stage").value == session.name == "code"


def test_chat_asks_the_real_start(session):
    (problem,) = session.problems(1)
    panel = chat(session, [problem])
    labelled(panel, "Ask").click()
    ((reply,),) = session.answers(problem, stage="sft")
    assert reply.text in shown(panel)
    assert reply.score.why in shown(panel)
