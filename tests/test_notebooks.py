"""The notebooks: committed clean, alike at the top, and they run - in order, alone, from a wheel.

Runs are in fast mode, each in a fresh process and in an empty folder. They show that all cells run
and leave the right files; tests/test_live.py and tests/test_panels.py look at the widgets.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

from cascade_kit.stage import ORDER
from notebooks import first_cell

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = first_cell.public_address(ROOT / "pyproject.toml")
PATHS = first_cell.notebook_paths()
STAGES = {"01_rlhf": "rlhf", "02_instruction_following": "instruct", "03_math": "math"}
STAGES |= {"04_code": "code", "05_swe": "swe"}
# The row that a notebook adds to the matrix; 06 has a domain of its own.
ROWS = STAGES | {"06_forgetting_matrix": "brief"}
OWN_MODEL = "10_your_model_on_colab"  # has a run folder of its own
LONGEST_CELL = 15  # lines of code; the setup cell alone is longer
FAST_ITEMS = 12  # held-out problems a domain in fast mode
RUN_LIMIT = 900  # seconds for a test that runs notebooks, on a machine that others use too

every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(path: Path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


# ---- as committed --------------------------------------------------------------------------------


def test_there_is_a_notebook_for_the_start_each_stage_and_the_matrix():
    assert [path.stem for path in PATHS] == [
        "00_start_here", *STAGES, "06_forgetting_matrix", OWN_MODEL
    ]  # fmt: skip
    assert tuple(STAGES.values()) == ORDER


@every_notebook
def test_a_notebook_is_as_make_notebooks_writes_it(path):
    """The same badge and setup cell, no outputs, no counts, no widget state, no editor's traces."""
    written = first_cell.written(read(path), path.name, ADDRESS)
    assert path.read_text(encoding="utf-8") == written, "run `make notebooks`"


@every_notebook
def test_a_notebook_is_valid_and_clean(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell.id for cell in cells if cell.outputs or cell.execution_count is not None]
    assert "widget-view" not in text and "application/vnd" not in text


@every_notebook
def test_cell_ids_are_words(path):
    """Somebody chose them: an editor's own are eight hex digits or a UUID."""
    ids = [cell.id for cell in read(path).cells]
    assert ids[:2] == ["title", "setup"] and len(set(ids)) == len(ids)
    assert not [name for name in ids if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)]
    assert not [name for name in ids if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", name)]


@every_notebook
def test_one_title_and_one_parameters_cell(path):
    cells = read(path).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    headings = [line for text in texts for line in text.split("\n") if line.startswith("# ")]
    assert len(headings) == 1
    assert re.match(rf"# 0?{int(path.name[:2])}\b", headings[0])
    assert [cell.cell_type for cell in cells if "tags" in cell.metadata] == ["code"]
    (parameters,) = [cell for cell in cells if "tags" in cell.metadata]
    assert parameters.metadata.tags == ["parameters"]
    assert "FAST = settings.fast()" in parameters.source


@every_notebook
def test_code_cells_are_short(path):
    longest = {cell.id: len(cell.source.split("\n")) for cell in code_cells(path)}
    del longest["setup"]
    assert not {name: lines for name, lines in longest.items() if lines > LONGEST_CELL}


@every_notebook
def test_code_imports_the_kit_and_the_standard_library_only(path):
    for cell in code_cells(path):
        tree = ast.parse(re.sub(r"^(\s*)%pip .*$", r"\1pass", cell.source, flags=re.MULTILINE))
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add(node.module)
        foreign = {n for n in found if n.partition(".")[0] not in sys.stdlib_module_names}
        foreign = {n for n in foreign if n.partition(".")[0] != "cascade_kit"}
        allowed = {"torch"} if cell.id == "setup" else {"IPython.display"}
        assert foreign <= allowed, cell.id


@every_notebook
def test_no_magic_but_pip_in_the_setup_cell(path):
    magic = re.compile(r"^\s*[%!?].*|.*\bget_ipython\b.*", flags=re.MULTILINE)
    found = {cell.id: magic.findall(cell.source) for cell in code_cells(path)}
    assert [line.strip() for line in found.pop("setup")] == ['%pip install -q "{kit}"']
    assert not {name: lines for name, lines in found.items() if lines}


@every_notebook
def test_links_lead_somewhere(path):
    text = "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (path.parent / target).exists()]
    owner_and_name = ADDRESS.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{owner_and_name}/blob/main/notebooks/"
    assert f"{colab}{path.name}" in targets


def test_address_stands_once_and_is_repeated_by_the_machine_only():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", ADDRESS)
    assert text.count(ADDRESS.removeprefix("https://")) == 1
    assert ADDRESS not in Path(first_cell.__file__).read_text(encoding="utf-8")


def test_make_notebooks_mends_what_an_editor_left():
    cells = [
        nbformat.v4.new_markdown_cell("[![Open In Colab](old)](old)\n\n# 07 · Title", id="title"),
        nbformat.v4.new_code_cell("print('old setup')", id="setup"),
        nbformat.v4.new_code_cell("1", id="one", execution_count=3, metadata={"tags": ["a"]}),
    ]
    cells[2].outputs = [nbformat.v4.new_output("stream", text="1")]
    cells[2].metadata["collapsed"] = True
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {}})
    text = first_cell.written(notebook, "07_title.ipynb", "https://github.com/me/kit")
    mended = nbformat.reads(text, as_version=4)
    title, setup, one = mended.cells
    assert title.source.startswith("[![Open In Colab](https://colab.research.google.com/assets/")
    assert "/github/me/kit/blob/main/notebooks/07_title.ipynb)\n\n# 07 · Title" in title.source
    assert "git+https://github.com/me/kit" in setup.source and "old setup" not in setup.source
    assert (one.outputs, one.execution_count, one.metadata) == ([], None, {"tags": ["a"]})
    assert set(mended.metadata) == {"kernelspec", "language_info"}
    again = first_cell.written(mended, "07_title.ipynb", "https://github.com/me/kit")
    assert again == text


