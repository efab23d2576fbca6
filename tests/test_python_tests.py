"""Code rewards: extraction, verdicts on honest programs, and answers that try to cheat."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cascade_kit.verifiers import code_rows, layers, pool, sandbox
from cascade_kit.verifiers.code_extract import complete_program, extract_code
from cascade_kit.verifiers.inside import codec
from cascade_kit.verifiers.python_tests import (
    ProgramJob,
    TestsJob,
    grade,
    run_programs,
    run_tests,
    run_tests_many,
)

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("CASCADE_SHARED", HERE.parents[1] / "shared"))
ADD = "def add(a, b):\n    return a + b"
ADD_TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(10, 5) == 15"]

needs_isolation = pytest.mark.skipif(
    sandbox.isolation().name == "none", reason="no sandbox works here; attacks need one"
)


def layers_to_try() -> list[layers.Isolation]:
    """The best layer, and the one without namespaces where it works."""
    best = sandbox.isolation()
    found = [best] if best.name != "none" else []
    for layer in layers.candidate_layers():
        if layer.name == "landlock" and best.name == "bubblewrap":
            try:
                sandbox.run_in_layer(layer, [sys.executable, "-c", "pass"], {})
            except OSError:
                continue
            found.append(layer)
    return found


each_layer = pytest.mark.parametrize("layer", layers_to_try(), ids=lambda layer: layer.name)


# ---- which part of a completion is the program ---------------------------------------------------

EXTRACTED = {
    "one fence": ("Text\n```python\n" + ADD + "\n```\nmore", ADD),
    "upper-case tag": ("```Python\n" + ADD + "\n```", ADD),
    "short tag and blanks": ("``` py \n" + ADD + "\n```", ADD),
    "tag with attributes": ('```python title="a.py"\n' + ADD + "\n```", ADD),
    "no tag": ("```\n" + ADD + "\n```", ADD),
    "tildes": ("~~~python\n" + ADD + "\n~~~", ADD),
    "four backticks": ("````python\n" + ADD + "\n````", ADD),
    "unclosed": ("```python\n" + ADD, ADD),
    "windows line ends": ("```python\r\n" + ADD.replace("\n", "\r\n") + "\r\n```", ADD),
    "indented fence": (
        "1. Do:\n   ```python\n   def add(a, b):\n       return a + b\n   ```",
        ADD,
    ),
    "quoted fence": ("> ```python\n> def add(a, b):\n>     return a + b\n> ```", ADD),
    "closing fence glued to the code": ("```python\n" + ADD + "```", ADD),
    "special token": ("```python\n" + ADD + "<|endoftext|>\n```", ADD),
    "special token without fence": (ADD + "<|im_end|>", ADD),
    "last definition wins": (
        "```python\n" + ADD.replace("+", "-") + "\n```\n```\n" + ADD + "\n```",
        ADD,
    ),
    "usage example after it": (
        "```python\n" + ADD + "\n```\n```python\nprint(add(1, 2))\n```",
        ADD,
    ),
    "output block after it": ("```python\n" + ADD + "\n```\n```\n3\n```", ADD),
    "another language before it": ("```bash\npip install x\n```\n```python\n" + ADD + "\n```", ADD),
    "bare code": (ADD, ADD),
    "prose around bare code": ("Sure, here it is:\n\n" + ADD + "\n\nIt adds the numbers.", ADD),
    "assigned lambda": ("```python\nadd = lambda a, b: a + b\n```", "add = lambda a, b: a + b"),
    "reasoning is ignored": (
        "<think>\n```python\ndef add(a, b): return 0\n```\n</think>\n```python\n" + ADD + "\n```",
        ADD,
    ),
    "prompt lines of a session": (">>> def add(a, b):\n...     return a + b", ADD),
    "session in a fence": ("```pycon\n>>> def add(a, b):\n...     return a + b\n```", ADD),
    "fence in a docstring": (
        '```python\ndef add(a, b):\n    """Adds.\n\n    ```\n    add(1, 2)\n    ```\n    """\n'
        "    return a + b\n```",
        'def add(a, b):\n    """Adds.\n\n    ```\n    add(1, 2)\n    ```\n    """\n'
        "    return a + b",
    ),
    "helper in an earlier block": (
        "```python\ndef plus(a, b):\n    return a + b\n```\nthen\n"
        "```python\ndef add(a, b):\n    return plus(a, b)\n```",
        "def plus(a, b):\n    return a + b\n\ndef add(a, b):\n    return plus(a, b)",
    ),
    "wrong name": (
        "```python\ndef plus(a, b):\n    return a + b\n```",
        "def plus(a, b):\n    return a + b",
    ),
    "another language": ("```js\nfunction add(a, b) { return a + b; }\n```", None),
    "prose alone": ("I cannot do this.", None),
    "empty": ("", None),
    "unfinished reasoning": ("<think>\n```python\n" + ADD + "\n```", None),
    "empty fence": ("```python\n```", None),
}


@pytest.mark.parametrize("name", EXTRACTED)
def test_extraction(name):
    completion, expected = EXTRACTED[name]
    code = extract_code(completion, "add")
    squeeze = (lambda text: text.replace("\n\n\n", "\n\n").strip()) if expected else bool
    assert squeeze(code) == (squeeze(expected) if expected else False)


def test_extraction_of_a_broken_program_keeps_it_for_the_verdict():
    assert extract_code("```python\ndef add(a, b)\n    return a\n```", "add").startswith("def add")
    assert extract_code("Here:\ndef add(a, b)\n    return a", "add").startswith("def add")


def test_a_long_text_is_searched_quickly():
    text = "\n".join(f"x = = {number}" for number in range(3000))
    started = time.monotonic()
    assert extract_code(text, "add") is None
    assert time.monotonic() - started < 20


PROMPT = "import math\n\ndef helper(x):\n    return x\n\ndef area(r):\n    '''Area.'''\n"


@pytest.mark.parametrize(
    "completion",
    [
        "    return math.pi * helper(r) ** 2\n",
        "return math.pi * helper(r) ** 2",
        "x = helper(r)\nreturn math.pi * x ** 2",
        "    return math.pi * helper(r) ** 2\n\nprint(area(1))\nThat is all.",
        "```python\n    return math.pi * helper(r) ** 2\n```",
        "```python\ndef area(r):\n    return math.pi * helper(r) ** 2\n```",
        "    return math.pi * helper(r) ** 2<|endoftext|>",
    ],
)
def test_completion_of_a_function_head(completion):
    namespace: dict = {}
    exec(complete_program(PROMPT, completion, "area"), namespace)
    assert namespace["area"](2) == pytest.approx(12.566370614)


def test_completion_of_a_function_head_may_be_missing():
    assert complete_program(PROMPT, "", "area") is None
    assert complete_program(PROMPT, "<think>hm", "area") is None


# ---- honest programs -----------------------------------------------------------------------------

HONEST = {
    "in place": ("def s(x):\n  x.sort()", ["x = [3, 1]\ns(x)\nassert x == [1, 3]"], ""),
    "in place, nested": (
        "def s(m):\n  for r in m: r.reverse()",
        ["m = [[1, 2], [3, 4]]\nr = m[0]\ns(m)\nassert m == [[2, 1], [4, 3]] and r == [2, 1]"],
        "",
    ),
    "in place, with a result": (
        "def s(x):\n  x[:] = sorted(set(x)); return len(x)",
        ["x = [3, 1, 1]\nn = s(x)\nassert x[:n] == [1, 3]"],
        "",
    ),
    "the argument itself comes back": (
        "def s(x):\n  x.sort(); return x",
        ["x = [3, 1]\nassert s(x) == [1, 3]"],
        "",
    ),
    "endless generator": (
        "def s():\n  i = 0\n  while True:\n    yield i; i += 1",
        ["import itertools\nassert list(itertools.islice(s(), 3)) == [0, 1, 2]"],
        "",
    ),
    "closure": ("def s(n): return lambda x: x + n", ["assert s(3)(4) == 7"], ""),
    "functions as arguments": (
        "def s(f, xs): return [f(x) for x in xs]",
        ["assert s(lambda x: x * 2, [1, 2]) == [2, 4]", "assert s(str, [1]) == ['1']"],
        "",
    ),
    "exceptions": (
        "def s(x): raise ValueError('no')",
        [
            "try:\n  s(1)\n  assert False\nexcept ValueError as e:\n"
            "  assert str(e) == 'no' and type(e) is ValueError"
        ],
        "",
    ),
    "an exception class of its own": (
        "class Bad(KeyError): pass\ndef s(x): raise Bad('no')",
        ["try:\n  s(1)\nexcept Bad as e:\n  pass\nelse:\n  assert False"],
        "",
    ),
    "a class of its own": (
        "class V:\n  def __init__(s, x): s.x = x\n  def __add__(s, o): return V(s.x + o.x)\n"
        "  def __eq__(s, o): return s.x == o.x\n  def m(s, k): return [s.x * k]",
        [
            "assert V(1) + V(2) == V(3)",
            "assert V(1) != V(2)",
            "v = V(3)\nv.x = 4\nassert v.x == 4 and v.m(2) == [8] and isinstance(v, V)",
        ],
        "",
    ),
    "a class of the set-up": (
        "def s(n):\n  p = None\n  while n:\n    n.next, p, n = p, n, n.next\n  return p",
        ["a = L(1)\nb = L(2, a)\nassert s(b) is a and a.next is b and b.next is None"],
        "class L:\n  def __init__(s, v, next=None): s.v, s.next = v, next",
    ),
    "set-up that needs the answer": (
        "class N:\n  def __init__(s, v): s.v, s.l = v, None\ndef s(n): return n.v + n.l.v",
        ["assert s(root) == 3"],
        "root = N(1)\nroot.l = N(2)",
    ),
    "a name that hides a built-in one": (
        "def sum(a, b): return a + b",
        ["assert sum(1, 2) == 3"],
        "",
    ),
    "many types": (
        "import collections as c, decimal, fractions, datetime\n"
        "def s(): return [c.Counter('aab'), {1, 2}, frozenset([3]), (1, (2,)), b'x', 1 + 2j, -0.0,"
        " float('inf'), 2**200, range(3), decimal.Decimal('1.5'), fractions.Fraction(1, 3),"
        " datetime.date(2020, 1, 2), {(1, 2): [3]}, c.deque([1]), None, True, '\\ud800']",
        [
            "import collections as c, decimal, fractions, datetime\n"
            "assert s() == [c.Counter('aab'), {1, 2}, frozenset([3]), (1, (2,)), b'x', 1 + 2j,"
            " -0.0, float('inf'), 2**200, range(3), decimal.Decimal('1.5'),"
            " fractions.Fraction(1, 3), datetime.date(2020, 1, 2), {(1, 2): [3]}, c.deque([1]),"
            " None, True, '\\ud800']",
            "assert str(s()[6]) == '-0.0' and [type(x) for x in s()[:2]] == [c.Counter, set]",
        ],
        "",
    ),
    "types and arrays": (
        "import array\ndef s(x): return [type(x), array.array('i', x), int]",
        ["import array\nassert s([1, 2]) == [list, array.array('i', [1, 2]), int]"],
        "",
    ),
    "named tuple": (
        "import collections\nP = collections.namedtuple('P', 'x y')\ndef s(): return P(1, 2)",
        ["assert s() == (1, 2) and s().x == 1"],
        "",
    ),
    "slow but right": (
        "import time\ndef s(x):\n  time.sleep(0.3)\n  return x",
        ["assert s(1) == 1"],
        "",
    ),
    "deep recursion": ("def s(n): return n if n == 0 else s(n - 1)", ["assert s(900) == 0"], ""),
    "prints": ("def s():\n  print('passed')\n  return 1", ["assert s() == 1"], ""),
    "a main guard that waits for input": (
        "def s(): return 1\nif __name__ == '__main__':\n  input()",
        ["assert s() == 1"],
        "",
    ),
    "files, processes and threads of its own": (
        "import subprocess, sys, threading\ndef s():\n  open('a.txt', 'w').write('6')\n"
        "  t = threading.Thread(target=lambda: open('b.txt', 'w').write('7'))\n"
        "  t.start(); t.join()\n"
        '  c = \'print(int(open("a.txt").read()) * int(open("b.txt").read()))\'\n'
        "  return int(subprocess.run([sys.executable, '-c', c], capture_output=True).stdout)",
        ["assert s() == 42"],
        "",
    ),
}


@needs_isolation
@pytest.mark.parametrize("name", HONEST)
def test_honest_program(name):
    code, tests, setup = HONEST[name]
    entry_point = "sum" if "def sum" in code else ("V" if "class V" in code else "s")
    report = run_tests(code, tests, entry_point, setup)
    assert (report.status, report.passed, report.total) == ("passed", len(tests), len(tests)), (
        report
    )


# ---- answers that cheat: all of them are wrong ---------------------------------------------------

FORGED_FRAMES = """
import json, os, struct
def send(message):
    text = json.dumps(message).encode()
    os.write(3, struct.pack('>I', len(text)) + text)
