"""Write into every notebook what all of them share: the Colab badge and the setup cell.

    make notebooks

It also takes away outputs, execution counts and widget state, which are never committed. The public
address of the repository stands once, in pyproject.toml. Run it again after a change there or here;
tests/test_notebooks.py compares.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
BADGE = (
    "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name})"
)
# Colab already holds torch, IPython and ipywidgets in memory: `pip install` without `--upgrade`
# leaves them alone, as their versions satisfy the kit.
SETUP = """\
# Setup, the same in every notebook. On Colab it installs the kit, elsewhere it only looks for it.
import importlib.util
import sys
from pathlib import Path

if "google.colab" in sys.modules and not importlib.util.find_spec("cascade_kit"):
    places = [Path("/content"), Path.cwd()]  # a wheel or a folder that was uploaded goes first
    wheels = [path for place in places for path in sorted(place.glob("cascade_kit-*.whl"))]
    folders = [p.parent for q in places for p in q.glob("cascade[_-]kit*/pyproject.toml")]
    kit = [*wheels[-1:], *folders, "git+ADDRESS"][0]
    %pip install -q "{kit}"
if not importlib.util.find_spec("cascade_kit"):
    raise ImportError(
        "cascade_kit is not here. On Colab, upload its wheel, cascade_kit-*.whl, and run this cell "
        "again. Elsewhere, start JupyterLab by `make lab` in the clone."
    )

import torch

from cascade_kit import settings
from cascade_kit.cascade import versions

device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
mode = "fast, only to try the cells" if settings.fast() else "normal"
print(", ".join(f"{name} {version}" for name, version in versions().items()))
print(f"device: {device}; mode: {mode}; runs are written to {settings.notebook_folder()}")"""


def main() -> int:
    address = public_address(FOLDER.parent / "pyproject.toml")
    for path in notebook_paths():
        text = written(nbformat.read(path, as_version=4), path.name, address)
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {path.name}")
    return 0


def notebook_paths() -> list[Path]:
    """The notebooks in their order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))


def public_address(pyproject: Path) -> str:
    """ "https://github.com/OWNER/NAME" of the repository."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"].rstrip("/")


def badge(name: str, address: str) -> str:
    """The line that opens a notebook on Colab."""
    return BADGE.format(repository=address.removeprefix("https://github.com/"), name=name)


def setup_source(address: str) -> str:
    return SETUP.replace("ADDRESS", address)


def written(notebook: Any, name: str, address: str) -> str:
    """The text of a notebook with badge and setup cell, and without what a run left in it.

    Raises ValueError if it does not begin with a Markdown cell.
    """
    if not notebook.cells or notebook.cells[0].cell_type != "markdown":
        raise ValueError(f"{name} must begin with a Markdown cell that holds its title")
    title = notebook.cells[0]
    lines = title.source.split("\n")
    if lines[0].startswith("[![Open In Colab]"):
        lines = lines[1:]
    title.source = "\n".join([badge(name, address), "", *lines]).replace("\n\n\n", "\n\n", 1)
    rest = [cell for cell in notebook.cells[1:] if cell.id != "setup"]
    setup = nbformat.v4.new_code_cell(setup_source(address), id="setup")
    notebook.cells = [title, setup, *rest]
    for cell in notebook.cells:
        clean(cell)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return nbformat.writes(notebook, indent=1, ensure_ascii=False).rstrip("\n") + "\n"


def clean(cell: Any) -> None:
    """Take away what belongs to a run or to an editor; tags stay."""
    tags = cell.metadata.get("tags")
    cell.metadata = {"tags": tags} if tags else {}
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None


if __name__ == "__main__":
    sys.exit(main())