def test_make_notebooks_refuses_a_notebook_without_title():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(ValueError, match="07_x.ipynb must begin with a Markdown cell"):
        first_cell.written(notebook, "07_x.ipynb", ADDRESS)


# ---- the setup cell ------------------------------------------------------------------------------


def run_setup(monkeypatch, *, colab: bool, installed: bool) -> list[str]:
    """Run the setup cell as if on Colab or not; return what it would have installed."""
    commands: list[str] = []
    find_spec = importlib.util.find_spec

    def found(name, *arguments):
        hidden = name == "cascade_kit" and not installed and not commands
        return None if hidden else find_spec(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    if colab:
        module = ModuleType("google.colab")
        module.__spec__ = ModuleSpec("google.colab", None)  # libraries look for it by find_spec
        monkeypatch.setitem(sys.modules, "google.colab", module)
    source = first_cell.setup_source("https://github.com/me/kit")
    source = source.replace('%pip install -q "{kit}"', "install(str(kit))")
    exec(compile(source, "setup", "exec"), {"install": commands.append})
    return commands


@pytest.fixture
def empty_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_setup_installs_nothing_where_the_kit_is(monkeypatch, empty_folder, capsys):
    assert run_setup(monkeypatch, colab=False, installed=True) == []
    assert run_setup(monkeypatch, colab=True, installed=True) == []
    versions, state, *_ = capsys.readouterr().out.splitlines()
    assert versions.startswith("python 3.") and ", torch " in versions
    assert state.startswith("device: ") and "; mode: " in state and "runs" in state


def test_setup_says_what_to_do_where_the_kit_is_not(monkeypatch, empty_folder):
    with pytest.raises(ImportError, match="On Colab, upload its wheel.*`make lab` in the clone"):
        run_setup(monkeypatch, colab=False, installed=False)


def test_setup_on_colab_takes_the_public_address(monkeypatch, empty_folder):
    found = run_setup(monkeypatch, colab=True, installed=False)
    assert found == ["git+https://github.com/me/kit"]


def test_setup_on_colab_prefers_what_was_uploaded(monkeypatch, empty_folder):
    folder = empty_folder / "cascade-kit-main"
    folder.mkdir()
    assert run_setup(monkeypatch, colab=True, installed=False)[0].startswith("git+")
    (folder / "pyproject.toml").touch()
    assert run_setup(monkeypatch, colab=True, installed=False) == [str(folder)]
    for version in ("0.1.0", "0.2.0"):
        (empty_folder / f"cascade_kit-{version}-py3-none-any.whl").touch()
    newest = empty_folder / "cascade_kit-0.2.0-py3-none-any.whl"
    assert run_setup(monkeypatch, colab=True, installed=False) == [str(newest)]


# ---- run -----------------------------------------------------------------------------------------


def run_notebook(path: Path, folder: Path, *, python_path: Path | None = None) -> str:
    """Run a copy in `folder`, which also takes the runs; return where its kit came from.

    Raises CellExecutionError with the cell and its traceback if one fails.
    """
    notebook = read(path)
    where = "import sys, cascade_kit; print(cascade_kit.__file__, sys.prefix, sep='\\n')"
    last = nbformat.v4.new_code_cell(where)
    notebook.cells.append(last)
    environment = os.environ | {"CASCADE_FAST": "1", "CASCADE_HOME": str(folder / "runs")}
    if python_path:
        environment["PYTHONPATH"] = str(python_path)
    client = NotebookClient(
        notebook,
        timeout=RUN_LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in texts if "Warning" in text or "unrecognized" in text], path.name
    origin, prefix = last.outputs[0].text.splitlines()
    assert Path(prefix) == Path(sys.prefix), "the kernel `python3` is another environment's"
    return origin


def rows_of(folder: Path, name: str = "notebooks-fast") -> list[str]:
    """The rows of the matrix in a run folder, whose files are complete for each of them."""
    run = folder / "runs" / name
    matrix = json.loads((run / "matrix.json").read_text(encoding="utf-8"))
    assert set(ORDER) <= set(matrix["domains"])
    for row in matrix["stages"]:
        (place,) = run.glob(f"*-{row}")
        check_stage(place, trained=row != "sft")
        for domain in ORDER:
            lines = (place / "eval" / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
            assert len(lines) == FAST_ITEMS
    return matrix["stages"]


def check_stage(place: Path, *, trained: bool) -> None:
    """A stage has left its adapter, and if it was trained, a line a step and a line an answer."""
    assert (place / "adapter" / "adapter_model.safetensors").is_file()
    if trained:
        logs = [place / "steps.jsonl", place / "rollouts.jsonl"]
        steps, answers = (log.read_text(encoding="utf-8").splitlines() for log in logs)
        assert (len(steps), len(answers)) == (2, 2 * 4 * 4)


@pytest.mark.timeout(2 * RUN_LIMIT)
def test_all_notebooks_run_in_order(tmp_path):
    rows = ["sft"]
    for path in PATHS:
        run_notebook(path, tmp_path)
        rows += [ROWS[path.stem]] if path.stem in ROWS else []
        assert rows_of(tmp_path) == rows, path.name


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that the wheel is installed into, away from the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    place = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(place), str(wheel)], check=True, capture_output=True)
    return place


