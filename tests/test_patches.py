"""patch_text and patches: parsing, applying, similarity and the reward, expectations by hand."""

import difflib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_kit.verifiers.patch_text import Edit, PatchError, parse_answer
from cascade_kit.verifiers.patches import (
    apply_edits,
    check_path,
    judge_patch,
    score_patch,
    similarity,
    unified_diff,
)

SHARED = Path(
    os.environ.get("CASCADE_SHARED", Path(__file__).resolve().parents[1].parent / "shared")
)
FILES = {"a.py": "one\ntwo\nthree\nfour\nfive\n", "b.txt": "x\n"}


def block(path: str, search: str, replace: str) -> str:
    return f"### {path}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def solution(*blocks: str) -> str:
    return "<think>\nhm\n</think>\n<solution>\n" + "\n".join(blocks) + "</solution>"


def patched(completion: str, files=FILES, **options) -> dict[str, str]:
    return apply_edits(files, parse_answer(completion), **options)


def reason(completion: str, files=FILES, **options) -> str:
    with pytest.raises(PatchError) as caught:
        patched(completion, files, **options)
    return caught.value.reason


def rows(name: str) -> list[dict]:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip("no shared data: set CASCADE_SHARED to the folder that holds it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---- SEARCH/REPLACE -----------------------------------------------------------------------------


def test_one_block():
    assert parse_answer(solution(block("a.py", "two", "2"))) == (Edit("a.py", ("two",), ("2",)),)
    assert patched(solution(block("a.py", "two", "2")))["a.py"] == "one\n2\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    "answer",
    [
        solution("```python\n" + block("a.py", "two", "2") + "```\n"),
        solution("Here is the change:\n" + block("a.py", "two", "2")),
        solution(block("`a.py`", "two", "2")),
        solution(block("a.py", "two", "2")[4:]),  # the bare path
        solution(block("./a.py", "two", "2")),
        "<solution>" + block("a.py", "two", "2") + "</solution>",
        "hm</think><solution>\n" + block("a.py", "two", "2") + "</solution>",
        solution(block("a.py", "two", "2")).replace("\n", "\r\n"),
    ],
)
def test_ways_to_write_a_block(answer):
    assert patched(answer)["a.py"] == "one\n2\nthree\nfour\nfive\n"


def test_several_blocks_under_one_path_apply_in_order():
    second = block("", "2", "II").removeprefix("### \n")
    assert patched(solution(block("a.py", "two", "2"), second))["a.py"].split()[1] == "II"


def test_without_tags_only_where_they_are_optional():
    answer = block("a.py", "two", "2")
    assert reason(answer) == "unparsable"
    assert parse_answer(answer, tags="optional") == (Edit("a.py", ("two",), ("2",)),)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "nothing to do",
        solution(""),
        solution(block("a.py", "two", "2")) * 2,
        "<think>" + solution(block("a.py", "two", "2")),
        solution(block("a.py", "two", "2")).replace("</solution>", ""),
        solution(block("a.py", "two", "2")).replace("</think>", ""),
        solution(block("a.py", "two", "2").replace("=======\n", "")),
        solution(block("a.py", "two", "2").replace(">>>>>>> REPLACE\n", "")),
        solution(block("a.py", "two", "2")[9:]),  # no path
        solution("### a.py\n>>>>>>> REPLACE\n" + block("a.py", "two", "2")),
    ],
)
def test_unparsable(answer):
    assert reason(answer) == "unparsable"


def test_a_divider_inside_a_block_is_ambiguous():
    assert reason(solution(block("b.txt", "x\n=======", "y"))) == "ambiguous"


@pytest.mark.parametrize("search", ["2", "two ", "\ttwo", "one\nthree", "tw", "two\n\nthree"])
def test_search_text_that_is_not_there(search):
    assert reason(solution(block("a.py", search, "2"))) == "not found"


def test_a_search_text_that_occurs_twice_is_ambiguous():
    files = {"a.py": "x = 1\ny = 2\nx = 1\n"}
    assert reason(solution(block("a.py", "x = 1", "x = 2")), files) == "ambiguous"
    fixed = patched(solution(block("a.py", "y = 2\nx = 1", "y = 2\nx = 2")), files)
    assert fixed["a.py"] == "x = 1\ny = 2\nx = 2\n"


def test_nothing_is_applied_in_part():
    files = dict(FILES)
    overlap = solution(block("a.py", "one\ntwo", "1\n2"), block("a.py", "two", "II"))
    assert reason(overlap, files) == "not found"
    assert files == FILES


def test_an_answer_that_changes_nothing():
    assert reason(solution(block("a.py", "two", "two"))) == "unchanged"