send({'what': 'loaded'})
for value in (3, 0, 15):
    send({'what': 'value', 'message': {'values': [value, [1, 2], {}], 'objects': {}}})
def add(a, b): return 0
"""
FORGED_VERDICT = """
import json, os, struct
text = json.dumps({'verdict': 'passed', 'passed': 3, 'total': 3, 'detail': ''}).encode()
for number in range(256):
    try: os.write(number, struct.pack('>I', len(text)) + text)
    except OSError: pass
def add(a, b): return 0
"""
FRAMES_AND_GARBAGE = """
import gc, re, sys
def add(a, b):
    pattern = r'add\\(%d, %d\\) == (-?\\d+)' % (a, b)
    seen, frame = list(gc.get_objects()), sys._getframe()
    while frame:
        seen += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]
        frame = frame.f_back
    for item in seen:
        try: match = re.search(pattern, repr(item))
        except Exception: continue
        if match: return int(match.group(1))
"""
FILES = """
import os, re
def add(a, b):
    pattern = (r'add\\(%d, %d\\) == (-?\\d+)' % (a, b)).encode()
    for top in ('/tmp', '/dev/shm', '/proc', '/run', '/etc', '/var', os.getcwd()):
        for folder, _, names in os.walk(top):
            for name in names:
                try: text = open(os.path.join(folder, name), 'rb').read(1 << 20)
                except OSError: continue
                match = re.search(pattern, text)
                if match: return int(match.group(1))
