"""Which part of a completion is the program: the rule of `extract_code`, in one place.

1. The thought is ignored (thinking.py); one that never closes leaves no answer.
2. Fenced blocks (backticks or tildes, any indentation, the last one may be unclosed) count if they
   are tagged as Python or not at all. The last one that defines the entry point wins, else the
   last one that parses, else the last one. Names that it lacks are taken from earlier blocks.
3. Without any fence the text itself counts if it holds Python: from its first line of code to the
   last line up to which it parses.
Texts of special tokens such as `<|endoftext|>` are cut out of code that does not parse with them.
"""

import ast
import builtins
import functools
import re
import textwrap
import warnings

from cascade_kit.verifiers.thinking import answer_part

PYTHON_TAGS = ("", "python", "python3", "python2", "py", "py3", "pycon", "ipython", "ipython3")
FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})[ \t]*(.*?)[ \t]*$")
SPECIAL_TOKEN = re.compile(
    r"<[|\uff5c][\w\u2581.-]{1,40}[|\uff5c]>|</?s>|<eos>|<end_of_turn>|<pad>"
)
CODE_LINE = re.compile(
    r"^(?:async def|def|class|import|from|@|if|for|while|try|with|print\(|\w+ *=)"
)
PARSE_ATTEMPTS = 40  # in the search for code in a text without fences
SOURCE_LIMIT = 100_000  # characters; longer code is not looked into here


def extract_code(completion: str, entry_point: str | None = None) -> str | None:
    """The Python program in a completion, or None if it holds none. See the module's rule."""
    text = answer_text(completion)
    blocks = python_blocks(text)
    if blocks is None:
        return unfenced_code(text, entry_point)
    if not blocks:
        return None
    parsing = [block for block in blocks if parses(block)]
    defining = [block for block in blocks if defines(block, entry_point)]
    chosen = (defining or parsing or blocks)[-1]
    return with_missing_names(chosen, blocks[: blocks.index(chosen)])


def answer_text(completion: str) -> str:
    """The completion without its reasoning, with plain line ends."""
    text = completion.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    return answer_part(text)


def python_blocks(text: str) -> list[str] | None:
    """Contents of the fenced blocks that may be Python; None if the text has no fence at all."""
    lines = text.split("\n")
    blocks, position, fenced = [], 0, False
    while position < len(lines):
        opening = FENCE.match(lines[position])
        if not opening:
            position += 1
            continue
        fenced = True
        end = closing_line(lines, position, opening)
        if is_python(opening[3]):
            inner = lines[position + 1 : end]
            blocks.append(clean(_without_margin(inner, opening[1])))
        position = end + 1
    return [block for block in blocks if block.strip()] if fenced else None