def test_new_files_and_emptied_text():
    assert patched(solution(block("new/c.py", "", "c = 1")))["new/c.py"] == "c = 1\n"
    assert reason(solution(block("a.py", "", "c = 1"))) == "not found"
    assert patched(solution(block("a.py", "two\nthree", "").replace("\n\n>", "\n>")))["a.py"] == (
        "one\nfour\nfive\n"
    )


def test_crlf_files_keep_their_line_ends():
    files = {"a.py": "one\r\ntwo\r\nthree\r\n"}
    assert patched(solution(block("a.py", "two", "2\nII")), files)["a.py"] == (
        "one\r\n2\r\nII\r\nthree\r\n"
    )
    mixed = {"a.py": "one\r\ntwo\nthree\r\n"}
    assert patched(solution(block("a.py", "one", "1")), mixed)["a.py"] == "1\r\ntwo\nthree\r\n"


def test_the_end_of_a_file_without_newline_stays():
    assert patched(solution(block("a", "x", "y")), {"a": "w\nx"})["a"] == "w\ny"
    assert patched(solution(block("a", "w", "y")), {"a": "w\nx"})["a"] == "y\nx"


def test_unicode_and_form_feeds_are_text():
    files = {"a.py": "# Größe – “q” ✓ 数\x0c\u2028 end\nx = 1\n"}
    out = patched(solution(block("a.py", "# Größe – “q” ✓ 数\x0c\u2028 end", "# ß")), files)
    assert out["a.py"] == "# ß\nx = 1\n"


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/x", "~/x", "C:/x", "..\\x", "\\x", ".git/config", "a\0b", "", "."],
)
def test_forbidden_paths(path):
    with pytest.raises(PatchError, match="forbidden path"):
        check_path(path)


def test_symbolic_links_are_not_followed():
    assert reason(solution(block("link/c.txt", "", "x")), symlinks={"link"}) == "forbidden path"
    assert reason(solution(block("a.py", "two", "2")), symlinks={"a.py"}) == "forbidden path"
    assert check_path("linked/c.txt", {"link"}) == "linked/c.txt"


# ---- unified diffs ------------------------------------------------------------------------------

DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


@pytest.mark.parametrize(
    "diff",
    [
        DIFF,
        DIFF.removesuffix("\n"),
        "diff --git a/a.py b/a.py\nindex 1..2 100644\n" + DIFF,
        "```diff\n" + DIFF + "```\n",
        solution(DIFF),
        DIFF.replace("\n", "\r\n"),
        DIFF.replace("a/a.py", "a.py\t2024-01-01").replace("b/a.py", "a.py"),
        DIFF.replace("-1,3 +1,3", "-40,3 +41,3"),  # the text is found elsewhere, once
        "Some words first.\n\n" + DIFF + "\nand after",
    ],
)
def test_ways_to_write_a_diff(diff):
    assert patched(diff)["a.py"] == "one\n2\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a/a.py b/a.py\n",
        "--- a/a.py\n+++ b/a.py\n",
        DIFF.replace("-1,3 +1,3", "-1,9 +1,3"),
        DIFF.replace("-1,3 +1,3", "-1,2 +1,2"),
        DIFF.split("\n", 2)[2],
        "GIT binary patch\nliteral 3\n" + DIFF,
    ],
)
def test_diffs_that_do_not_parse(diff):
    assert reason(diff) == "unparsable"


def test_diffs_that_do_not_fit():
    assert reason(DIFF.replace(" one", " eins")) == "not found"
    swapped = DIFF.replace("-two", "%").replace("+2", "-2").replace("%", "+two")
    assert reason(swapped) == "not found"  # a reversed diff is not turned round
    assert reason(DIFF.replace("a.py", "z.py")) == "not found"


def test_a_hunk_goes_where_its_header_says_if_its_text_is_repeated():
    files = {"a.py": "x\ny\nx\ny\n"}
    diff = "--- a/a.py\n+++ b/a.py\n@@ -3 +3 @@\n-x\n+z\n"
    assert patched(diff, files)["a.py"] == "x\ny\nz\ny\n"
    assert reason(diff.replace("-3 +3", "-9 +9"), files) == "ambiguous"


def test_new_deleted_renamed_and_empty_files():
    new = "--- /dev/null\n+++ b/c.py\n@@ -0,0 +1,2 @@\n+c = 1\n+d = 2\n"
    assert patched(new)["c.py"] == "c = 1\nd = 2\n"
    deleted = "--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert "b.txt" not in patched(deleted)
    assert reason(deleted.replace("-x", "-y")) == "not found"
    moved = (
        "diff --git a/b.txt b/c.txt\nsimilarity index 100%\nrename from b.txt\nrename to c.txt\n"
    )
    assert patched(moved) == {"a.py": FILES["a.py"], "c.txt": "x\n"}
    empty = "diff --git a/p/__init__.py b/p/__init__.py\nnew file mode 100644\nindex 0..e\n"
    assert patched(empty)["p/__init__.py"] == ""
    assert reason(new.replace("c.py", "a.py")) == "not found"


