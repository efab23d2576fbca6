"""The sandbox: what a command gets, what it cannot reach, and that nothing of it stays."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cascade_kit.verifiers import layers, sandbox
from cascade_kit.verifiers.inside import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


def working_layers() -> list[layers.Isolation]:
    """Every layer of this machine, not only the best; attacks are never run without one."""
    found = []
    for layer in layers.candidate_layers():
        try:
            done = sandbox.run_in_layer(layer, [sys.executable, "-c", "print(1)"], {})
        except OSError:
            continue
        if done.stdout == "1\n":
            found.append(layer)
    return found


def layer_id(layer: layers.Isolation) -> str:
    return layer.name + ("-own-user" if layer.own_user else "")


LAYERS = working_layers() if sys.platform == "linux" else []
NAMESPACES = [layer for layer in LAYERS if layer.name == "bubblewrap"]
each_layer = pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
each_namespace_layer = pytest.mark.parametrize("layer", NAMESPACES, ids=layer_id)


def run(layer: layers.Isolation, code: str, **options) -> sandbox.Execution:
    files = {"main.py": textwrap.dedent(code)} | options.pop("files", {})
    return sandbox.run_in_layer(layer, [sys.executable, "main.py"], files, **options)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that any user may enter, unlike pytest's: a layer may run as another user."""
    folder = Path(tempfile.mkdtemp(prefix="passable-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def processes_with(marker: str) -> list[int]:
    """Ids of living processes whose command line holds the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line:
            found.append(int(folder.name))
    return found


def runs(process: int) -> bool:
    """Whether the process exists and is not a dead one that nobody collected yet."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def wait_until_gone(marker: str, seconds: float = 5) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_a_layer_is_found_and_probed_once():
    first = sandbox.isolation()
    assert first is sandbox.isolation()
    assert first.detail
    if LAYERS:
        assert first == LAYERS[0]


@each_layer
def test_files_folder_and_exit_code(layer):
    code = """
        import os, sys
        print(open("data/a.txt").read(), open("b.bin", "rb").read(), sorted(os.listdir(".")))
        open("data/new.txt", "w").write("written")
        sys.exit(3)
    """
    done = run(layer, code, files={"data/a.txt": "text", "b.bin": b"\xff\x00"})
    assert done.stdout == "text b'\\xff\\x00' ['b.bin', 'data', 'main.py']\n"
    assert (done.status, done.returncode) == ("failed", 3)


@each_layer
def test_success_and_streams_are_kept_apart(layer):
    done = run(layer, "import sys; print('out'); print('err', file=sys.stderr)")
    assert (done.status, done.stdout, done.stderr) == ("ok", "out\n", "err\n")
    assert 0 < done.seconds < 60


@pytest.mark.parametrize(
    "names",
    [
        *(["/etc/x"], ["../x"], ["a/../../x"], [""], ["."], ["a\0b"], ["a/.."]),
        *(["a" * 300], ["\ud800"], ["ok", "a", "a/b"], ["a/b/c", "a"]),
    ],
)
def test_file_names_that_cannot_be_below_the_folder_are_refused(names):
    with pytest.raises(ValueError, match="^file .*: (give|rename)"):
        sandbox.run_command([sys.executable], dict.fromkeys(names, ""), allow_unsafe=True)


def test_ordinary_file_names_are_accepted():
    sandbox.checked_names(["a", "b/c.txt", "b/d", "\u00e4 b/..c", "x" * 255])


def test_a_command_that_does_not_exist_is_an_error_of_the_caller():
    if not LAYERS:
        pytest.skip("no layer here")
    with pytest.raises(OSError, match="could not start /no/such/program"):
        sandbox.run_in_layer(LAYERS[0], ["/no/such/program"], {})


@each_layer
def test_environment_is_the_sandbox_s_own(layer, monkeypatch):
    monkeypatch.setenv("CANARY_SECRET", "feathers")
    code = """
        import glob, os
        found = str(dict(os.environ))
        for path in glob.glob("/proc/*/environ"):
            try:
                found += open(path, errors="replace").read()
            except OSError:
                pass
        print("feathers" in found, os.environ.get("GIVEN"))
    """
    done = run(layer, code, env={"GIVEN": "yes"})
    assert done.stdout == "False yes\n"


@each_layer
def test_files_outside_are_hidden_and_safe(layer, tmp_path):
    canary = tmp_path / "canary" / "song.txt"
    canary.parent.mkdir()
    canary.write_text("feathers")
    code = f"""
        import os, shutil
        from pathlib import Path
        canary = Path({str(canary)!r})
        for attempt in (
            canary.read_text,
            lambda: canary.write_text("gone"),
            canary.unlink,
            lambda: (canary.parent / "new.txt").write_text("x"),
            lambda: canary.rename(canary.parent / "moved.txt"),
            lambda: Path("/usr/pwned").write_text("x"),
            lambda: Path("/etc/pwned").write_text("x"),
            lambda: Path({__file__!r}).read_text(),
        ):
            try:
                print("done", attempt())
            except OSError:
                pass
        for change in (lambda: os.chmod(canary, 0o777), lambda: os.utime(canary, (1, 1))):
            try:  # without namespaces these are said to succeed, and do nothing
                change()
            except OSError:
                pass
        shutil.rmtree(canary.parent, ignore_errors=True)
    """
    before = canary.stat()
    done = run(layer, code)
    assert (done.status, done.stdout) == ("ok", "")
    assert canary.read_text() == "feathers"
    assert (canary.stat().st_mode, canary.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert [path.name for path in canary.parent.iterdir()] == ["song.txt"]


@each_layer
def test_no_way_to_the_network_or_to_sockets_of_the_host(layer):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as other:
        name = f"\0canary-{uuid.uuid4()}"
        other.bind(name)
        other.listen()
        code = f"""
            import socket
            for family, address in (
                (socket.AF_INET, ("127.0.0.1", {listener.getsockname()[1]})),
                (socket.AF_UNIX, {name!r}),
            ):
                try:
                    with socket.socket(family) as s:
                        s.settimeout(3)
                        s.connect(address)
                        print("connected", family)
                except OSError as error:
                    print("refused")
        """
        assert run(layer, code).stdout == "refused\nrefused\n"


@each_layer
def test_processes_of_the_host_cannot_be_signalled(layer):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        code = f"""
            import os, signal
            for number in (0, signal.SIGKILL):
                try:
                    os.kill({victim.pid}, number)
                except OSError:
                    print("refused")
        """
        run(layer, code)  # in a process namespace the number may be another, own process
        time.sleep(0.1)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@each_layer
def test_nothing_is_left_running(layer):
    marker = f"marker-{uuid.uuid4()}"
    code = f"""
        import os, subprocess, sys
        sleeper = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", sleeper, {marker!r}], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", sleeper, {marker!r}])
            os._exit(0)
        os.wait()
        print("started")
    """
    done = run(layer, code)
    assert done.stdout == "started\n"
    assert done.seconds < 30
    assert wait_until_gone(marker, 2) == []


@each_layer
def test_many_processes_are_refused_or_ended(layer):
    code = """
        import os, time
        for _ in range(300):
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
        time.sleep(5)
        print("all started")
    """
    done = run(layer, code)
    assert "all started" not in done.stdout
    assert done.seconds < 30


@each_layer
def test_memory_of_one_process_is_bounded(layer):
    done = run(layer, "x = [bytearray(1 << 28) for _ in range(24)]", memory_mb=512)
    assert done.status == "memory"


@each_layer
def test_memory_of_all_processes_together_is_bounded(layer):
    code = """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                x = bytearray(200 << 20)
                for i in range(0, len(x), 4096):
                    x[i] = 1
                time.sleep(30)
        time.sleep(30)
    """
    assert run(layer, code, memory_mb=512).status == "memory"


@each_namespace_layer
def test_file_space_is_bounded(layer):
    code = """
        for folder in (".", "/tmp", "/dev/shm"):
            try:
                for number in range(40):
                    open(f"{folder}/big{number}", "wb").write(bytes(32 << 20))
                print("wrote it all")
            except OSError as error:
                print(error.strerror)
    """
    done = run(layer, code, memory_mb=1024)
    assert done.stdout == "No space left on device\n" * 3


@each_layer
def test_one_file_is_bounded(layer):
    done = run(layer, "open('big', 'wb').write(bytes(300 << 20))", memory_mb=1024)
    assert done.status == "failed"
    assert "File too large" in done.stderr or "No space left" in done.stderr


@each_layer
def test_output_is_bounded(layer):
    done = run(layer, "while True: print('x' * 1000)", output_kb=64)
    assert done.status == "output"
    assert len(done.stdout) <= 64 << 10


@each_layer
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True:\n    try: time.sleep(1)\n"
        "    except BaseException: pass",
        "import os\nwhile True:\n    if os.fork() == 0:\n        x = sum(range(10**6))\n"
        "        os._exit(0)\n    os.wait()",
    ],
    ids=["burns", "sleeps", "ignores signals", "lets children burn"],
)
def test_time_is_bounded(layer, code):
    done = run(layer, code, cpu_seconds=1)
    assert done.status == "timeout"
    assert done.seconds < 25


@each_layer
def test_a_crash_is_a_failure_with_its_signal(layer):
    done = run(layer, "import ctypes; ctypes.string_at(0)")
    assert (done.status, done.returncode) == ("failed", -signal.SIGSEGV)


@each_layer
def test_calls_that_reach_beyond_the_sandbox_are_refused(layer):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        calls = {
            "unshare": lambda: libc.unshare(0x10000000),
            "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
            "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0),
            "setns": lambda: libc.setns(0, 0),
            "chroot": lambda: libc.chroot(b"."),
            "shmget": lambda: libc.shmget(0, 4096, 0o1600),
            "memfd": lambda: libc.memfd_create(b"x", 0),
            "clone": lambda: libc.syscall(56 if os.uname().machine == "x86_64" else 220,
                                          0x10000000 | 17, 0, 0, 0, 0),
            "setuid": lambda: os.getuid() and libc.setuid(0) or -1,
        }
        for name, call in calls.items():
            if call() != -1:
                print("allowed", name)
    """
    done = run(layer, code)
    assert (done.status, done.stdout) == ("ok", "")


@each_namespace_layer
def test_the_supervisor_can_be_neither_killed_nor_read(layer):
    code = """
        import os, signal
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
            try:
                os.kill(1, number)
            except PermissionError:
                pass
        for name in ("mem", "environ", "fd/0", "fd/4", "fd/5", "fd/6"):
            for mode in ("rb", "r+b"):
                try:
                    open(f"/proc/1/{name}", mode).read(1)
                    print("opened", name, mode)
                except OSError:
                    pass
        print("alive")
    """
    done = run(layer, code)
    assert (done.status, done.stdout) == ("ok", "alive\n")


@each_namespace_layer
def test_the_system_is_read_only_and_small(layer):
    code = """
        import os
        for path in ("/", "/usr", "/dev", "/proc/sys/kernel", "/proc", "/sys"):
            try:
                open(path + "/x", "w")
                print("wrote", path)
            except OSError:
                pass
        print(sorted(os.listdir("/proc/sys")), os.path.exists("/etc/passwd"), os.getpid())
    """
    assert run(layer, code).stdout == "[] False 2\n"


@each_layer
def test_pytest_runs_inside(layer):
    files = {"test_inside.py": "import pytest\n\ndef test_it():\n    assert 6 * 7 == 42\n"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = sandbox.run_in_layer(layer, command, files, cpu_seconds=30)
    assert done.status == "ok", done.stdout + done.stderr
    assert "1 passed" in done.stdout


@each_layer
def test_an_extra_folder_can_be_read_but_not_changed(layer, tmp_path):
    (tmp_path / "given.txt").write_text("given")
    path = str(tmp_path / "given.txt")
    code = f"""
        print(open({path!r}).read())
        try:
            open({path!r}, "w").write("changed")
        except OSError:
            print("refused")
    """
    tmp_path.chmod(0o755)
    assert run(layer, code, extra_read_only=[tmp_path]).stdout == "given\nrefused\n"
    assert (tmp_path / "given.txt").read_text() == "given"


@pytest.fixture
def asking(tmp_path):
    """Starts a process that asks for a command of two minutes, which shows up as `marker`."""
    hosts = []

    def start(layer: layers.Isolation, marker: str) -> subprocess.Popen:
        code = f"""
            import sys
            from cascade_kit.verifiers import layers, sandbox
            layer = layers.Isolation({layer.name!r}, "", {layer.program!r}, {layer.own_user!r})
            command = [sys.executable, "-c", "import time; time.sleep(120)", sys.stdin.read()]
            sandbox.run_in_layer(layer, command, {{}}, cpu_seconds=100)
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        environment = paths() | {"TMPDIR": str(tmp_path)}
        hosts.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))
        hosts[-1].stdin.write(marker.encode())
        hosts[-1].stdin.close()
        return hosts[-1]

    yield start
    for host in hosts:
        host.kill()
        host.wait()