"""
CHEATS = {
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "hard exit": "import os\ndef add(a, b): return a - b\nos._exit(0)",
    "hard exit in the call": "import os\ndef add(a, b): os._exit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "hook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef add(a, b): return 0",
    "another program": (
        "import os, sys\ndef add(a, b): os.execv(sys.executable, ['python', '-c', 'print(3)'])"
    ),
    "kills all": "import os\ndef add(a, b): os.kill(-1, 9)",
    "kills its parent": "import os\ndef add(a, b): os.kill(os.getppid() or 1, 9)",
    "prints a verdict": "print('{\"passed\": 3}')\nprint('passed')\ndef add(a, b): return 0",
    "equals anything": "class A:\n  def __eq__(s, o): return True\ndef add(a, b): return A()",
    "equals anything, a number": (
        "class A(int):\n  __eq__ = lambda s, o: True\n  __hash__ = None\ndef add(a, b): return A()"
    ),
    "equals anything, a list": (
        "class A(list):\n  def __eq__(s, o): return True\ndef add(a, b): return A()"
    ),
    "pretends to be a number": (
        "class A:\n  __class__ = property(lambda s: int)\n  def __eq__(s, o): return True\n"
        "def add(a, b): return A()"
    ),
    "mock that equals anything": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "patched built-ins": (
        "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.all = lambda *a: True\n"
        "builtins.isinstance = lambda *a: True\ndef add(a, b): return a - b"
    ),
    "patched modules": (
        "import json, unittest, operator\njson.dumps = lambda *a, **k: '3'\n"
        "unittest.TestCase.run = lambda *a: None\ndef add(a, b): return 0"
    ),
    "trace function": "import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef add(a, b): return 0",
    "frames and garbage": FRAMES_AND_GARBAGE,
    "files": FILES,
    "script": "import re, sys\ndef add(a, b): return re.findall(r'\\d+', open(sys.argv[0]).read())",
    "forged frames": FORGED_FRAMES,
    "forged verdict": FORGED_VERDICT,
    "closed descriptors": "import os\nos.closerange(0, 256)\ndef add(a, b): return 3",
    "assertion of its own": "def add(a, b): raise AssertionError",
    "stop of an iteration": "def add(a, b): raise StopIteration",
    "keyboard interrupt": "def add(a, b): raise KeyboardInterrupt",
    "exception of no family": "class B(BaseException): pass\ndef add(a, b): raise B",
    "endless generator": "def add(a, b):\n  while True: yield 3",
    "too large": "def add(a, b): return 'x' * (40 << 20)",
    "too deep": "def add(a, b):\n  x = []\n  for _ in range(5000): x = [x]\n  return x",
    "circle": "def add(a, b):\n  x = []\n  x.append(x)\n  return x",
    "second process": "import os\ndef add(a, b):\n  os.fork()\n  return 0",
    "iteration that exits": (
        "class L(list):\n  def __iter__(s): raise SystemExit(0)\n  def __eq__(s, o): return True\n"
        "def add(a, b): return L([1])"
    ),
    "constant": "def add(a, b): return 3",
    "module with every name": "def __getattr__(name): return lambda *a: 3",
    "spoilt imports": "import sys\nsys.modules['json'] = None\ndef add(a, b): return 0",
}


@each_layer
@pytest.mark.parametrize("name", CHEATS)
def test_cheat(name, layer):
    report = grade(TestsJob(CHEATS[name], ADD_TESTS, "add"), cpu_seconds=3, layer=layer)
    assert report.status != "passed"
    assert report.passed < 3


TRICKS = {
    "empties its argument": (
        "def s(x):\n  x.clear()\n  return []",
        ["x = [3, 1]\nassert s(x) == sorted(x)"],
    ),
    "ends a loop of the tests": (
        "def s(x): raise StopIteration",
        ["assert all(map(lambda x: s(x) == x, [1, 2]))"],
    ),
    "a module that the tests forgot to import": (
        "class math:\n  isclose = staticmethod(lambda *a: True)\ndef s(): return 5",
        ["assert math.isclose(s(), 3)"],
    ),
    "a built-in function for the tests": (
        "def abs(x): return 0\ndef s(): return 9",
        ["assert abs(s() - 3) < 1"],
    ),
    "an object that swallows arithmetic": (
        "class A:\n  __sub__ = __abs__ = lambda s, *o: s\n  __lt__ = lambda s, o: True\n"
        "def s(): return A()",
        ["assert abs(s() - 3) < 1e-6"],
    ),
    "a text with a method of its own": (
        "class A(str):\n  startswith = lambda s, x: True\ndef s(): return A()",
        ["assert s().startswith('abc')"],
    ),
    "holds everything": (
        "class A:\n  __contains__ = lambda s, x: True\ndef s(): return A()",
        ["assert 3 in s()"],
    ),
    "an object against plain data in tests of a class": (
        "class A:\n  __eq__ = lambda s, o: True\n  __sub__ = __abs__ = lambda s, *o: s\n"
        "  __lt__ = lambda s, o: True\ndef s(): return A()",
        ["assert isinstance(A(), A) and s() == 3", "assert abs(s() - 3) < 1"],
    ),
    "a check of its own": (
        "def s(): return 0\ndef check(candidate): pass",
        "def check(candidate):\n    assert candidate() == 3",
    ),
    "tests that are not reached": (
        "def s(): return 0",
        "def check(candidate):\n    return\n    assert candidate() == 3",
    ),
    "an instance that changes its state": (
        "def s(n):\n  n.v = 3\n  return 0",
        ["assert s(L(1)) == 3"],
    ),
    "swaps a helper of the tests": (
        "def encode(x): return x\ndef s(x): return x",
        ["assert s(encode('abc')) == 'abc'"],
    ),
}
TRICK_SETUP = "class L:\n  def __init__(self, v): self.v = v\ndef encode(x):\n  return x[::-1]\n"


@each_layer
@pytest.mark.parametrize("name", TRICKS)
def test_trick(name, layer):
    code, tests = TRICKS[name]
    report = grade(TestsJob(code, tests, "s", TRICK_SETUP), layer=layer)
    assert report.status == "failed"


MEMORY_SCAN = """
import ctypes, os
def s(start, end):
    secret = (start + end).encode()
    libc, page, found = ctypes.CDLL(None, use_errno=True), 4096, 0
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    state, probes = ctypes.create_string_buffer(1), [object(), [], "x" * 5000, bytearray(1 << 20)]
    libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    read_end, write_end = os.pipe()
    own = set()
    for probe in probes:
        middle = id(probe) // page * page
        for address in range(middle - (24 << 20), middle + (24 << 20), page):
            if address not in own and libc.mincore(address, page, state) == 0:
                own.add(address)
    copies = readable = 0
    for address in own:
        if libc.write(write_end, address, page) == page:  # fails softly on a guard page
            readable += 1
            copies += os.read(read_end, page).count(secret)
    return [readable > 1000, copies]