def test_diffs_may_not_leave_the_repository_or_make_links():
    new = "--- /dev/null\n+++ b/../../c.py\n@@ -0,0 +1 @@\n+c\n"
    assert reason(new) == "forbidden path"
    link = (
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n"
    )
    assert reason(link) == "forbidden path"


def test_the_missing_newline_at_the_end_of_a_file():
    add = "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n"
    assert patched(add, {"b": "x"})["b"] == "x\n"
    remove = "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n"
    assert patched(remove, {"b": "x\n"})["b"] == "y"


lines = st.lists(st.sampled_from(["a", "b", "", "  c", "d ", "-e", "+f", "@@ g"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(lines, lines)
def test_every_diff_that_difflib_writes_applies(old, new):
    if old == new:
        return
    diff = "\n".join(difflib.unified_diff(old, new, "a/f", "b/f", lineterm=""))
    before = "".join(line + "\n" for line in old)
    after = apply_edits({"f": before, "g": ""}, parse_answer(diff, "unified_diff"))
    assert after["f"] == "".join(line + "\n" for line in new)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="<>=# SEARCHREPLACE\n/solutin.py-+@1,", max_size=300))
def test_any_text_is_edits_or_a_patch_error(text):
    verdict = judge_patch(FILES, text, {"a.py": "1\n"}, tags="optional")
    assert verdict.applies == (verdict.files is not None)


def test_gold_patches_of_public_rows():
    for row in rows("swe_mini_exec/tasks.jsonl"):
        tree = row["buggy_tree"]
        assert patched(row["gold_patch"], tree) == {**tree, **row["gold_files"]}
    for row in rows("swebench_lite/swebench_lite.jsonl"):
        assert parse_answer(row["patch"])


# ---- similarity and score -----------------------------------------------------------------------


def test_unified_diff_has_no_header():
    assert unified_diff("a\nb\n", "a\nc\n") == "@@ -1,2 +1,2 @@\n a\n-b\n+c"


def test_similarity_by_hand():
    gold = {**FILES, "a.py": "one\n2\nthree\nfour\nfive\n"}
    assert similarity(FILES, gold, gold) == 1.0
    assert similarity(FILES, {**gold, "c.py": "c\n"}, gold) == 0.5  # (1 + 0) / 2 files
    assert similarity(FILES, {**FILES, "b.txt": "y\n"}, gold) == 0.0
    assert similarity(FILES, FILES, FILES) == 1.0
    # "@@ -1 +1 @@\n-x\n+y" against "...+z": 17 characters each, 16 in common
    assert similarity({"f": "x\n"}, {"f": "y\n"}, {"f": "z\n"}) == pytest.approx(32 / 34)


def test_similarity_of_huge_patches_is_quick_and_small():
    filler = "".join(f"# filler line {i} abcdefghijklmnop\n" for i in range(20_000))
    gold = {"f": "one\n2\nthree\n"}
    value = similarity({"f": "one\ntwo\nthree\n"}, {"f": "one\n2\n" + filler + "three\n"}, gold)
    assert 0.0 < value < 0.01


def test_scores_without_tests():
    gold = {"a.py": "one\n2\nthree\nfour\nfive\n"}

    def score(completion, **options):
        return score_patch(judge_patch(FILES, completion, gold), **options)

    assert score(solution(block("a.py", "two", "2"))).value == 1.0
    assert score(solution(block("a.py", "two", "two"))).value == 0.0  # paper, Eq. 2: no change
    assert score(solution(block("a.py", "nine", "9"))).value == -1.0
    assert score("").value == -1.0
    assert score("").success == 0.0
    near = solution(block("a.py", "two", "zwei"))
    assert 0.5 < score(near).value < 1.0
    assert score(near, threshold=0.99).value == 0.0
    with pytest.raises(ValueError, match="needs gold_files"):
        score_patch(judge_patch(FILES, near))


def test_scores_with_tests_keep_similarity_as_a_part():
    good = judge_patch(FILES, solution(block("a.py", "two", "zwei")), {"a.py": "x\n"})
    passed = score_patch(good, lambda files: (files["a.py"].startswith("one\nzwei"), "passed"))
    assert (passed.value, passed.why) == (1.0, "passed")
    assert 0.0 < passed.parts["similarity"] < 1.0
    assert score_patch(good, lambda files: (False, "failed: t")).value == 0.0
    bad = judge_patch(FILES, "no patch", {"a.py": "x\n"})
    assert score_patch(bad, lambda files: pytest.fail("no tests here")).value == -1.0