@pytest.mark.timeout(RUN_LIMIT)
@pytest.mark.parametrize("name", ["00_start_here", "04_code"])
def test_notebook_runs_from_the_installed_wheel(name, installed, tmp_path):
    path = first_cell.FOLDER / f"{name}.ipynb"
    origin = run_notebook(path, tmp_path, python_path=installed)
    assert Path(origin) == installed / "cascade_kit" / "__init__.py"
    assert rows_of(tmp_path) == ["sft", *([ROWS[name]] if name in ROWS else [])]
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT)
@every_notebook
def test_notebook_runs_alone(path, tmp_path):
    run_notebook(path, tmp_path)
    if path.stem == OWN_MODEL:
        check_own_model(tmp_path)
    else:
        assert rows_of(tmp_path) == ["sft", *([ROWS[path.stem]] if path.stem in ROWS else [])]


def check_own_model(folder: Path) -> None:
    """The run of a model of one's own, and what was exported from it."""
    assert rows_of(folder, "my-model-fast") == ["sft", "math", "code"]
    (exported,) = (folder / "runs" / "my-model-fast").glob("export-*")
    assert sorted(path.name for path in exported.iterdir()) == ["README.md", "adapter", "merged"]


@pytest.mark.timeout(2 * RUN_LIMIT)
def test_own_model_is_trained_and_resumed(tmp_path):
    """After a disconnect the notebook is run again from the top: nothing is trained twice."""
    path = first_cell.FOLDER / f"{OWN_MODEL}.ipynb"
    run_notebook(path, tmp_path)
    check_own_model(tmp_path)
    steps = tmp_path / "runs" / "my-model-fast" / "1-math" / "steps.jsonl"
    written = steps.stat().st_mtime_ns
    shutil.rmtree(next(steps.parents[1].glob("export-*")))
    run_notebook(path, tmp_path)
    check_own_model(tmp_path)
    assert steps.stat().st_mtime_ns == written