"""


@needs_isolation
def test_nothing_of_earlier_tests_is_in_the_memory_of_an_answer():
    secret = uuid.uuid4().hex
    first = [f"assert s('{secret[:16]}', 'x') != '{secret}'" for _ in range(20)]
    layer = sandbox.isolation()
    with pool.shared_pool(layer).parent() as parent:  # idle again: the next verdicts use it
        pass
    for _ in range(3):
        assert run_tests("def s(a, b): return a", first, "s").status == "passed"
    # The secret's halves are put together only in the answer's process: one copy is its own.
    tests = [
        f"seen, copies = s('{secret[:16]}', '{secret[16:]}')\nassert seen and 1 <= copies <= 4",
    ]
    assert parent.process.poll() is None
    report = run_tests(MEMORY_SCAN, tests, "s", memory_mb=1024)
    assert report.status == "passed", report


# ---- what passes between the two processes -------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.fractions(),
    st.decimals(),
    st.datetimes().map(lambda value: value.replace(fold=0)),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text()), inner, max_size=4),
        st.frozensets(st.integers(), max_size=4),
        st.sets(st.text(), max_size=4),
    ),
    max_leaves=20,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["values", "objects", "0", "1", "x"]), inner, max_size=3),
        st.tuples(st.sampled_from([*codec.SIMPLE, *codec.SEQUENCES, "mine", "object"]), inner).map(
            list
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAIN)
def test_plain_values_arrive_as_they_were(value):
    message = json.loads(json.dumps(codec.Codec(0).encode(value)))
    (arrived,) = codec.Codec(1).decode(message)
    assert canonical(arrived) == canonical(value)


def canonical(value) -> str:
    """A text that tells types, signs of zero and NaN apart, but not the order in sets."""
    name = type(value).__name__
    if isinstance(value, (set, frozenset)):
        return f"{name}{sorted(map(canonical, value))}"
    if isinstance(value, (list, tuple)):
        return f"{name}{[canonical(item) for item in value]}"
    if isinstance(value, dict):
        return f"{name}{[(canonical(key), canonical(item)) for key, item in value.items()]}"
    return f"{name} {value!r}"


@settings(deadline=None)
@given(st.fixed_dictionaries({"values": st.lists(JSON, max_size=3), "objects": JSON}) | JSON)
def test_rubbish_is_either_plain_data_or_refused(message):
    try:
        values = codec.Codec(0).decode(message)
    except codec.ProtocolError:
        return
    assert isinstance(values, list)


# ---- verdicts ------------------------------------------------------------------------------------


@needs_isolation
def test_partial_results_and_details():
    code = "def add(a, b):\n    return a + b if a > 0 else 99"
    report = run_tests(code, ADD_TESTS, "add")
    assert (report.status, report.passed, report.total) == ("failed", 2, 3)
    assert "add(-1, 1)" in report.detail
    whole = (
        "def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\n    assert f(1, 1) == 2"
    )
    report = run_tests(code, whole, "add")
    assert (report.status, report.passed, report.total) == ("failed", 2, 3)


@needs_isolation
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (None, "no code"),
        ("def add(a, b)\n    return a", "failed"),
        ("def plus(a, b): return a + b", "failed"),
        ("def add(a, b):\n    while True: pass", "timeout"),
        ("import time\ndef add(a, b): time.sleep(60)", "timeout"),
        ("def add(a, b): return [bytearray(1 << 28) for _ in range(24)]", "memory"),
        ("import os\ndef add(a, b):\n    while True: os.fork()", "forbidden"),
        ("def add(a, b): return open('/usr/x', 'w')", "forbidden"),
        (
            "import socket\ndef add(a, b): return socket.create_connection(('10.0.0.1', 9))",
            "forbidden",
        ),
    ],
)
def test_the_verdict_says_why(code, status):
    report = run_tests(code, ADD_TESTS, "add", cpu_seconds=2)
    assert (report.status, report.passed, report.total) == (status, 0, 3)
    assert report.detail


def test_tests_that_are_at_fault_are_errors():
    with pytest.raises(ValueError, match="no tests"):
        run_tests(ADD, [], "add")
    with pytest.raises(ValueError, match="no tests"):
        run_tests(ADD, ["", " "], "add")
    with pytest.raises(ValueError, match="at least one"):
        run_programs(ADD, [])
    with pytest.raises(ValueError, match="do not parse"):
        run_tests(ADD, "def check(:", "add")
    with pytest.raises(ValueError, match="entry point"):
        run_tests(ADD, "def check(candidate):\n    assert candidate(1, 2) == 3")
    with pytest.raises(ValueError, match="set-up"):
        run_tests(ADD, ADD_TESTS, "add", "import (")


@needs_isolation
def test_tests_that_are_at_fault_at_run_time_are_errors():
    with pytest.raises(ValueError, match="do not parse"):
        run_tests(ADD, ["assert add(1, 2) =="], "add")
    with pytest.raises(ValueError, match="set-up of the tests"):
        run_tests(ADD, ADD_TESTS, "add", "import no_such_module_here")


@needs_isolation
def test_programs_with_input_and_output():
    io = [
        {"stdin": "3\n2\n3\n4\n", "stdout": "YES\nNO\nYES\n"},
        {"stdin": "1\n5\n", "stdout": "NO"},
    ]
    right = (
        "for _ in range(int(input())):\n    print('NO' if int(input()) % 2 else 'YES', end=' \\n')"
    )
    assert run_programs(right, io).status == "passed"
    assert run_programs(right + "\nimport sys\nsys.exit(0)", io).status == "passed"
    assert run_programs("print('YES')", io).status == "failed"
    half = run_programs("input(); input(); print('NO')", io)
    assert (half.status, half.passed, half.total) == ("failed", 1, 2)
    assert run_programs(right + "\nimport sys\nsys.exit(1)", io).status == "failed"
    assert run_programs(right + "\nraise ValueError", io).status == "failed"
    assert run_programs("while True: pass", io, cpu_seconds=1).status == "timeout"
    assert run_programs("while True: print('x' * 1000)", io).status == "failed"
    assert run_programs("x = [bytearray(1 << 28) for _ in range(24)]", io).status == "memory"
    assert run_programs(None, io).status == "no code"
    main = "import threading\ndef main():\n    print(input() + '!')\n"
    main += "if __name__ == '__main__':\n    threading.Thread(target=main).start()"
    assert run_programs(main, [{"stdin": "a\u00e4", "stdout": "a\u00e4!"}]).status == "passed"


@needs_isolation
def test_a_program_s_orphan_does_not_hold_up_the_verdict():
    code = "import os, time\nprint('1', flush=True)\nif os.fork() == 0:\n    time.sleep(60)"
    started = time.monotonic()
    assert run_programs(code, [{"stdin": "", "stdout": "1"}]).status == "passed"
    assert time.monotonic() - started < 20


@needs_isolation
def test_the_same_answer_gets_the_same_verdict_fifty_times():
    lucky = "import random\ndef add(a, b):\n    return a + b + (random.random() < 0.5)"
    ordered = "def add(a, b):\n    return a + b if list({'x', 'y', 'z'})[0] == 'x' else 0"
    for code in (ADD, lucky, ordered):
        reports = run_tests_many([TestsJob(code, ADD_TESTS, "add")] * 50)
        assert len(set(reports)) == 1
    assert reports[0].total == 3


@needs_isolation
def test_a_batch_keeps_its_order_and_its_answers_apart():
    patch = "import builtins, math\nmath.sqrt = builtins.sum = None\ndef add(a, b): return a - b"
    uses = "import math\ndef add(a, b): return int(sum([a, b]) + math.sqrt(0))"
    codes = [patch, uses, None, ADD, "def add(a, b): return 3", uses]
    reports = run_tests_many([TestsJob(code, ADD_TESTS, "add") for code in codes])
    statuses = [report.status for report in reports]
    assert statuses == ["failed", "passed", "no code", "passed", "failed", "passed"]


@needs_isolation
def test_files_of_one_verdict_are_gone_in_the_next():
    leave = "import os\ndef s():\n  for d in ('.', '/tmp', '/dev/shm'):\n"
    leave += "    try: open(d + '/note.txt', 'w').write('x')\n    except OSError: pass\n"
    look = "import os\ndef s(): return [os.path.exists(d + '/note.txt') for d in ('.', '/tmp', "
    look += "'/dev/shm')]"
    with pool.shared_pool(sandbox.isolation()).parent() as parent:
        pass
    assert run_tests(leave, ["assert s() is None"], "s").status == "passed"
    assert run_tests(look, ["assert s() == [False] * 3"], "s").status == "passed"
    assert parent.process.poll() is None


@each_layer
def test_nothing_of_an_answer_stays(layer, tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_SECRET", "feathers")
    marker, canary = f"marker-{uuid.uuid4()}", tmp_path / "song.txt"
    canary.write_text("feathers")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"""