def wait_for(condition, seconds: float):
    """The first true value of `condition()`, or its last value after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


@each_layer
def test_the_command_dies_with_the_process_that_asked_for_it(layer, asking, tmp_path):
    marker = f"marker-{uuid.uuid4()}"
    host = asking(layer, marker)
    assert wait_for(lambda: processes_with(marker), 60)
    host.kill()
    assert wait_until_gone(marker, 30) == []
    assert wait_for(lambda: not list(tmp_path.iterdir()), 30)


@each_layer
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1])
def test_a_process_that_dies_while_the_command_starts_leaves_nothing(
    layer, delay, asking, tmp_path
):
    marker = f"marker-{uuid.uuid4()}"
    host = asking(layer, marker)
    started = wait_for(lambda: list(supervise.descendants(host.pid)), 60)
    assert started
    time.sleep(delay)
    host.kill()
    assert wait_for(lambda: not any(map(runs, started)), 30)
    assert wait_until_gone(marker, 30) == []
    assert wait_for(lambda: not list(tmp_path.iterdir()), 30)


@each_layer
def test_threads_may_use_it_at_the_same_time(layer):
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = run(layer, f"print({number} ** 2)").stdout.strip()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: str(number**2) for number in range(6)}


def test_descendants_are_found_with_and_without_the_kernel_s_list(monkeypatch):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while len(list(supervise.descendants(child.pid))) < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        listed = list(supervise.descendants(child.pid))
        monkeypatch.setattr(supervise.os.path, "exists", lambda path: False)
        assert list(supervise.descendants(child.pid)) == listed
        assert len(listed) == 1
    finally:
        child.communicate(b"\n")


def test_without_a_layer_running_needs_consent(monkeypatch):
    none = layers.Isolation("none", "nothing works here")
    monkeypatch.setattr(sandbox, "isolation", lambda: none)
    command = [sys.executable, "-c", "print(6 * 7)"]
    with pytest.raises(sandbox.IsolationUnavailable, match="bubblewrap.*allow_unsafe=True"):
        sandbox.run_command(command, {})
    done = sandbox.run_command(command, {}, allow_unsafe=True)
    assert (done.status, done.stdout) == ("ok", "42\n")
    slow = [sys.executable, "-c", "while True: pass"]
    assert sandbox.run_command(slow, {}, cpu_seconds=1, allow_unsafe=True).status == "timeout"


def paths() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}


def command_as_nobody(program: str) -> list[str]:
    """A command line that runs as user `nobody`, with this Python in its reach.

    Folders on the way to Python that only root may enter are replaced by passable empty ones.
    """
    root = Path(__file__).resolve().parents[1]
    needed = [*layers.python_folders(), str(root)]
    closed = {
        str(parent)
        for path in needed
        for parent in Path(path).parents
        if not parent.stat().st_mode & 1
    }
    command = [program, "--dev-bind", "/", "/", "--cap-add", "ALL"]
    for folder in sorted(closed):
        command += ["--perms", "0755", "--tmpfs", folder]
    hidden = [path for path in needed if any(path.startswith(top + "/") for top in closed)]
    for path in hidden:
        for parent in reversed(Path(path).parents):
            if any(str(parent).startswith(top + "/") for top in closed):
                command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", path, path]
    become = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
    become += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [*command, "--", sys.executable, "-c", become]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", ["test_sandbox.py", "test_python_tests.py"])
def test_all_of_it_as_an_ordinary_user(name):
    program = next(layers.bubblewrap_programs(), None)
    if program is None or "bubblewrap-own-user" not in map(layer_id, LAYERS):
        pytest.skip("bubblewrap does not work here")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are root's alone
        os.chmod(folder, 0o777)
        command = command_as_nobody(program)
        command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/nobody"]
        command += [str(Path(__file__).with_name(name))]
        environment = paths() | {"HOME": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