def closing_line(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """The index of the line that closes the block, or the number of lines.

    The first closing fence counts, unless only a later one makes the block parse (a docstring may
    hold a fence itself).
    """
    ends = []
    for index in range(start + 1, len(lines)):
        line = FENCE.match(lines[index])
        same = line and line[2][0] == opening[2][0] and len(line[2]) >= len(opening[2])
        if same and not line[3]:
            ends.append(index)
    if not ends:
        return len(lines)
    for end in ends[:4]:
        inner = _without_margin(lines[start + 1 : end], opening[1])
        fences = sum(bool(FENCE.match(line)) for line in lines[start + 1 : end])
        # An inner pair of fences belongs to a string; an odd one opened a block of its own.
        if parses(clean(inner)) and (end == ends[0] or fences % 2 == 0):
            return end
    return ends[0]


def is_python(tag: str) -> bool:
    words = re.split(r"[\s{},:.]+", tag.strip().strip("{}. ").lower())
    return words[0] in PYTHON_TAGS


def _without_margin(lines: list[str], margin: str) -> str:
    """The lines without the indentation (or the quote marks) of their fence."""
    if margin and all(line.startswith(margin) or not line.strip() for line in lines):
        return "\n".join(line[len(margin) :] for line in lines)
    return "\n".join(lines)


def clean(code: str) -> str:
    """The code as it can run: dedented, without special tokens or a fence glued to its end."""
    if parses(code):
        return code
    without = SPECIAL_TOKEN.sub("", code)
    for variant in (without, without.rstrip().rstrip("`~"), textwrap.dedent(without)):
        if parses(variant):
            return variant
    prompt_lines = [line for line in without.split("\n") if line.startswith((">>> ", "... "))]
    typed = "\n".join(line[4:] for line in prompt_lines)
    return typed if typed and parses(typed) else without


def parses(code: str) -> bool:
    """Whether the code is Python that this interpreter can compile."""
    return tree_of(code) is not None


@functools.lru_cache(maxsize=64)
def tree_of(code: str) -> ast.Module | None:
    """The syntax tree of code that compiles, else None."""
    if len(code) > SOURCE_LIMIT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<answer>", "exec", dont_inherit=True)  # finds more than parsing does
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return tree


def definitions(code: str) -> set[str]:
    """Names that the top level of the code defines; by pattern where the code does not parse."""
    tree = tree_of(code)
    if tree is None:
        return set(re.findall(r"^(?:async +)?(?:def|class) +(\w+)", code, re.MULTILINE))
    found = set()
    for node in tree.body:
        found |= {part.id for part in ast.walk(node) if _is_stored(part)}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
    return found


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def defines(code: str, name: str | None) -> bool:
    return name is not None and name in definitions(code)


def with_missing_names(chosen: str, earlier: list[str]) -> str:
    """`chosen` after those earlier blocks that define names which it reads and nowhere sets."""
    tree = tree_of(chosen)
    if not earlier or tree is None:
        return chosen
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read = {node.id for node in nodes if isinstance(node.ctx, ast.Load)}
    own = definitions(chosen) | {node.id for node in nodes if _is_stored(node)}
    missing = {name for name in read - own if not hasattr(builtins, name)}
    needed = [block for block in earlier if parses(block) and missing & definitions(block)]
    needed = [block for block in needed if not definitions(block) & definitions(chosen)]
    return "\n\n".join([*needed, chosen])


def unfenced_code(text: str, entry_point: str | None) -> str | None:
    """The code in a text without fences: all of it, or from a line of code as far as it parses."""
    if len(text) > SOURCE_LIMIT:
        return None
    whole = clean(text)
    if tree := tree_of(whole):
        return whole if holds_code(tree) else None
    if entry_point is not None and entry_point not in text:
        return None
    lines = SPECIAL_TOKEN.sub("", text).split("\n")
    starts = [index for index, line in enumerate(lines) if CODE_LINE.match(line)]
    fallback, budget = None, max(4, min(PARSE_ATTEMPTS, 4 * SOURCE_LIMIT // len(text)))
    for start in starts:
        code, used = longest_parsing(lines[start:], budget)
        budget -= used
        if defines(code, entry_point) or (entry_point is None and definitions(code)):
            return code
        rest = "\n".join(lines[start:])
        if fallback is None and (entry_point is None or defines(rest, entry_point)):
            fallback = rest  # it is code, though broken: the verdict says why
        if budget <= 0:
            break
    return fallback


def holds_code(tree: ast.Module) -> bool:
    """Whether a text that parses does anything: "yes" and "1, 2" are Python as well."""
    plain = (ast.Expr, ast.Name, ast.Constant, ast.Tuple, ast.Module, ast.Load, ast.Attribute)
    return not all(isinstance(node, plain) for node in ast.walk(tree))


def longest_parsing(lines: list[str], attempts: int) -> tuple[str, int]:
    """(the lines up to the last one that still leaves code that parses or "", attempts made)."""
    for attempt in range(1, attempts + 1):
        code = "\n".join(lines)
        try:
            ast.parse(code)
        except SyntaxError as error:
            # The text after the code begins at the faulty line, or a little before it.
            lines = lines[: min(error.lineno or len(lines), len(lines)) - 1]
        except (ValueError, RecursionError, MemoryError):
            return "", attempt
        else:
            return code if parses(code) else "", attempt
    return "", attempts


def complete_program(prompt: str, completion: str, entry_point: str) -> str | None:
    """The program for a prompt that is the head of a function (HumanEval).

    A completion that defines the function stands for itself, after the imports and helpers of the
    prompt; any other is the function's body and ends at its first line without indentation.
    """
    code = extract_code(completion, entry_point)
    if code is not None and defines(code, entry_point):
        return preamble(prompt, entry_point) + code
    body = SPECIAL_TOKEN.sub("", answer_text(completion)).strip("\n")
    blocks = python_blocks(body)
    if blocks is not None:
        body = blocks[-1] if blocks else ""
    if not body.strip():
        return None
    variants = [body_only(body)]
    if not body[0].isspace():  # the indentation was lost, of all lines or of the first one
        variants = [textwrap.indent(body, "    ") + "\n", body_only("    " + body)]
    programs = [prompt + variant for variant in variants]
    return next(filter(parses, programs), programs[-1])


def body_only(text: str) -> str:
    """The lines up to the first one that is neither indented nor empty."""
    lines = text.split("\n")
    ends = (i for i, line in enumerate(lines) if i and line.strip() and not line[0].isspace())
    return "\n".join(lines[: next(ends, len(lines))]) + "\n"


def preamble(prompt: str, entry_point: str) -> str:
    """What a prompt holds before the function that is to be completed: imports and helpers."""
    head = re.search(rf"^(?:@.*\n)*(?:async +)?def +{re.escape(entry_point)}\b", prompt, re.M)
    before = prompt[: head.start()] if head else ""
    return before.rstrip() + "\n\n\n" if before.strip() else ""