import os, shutil, socket, subprocess, sys
command = [sys.executable, "-c", "import time; time.sleep(60)", {marker!r}]
subprocess.Popen(command, start_new_session=True)
def s():
    found = []
    for attempt in (
        lambda: open({str(canary)!r}).read(),
        lambda: open({str(canary)!r}, "w").write("gone"),
        lambda: open({str(tmp_path / "new")!r}, "w").write("x"),
        lambda: socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), 2),
        lambda: open(f"/proc/{{os.getppid()}}/environ").read(),
        lambda: open("/proc/self/environ").read().index("feathers"),
        lambda: os.environ["CANARY_SECRET"],
        lambda: os.kill({os.getpid()}, 0),
    ):
        try:
            found.append(str(attempt()))
        except (OSError, KeyError, ValueError):
            pass
    shutil.rmtree({str(tmp_path)!r}, ignore_errors=True)
    return found
"""
        started = time.monotonic()
        report = grade(TestsJob(code, ["assert s() == []"], "s"), layer=layer)
    assert report.status == "passed", report
    assert time.monotonic() - started < 30
    assert canary.read_text() == "feathers"
    assert list(tmp_path.iterdir()) == [canary]
    assert wait_until_gone(marker) == []


def processes_with(marker: str) -> list[str]:
    """Command lines of living processes that hold the marker as an argument of its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        found += [str(path)] if marker.encode() in arguments else []
    return found


