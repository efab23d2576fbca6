"""The public row formats that the kit reads, and how a file is taken for one of them.

A format is recognised by its columns alone; the first one of the table that fits wins.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cascade_kit import data_preferences, data_programs, data_repositories, data_rows
from cascade_kit.data_columns import Row, missing_words, nearest

# Columns that hold what some model answered, or a verdict on it. Training on such rows as if they
# were problems would be a mistake; `python -m cascade_kit score` is what reads them.
RECORDED_ANSWERS = frozenset(
    {
        *("completion", "completions", "response", "responses", "model_answer", "model_output"),
        *("is_correct", "upstream_pred", "upstream_score", "strict", "loose"),
        *("follow_instruction_list", "follow_all_instructions"),
    }
)


@dataclass(frozen=True)
class Format:
    """A kind of rows: its domain, the columns that tell it and the reader of one row."""

    name: str
    columns: tuple[tuple[str, ...], ...]  # of each entry, one of the alternatives must be there
    domain: str = ""
    read: data_rows.Reader | None = None
    skipped_since: str = ""  # why files of this kind are not read
    join: Callable[[Sequence[Row]], list[Row]] | None = None  # several rows of a file into one

    def missing(self, columns: Iterable[str]) -> list[tuple[str, ...]]:
        held = set(columns)
        return [alternatives for alternatives in self.columns if not held & set(alternatives)]


FORMATS = (
    Format(
        "reasoning-gym",
        (("gym_task",), ("gym_entry",), ("question",)),
        "math",
        data_rows.read_gym_item,
    ),
    Format("preference", (("chosen",), ("rejected",)), "rlhf", data_preferences.read_preference),
    Format(
        "HelpSteer3",
        (("context",), ("response1",), ("response2",), ("overall_preference",)),
        "rlhf",
        data_preferences.read_compared_answers,
    ),
    Format(
        "HelpSteer2 preference",
        (("prompt",), ("response_1",), ("response_2",), ("preference_strength",)),
        "rlhf",
        data_preferences.read_compared_answers,
    ),
    Format(
        "HelpSteer2",
        (("prompt",), ("response",), ("helpfulness",)),
        "rlhf",
        data_preferences.read_compared_answers,
        join=data_preferences.pair_rated_answers,
    ),
    Format(
        "mini-SWE",
        (
            ("problem_statement",),
            ("buggy_tree",),
            ("gold_files", "gold_patch"),
            ("FAIL_TO_PASS",),
            ("PASS_TO_PASS",),
        ),
        "swe",
        data_repositories.read_repository_task,
    ),
    Format(
        "Nemotron-Cascade-RL-SWE",
        (("prompt",), ("golden_patch",), ("relevant_file_contents",)),
        "swe",
        data_repositories.read_repair_prompt,
    ),
    Format(
        "SWE-bench",
        (("problem_statement",), ("patch",)),
        skipped_since="its rows name a repository but do not hold its files (add buggy_tree)",
    ),
    Format(
        "IFEval",
        (("prompt",), ("instruction_id_list",), ("kwargs",)),
        "instruct",
        data_rows.read_instructions,
    ),
    Format(
        "HumanEval",
        (("prompt",), ("test",), ("entry_point",)),
        "code",
        data_rows.read_function_stub,
    ),
    Format("MBPP", (("text", "prompt"), ("test_list",)), "code", data_rows.read_assert_task),
    Format("GSM8K", (("question",), ("answer",)), "math", data_rows.read_question),
    Format("TACO", (("question",), ("input_output",)), "code", data_programs.read_program_task),
    Format("MATH", (("problem",), ("answer",)), "math", data_rows.read_competition_problem),
    Format(
        "MATH with solutions",
        (("problem",), ("solution",), ("level", "type")),
        "math",
        data_rows.read_worked_solution,
    ),
    Format("prompt and answer", (("prompt",), ("answer",)), "math", data_rows.read_asked_question),
)
BY_NAME = {kind.name: kind for kind in FORMATS}
# Words that files of every sort use for a column: alone they tell nothing about the format.
COMMON_COLUMNS = frozenset(
    {"text", "prompt", "test", "answer", "response", "context", "solution", "level", "type"}
)


def recognise(columns: Iterable[str]) -> str | None:
    """The name of the format with these columns, "recorded answers", or None.

    >>> recognise(["question", "answer", "id"]), recognise(["question", "completion"])
    ('GSM8K', 'recorded answers')
    """
    columns = set(columns)
    kinds = [kind for kind in FORMATS if not kind.missing(columns)]
    if columns & RECORDED_ANSWERS:
        # HelpSteer2 rates recorded answers: they are the data, not a model's work on it.
        kinds = [kind for kind in kinds if kind.name == "HelpSteer2"]
        return kinds[0].name if kinds else "recorded answers"
    return kinds[0].name if kinds else None


def refuse_near_miss(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Raises where unrecognised columns look like a known format with one column wrong.

    Skipping such a file would lose a whole domain to one misspelt column; a file that has nothing
    in common with any format is left to the caller.
    """
    nearest_formats = sorted(
        (kind for kind in FORMATS if kind.read and _resembles(kind, columns)),
        key=lambda kind: _distance(kind, columns),
    )
    if nearest_formats:
        kind = nearest_formats[0]
        words = missing_words(kind.missing(columns)[0], columns)
        raise rows[0].fault(f"read as {kind.name} rows, {words}")


def _distance(kind: Format, columns: Sequence[str]) -> tuple[int, int]:
    """How many columns are missing that are not even there under a similar name, and how many."""
    missing = kind.missing(columns)
    return sum(nearest(names, columns) is None for names in missing), len(missing)


def _resembles(kind: Format, columns: Sequence[str]) -> bool:
    """Whether a telling column is there, or is misspelt beside one that is there."""
    telling = {c for alternatives in kind.columns for c in alternatives} - COMMON_COLUMNS
    if telling & set(columns):
        return True
    missing = kind.missing(columns)
    return len(missing) < len(kind.columns) and any(nearest(names, columns) for names in missing)
