"""Checkpoints: all of it or nothing, the last two, and no byte changed unnoticed."""

import json
import os
import resource
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascade_kit import checkpoint
from cascade_kit.checkpoint import DamagedCheckpoint, newest_checkpoint, write_checkpoint

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1e-8, -0.0])}
FILES = (checkpoint.TENSORS, checkpoint.STATE, checkpoint.MANIFEST)


def write(folder, *steps):
    for step in steps:
        write_checkpoint(folder, step, {n: t + step for n, t in TENSORS.items()}, {"cursor": step})


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    write_checkpoint(tmp_path, 7, TENSORS, {"cursor": [1, 2], "left": {"x": 0.1}})
    found = newest_checkpoint(tmp_path)
    assert (found.step, found.passed_over) == (7, ())
    assert found.state == {"cursor": [1, 2], "left": {"x": 0.1}}
    assert {n: t.tolist() for n, t in found.tensors.items()} == {
        n: t.tolist() for n, t in TENSORS.items()
    }


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "missing") is None


def test_the_last_two_stay_in_order_of_steps(tmp_path):
    write(tmp_path, 5, 10, 15, 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000015", "000100"]
    assert newest_checkpoint(tmp_path).step == 100


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed_and_the_one_before_serves(tmp_path_factory, file, place, bit):
    folder = tmp_path_factory.mktemp("flipped")
    write(folder, 5, 10)
    path = folder / "000010" / file
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    found = newest_checkpoint(folder)
    if found.step == 10:  # white space of the manifest, or the case of a digit
        assert file == checkpoint.MANIFEST
        assert found.tensors["a"].tolist() == (TENSORS["a"] + 10).tolist()
    else:
        assert found.step == 5
        assert len(found.passed_over) == 1 and "000010" in found.passed_over[0]


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named_and_two_damaged_ones_stop(tmp_path, file):
    write(tmp_path, 5, 10)
    (tmp_path / "000010" / file).unlink()
    assert newest_checkpoint(tmp_path).step == 5
    (tmp_path / "000005" / file).unlink()
    with pytest.raises(DamagedCheckpoint, match=f"{file}.*starts again from the stage before"):
        newest_checkpoint(tmp_path)


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    write(tmp_path, 5, 10)
    (tmp_path / "000010" / checkpoint.TENSORS).write_bytes(b"")
    write(tmp_path, 10)
    assert newest_checkpoint(tmp_path).step == 10


def test_what_cannot_be_json_is_refused_before_anything_is_replaced(tmp_path):
    write(tmp_path, 5)
    with pytest.raises(ValueError, match="JSON"):
        write_checkpoint(tmp_path, 10, TENSORS, {"loss": float("nan")})
    assert newest_checkpoint(tmp_path).step == 5
    write(tmp_path, 15)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000005", "000015"]


def test_a_full_disk_loses_nothing_and_leaves_no_rest(tmp_path):
    """The limit on the size of files fails a write as a full disk does, in the middle of it."""
    write(tmp_path, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError):
            write_checkpoint(tmp_path, 10, {"a": torch.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["000005"]
    assert newest_checkpoint(tmp_path).step == 5


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from cascade_kit import checkpoint
calls = 0
def counted(function):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call
os.fsync = counted(os.fsync)
Path.rename = counted(Path.rename)
checkpoint.shutil.rmtree = counted(checkpoint.shutil.rmtree)
checkpoint.write_checkpoint(Path(sys.argv[1]), 15, {"a": torch.ones(3)}, {})
"""


@pytest.mark.parametrize("point", range(1, 8))
def test_killed_at_any_point_of_a_write_leaves_a_whole_checkpoint(tmp_path, point):
    """SIGKILL before every fsync, the rename and the removal of the oldest."""
    write(tmp_path, 5, 10)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(point)], check=False)
    assert done.returncode == -9
    found = newest_checkpoint(tmp_path)
    # Calls 1-4 are fsyncs, 5 is the rename, 6 syncs the renamed name, 7 removes the oldest.
    assert (found.step, found.passed_over) == (15 if point > 5 else 10, ())
    write(tmp_path, 20)
    assert newest_checkpoint(tmp_path).step == 20
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".partial"]


def test_the_format_is_plain(tmp_path):
    path = write_checkpoint(tmp_path, 3, TENSORS, {"cursor": 1})
    assert sorted(os.listdir(path)) == sorted(FILES)
    assert json.loads((path / checkpoint.STATE).read_text()) == {"step": 3, "cursor": 1}