def wait_until_gone(marker: str) -> list[str]:
    """Processes with the marker that are still there after two seconds."""
    deadline = time.monotonic() + 2
    while (left := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


# ---- the pool ------------------------------------------------------------------------------------


@needs_isolation
def test_a_parent_serves_many_verdicts_and_is_replaced_when_it_dies():
    own = pool.Pool(sandbox.isolation())
    try:
        with own.parent() as first:
            pass
        with own.parent() as again:
            assert again is first
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        with own.parent() as other:
            assert other is not first
            assert other.process.poll() is None
    finally:
        own.close()
    assert other.process.poll() is not None


@needs_isolation
def test_a_parent_that_dies_during_a_verdict_is_replaced(monkeypatch):
    pool.close_pools()
    done = []
    code = "import time\ndef s():\n    time.sleep(1)\n    return 1"
    thread = threading.Thread(target=lambda: done.append(run_tests(code, ["assert s() == 1"], "s")))
    started: list[pool.Parent] = []
    original = pool.Parent.__init__

    def watched(self, layer):
        original(self, layer)
        started.append(self)

    monkeypatch.setattr(pool.Parent, "__init__", watched)
    thread.start()
    while not started:
        time.sleep(0.02)
    time.sleep(0.3)
    outer = started[0].process.pid
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    for process in (*map(int, children), outer):
        os.kill(process, signal.SIGKILL)
    thread.join(timeout=60)
    assert [report.status for report in done] == ["passed"]
    assert len(started) == 2


@needs_isolation
def test_closing_the_pools_ends_their_parents():
    run_tests(ADD, ADD_TESTS, "add")
    with pool.shared_pool(sandbox.isolation()).parent() as parent:
        pass
    pool.close_pools()
    assert parent.process.poll() is not None
    assert run_tests(ADD, ADD_TESTS, "add").status == "passed"  # new ones start by themselves


@each_layer
def test_an_answer_dies_with_the_process_that_asked_for_its_verdict(layer, tmp_path):
    marker = f"marker-{uuid.uuid4()}"
    answer = f"""
import subprocess, sys, time
command = [sys.executable, "-c", "import time; time.sleep(100)", {marker!r}]
def s():
    subprocess.Popen(command, start_new_session=True)
    time.sleep(100)
"""
    host_code = f"""
from cascade_kit.verifiers import layers, python_tests
layer = layers.Isolation({layer.name!r}, "", {layer.program!r}, {layer.own_user!r})
job = python_tests.TestsJob({answer!r}, ["assert s()"], "s")
python_tests.grade(job, cpu_seconds=60, layer=layer)
"""
    tmp_path.chmod(0o777)
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "TMPDIR": str(tmp_path)}
    host = subprocess.Popen([sys.executable, "-c", host_code], env=environment)
    try:
        deadline = time.monotonic() + 60
        while not processes_with(marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_with(marker)
    finally:
        host.kill()
        host.wait()
    assert wait_until_gone(marker) == []
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


@needs_isolation
def test_threads_share_the_pool():
    reports: dict[int, str] = {}

    def work(number: int) -> None:
        reports[number] = run_tests(f"def s(): return {number}", ["assert s() < 4"], "s").status

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports == {number: "passed" if number < 4 else "failed" for number in range(8)}


def test_without_isolation_code_needs_consent(monkeypatch):
    none = layers.Isolation("none", "nothing works here")
    monkeypatch.setattr(sandbox, "isolation", lambda: none)
    with pytest.raises(sandbox.IsolationUnavailable, match="bubblewrap.*allow_unsafe=True"):
        run_tests(ADD, ADD_TESTS, "add")
    try:
        assert run_tests(ADD, ADD_TESTS, "add", allow_unsafe=True).status == "passed"
        wrong = ADD.replace("+", "-")
        assert run_tests(wrong, ADD_TESTS, "add", allow_unsafe=True).status == "failed"
    finally:
        pool.close_pools()


# ---- rows of public data sets --------------------------------------------------------------------


def read_rows(path: Path) -> list[dict]:
    if not path.exists():
        pytest.skip(f"{path.name} is not here; set CASCADE_SHARED to the shared folder")
    return [json.loads(line) for line in path.read_text().splitlines()]


def graded(rows: list[tuple[dict, str]]) -> list[str]:
    """Ids of the rows whose completion does not pass."""
    jobs = [code_rows.job_of_row(row, completion) for row, completion in rows]
    reports = run_tests_many(jobs, workers=2, cpu_seconds=3)
    names = [str(row.get("task_id", row.get("name"))) for row, _ in rows]
    return [name for name, report in zip(names, reports, strict=True) if report.status != "passed"]


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


def references(step: int) -> list[tuple[dict, str]]:
    humaneval = read_rows(SHARED / "data/humaneval/HumanEval.jsonl")[::step]
    fixes = read_rows(SHARED / "data/humanevalfix_python/humanevalpack_python.jsonl")[::step]
    bugs = read_rows(SHARED / "data/quixbugs/quixbugs.jsonl")[:: max(step // 4, 1)]
    return [
        *((row, row["canonical_solution"]) for row in humaneval),
        *((row, fenced(row["prompt"] + row["canonical_solution"])) for row in humaneval),
        *((row, fenced(row["code"])) for row in read_rows(SHARED / "data/mbpp/mbpp.jsonl")[::step]),
        *((row, row["canonical_solution"]) for row in fixes),
        *((row, fenced(row["fixed"])) for row in bugs),
    ]


def faulty(step: int) -> list[tuple[dict, str]]:
    fixes = read_rows(SHARED / "data/humanevalfix_python/humanevalpack_python.jsonl")[::step]
    bugs = read_rows(SHARED / "data/quixbugs/quixbugs.jsonl")[1 :: max(step // 4, 1)]
    return [
        *((row, row["buggy_solution"]) for row in fixes),
        *((row, fenced(row["buggy"])) for row in bugs),
    ]


@needs_isolation
def test_some_reference_solutions_pass():
    assert graded(references(20)) == []


@needs_isolation
def test_some_faulty_solutions_fail():
    rows = faulty(20)
    assert len(graded(rows)) == len(rows)


@pytest.mark.slow
@needs_isolation
def test_all_reference_solutions_pass():
    assert graded(references(1)) == []


@pytest.mark.slow
@needs_isolation
def test_all_faulty_solutions_fail():
    rows = faulty(1)
    assert len(graded(rows)) == len(rows)


def test_a_row_in_no_known_form_is_refused_by_its_id():
    with pytest.raises(ValueError, match="row r7"):
        code_rows.job_of_row({"id": "r7", "prompt": "x"}, "y")
    assert isinstance(
        code_rows.job_of_row({"io": [{"stdin": "", "stdout": ""}]}, "x = 1"), ProgramJob
    )
