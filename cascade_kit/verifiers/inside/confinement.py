"""What a process gives up, for good, just before it runs model text (Linux; needs no privilege).

Limits bound what one process may take, capabilities and the system-call filter what it may ask the
kernel for, Landlock which files it may touch. Namespaces are bubblewrap's part (see sandbox.py).
"""

import ctypes
import functools
import math
import os
import platform
import struct
import sys
from collections.abc import Sequence

# (x86_64, aarch64) numbers of system calls that no answer needs: they reach other processes or
# kernel objects that outlive the process, or widen the kernel's attack surface.
DENIED_CALLS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Memory that no process limit counts and that outlives its maker:
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "modify_ldt": (154, None),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
# Without namespaces these reach the network and the user's other processes.
SIGNAL_CALLS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
DENIED_WITHOUT_NAMESPACES = {
    "socket": (41, 198),
    # What Landlock does not look at: owners and attributes of files, and news about them.
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}
# Nor at modes and times. These succeed without doing anything: copying a file must not fail.
PRETENDED_WITHOUT_NAMESPACES = {
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
LEAST_LANDLOCK = 3  # before, a file could be truncated without the right to write it
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH value
CLONE = (56, 220)
CLONE3 = (435, 435)
PRLIMIT64 = (302, 261)
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID_NODEV = 2 | 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECCOMP = 1, 4, 24, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47


@functools.cache
def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """`result`, or an OSError that names the call when it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    checked(c_library().prctl(option, *padded), f"prctl({option})")


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends.

    Raises SystemExit when `parent`, its process, ended before the kernel was asked.
    """
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(1)


def set_limits(
    *, memory_mb: int, cpu_seconds: float, file_mb: int, open_files: int, processes: int | None
) -> None:
    """Hard limits of this process and its children: address space, CPU, file size, open files.

    Few open files also bound what lies in the buffers of pipes and sockets, which no other limit
    counts.
    """
    import resource

    limits = {
        "RLIMIT_AS": memory_mb << 20,
        # One second above the supervisor's own count, which covers the whole tree of processes.
        "RLIMIT_CPU": math.ceil(cpu_seconds) + 1,
        "RLIMIT_FSIZE": file_mb << 20,
        "RLIMIT_NOFILE": open_files,
        "RLIMIT_CORE": 0,
    }
    if processes is not None:
        limits["RLIMIT_NPROC"] = processes
    for name, value in limits.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        _, hard = resource.getrlimit(number)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except ValueError:  # macOS refuses an address-space limit below what is mapped already
            continue


def drop_capabilities() -> None:
    """Give up every capability, so that not even an exec as (namespace) root brings one back."""
    library = c_library()
    for capability in range(64):
        if library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one that this kernel knows, or not privileged at all
    library.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    checked(library.capset(header, bytes(24)), "capset")


@functools.cache
def system_call_filter(*, namespaces: bool) -> bytes | None:
    """A seccomp program that answers EPERM to the denied calls; None on an unknown machine."""
    if platform.machine() not in MACHINES:
        return None
    column, architecture = MACHINES[platform.machine()]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    refuse, missing, pretend = 0x00050001, 0x00050026, 0x00050000  # EPERM, ENOSYS, no error
    program = [
        (load, 0, 0, 4),  # seccomp_data.arch
        (equal, 1, 0, architecture),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),  # seccomp_data.nr
        (at_least, 0, 1, 0x40000000),  # the x32 table would go round the numbers below
        (answer, 0, 0, kill),
    ]
    denied, pretended = dict(DENIED_CALLS), {}
    if not namespaces:
        denied |= DENIED_WITHOUT_NAMESPACES
        pretended = PRETENDED_WITHOUT_NAMESPACES
        if landlock_version() < 6:  # from 6 on Landlock itself keeps signals inside
            denied |= SIGNAL_CALLS
    for calls, result in ((denied, refuse), (pretended, pretend)):
        numbers = [pair[column] for pair in calls.values() if pair[column] is not None]
        for number in numbers:
            program += [(equal, 0, 1, number), (answer, 0, 0, result)]
    # clone3 hides its flags behind a pointer; "no such call" makes the C library use clone.
    program += [(equal, 0, 1, CLONE3[column]), (answer, 0, 0, missing)]
    program += [
        (equal, 0, 3, CLONE[column]),
        (load, 0, 0, 16),  # the lower half of the first argument
        (any_bit, 0, 1, NEW_NAMESPACES),
        (answer, 0, 0, refuse),
        (load, 0, 0, 0),
    ]
    if not namespaces:  # limits of this process only, not of the user's other ones
        program += [
            (equal, 0, 3, PRLIMIT64[column]),
            (load, 0, 0, 16),
            (equal, 1, 0, 0),
            (answer, 0, 0, refuse),
        ]
    program.append((answer, 0, 0, allow))
    return b"".join(struct.pack("HBBI", *step) for step in program)


def filter_system_calls(*, namespaces: bool) -> None:
    """Install the filter for this process and all its children; it cannot be taken off."""
    program = system_call_filter(namespaces=namespaces)
    if program is None:
        return
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    text = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    )
    mode_filter = 2
    checked(
        c_library().prctl(PR_SET_SECCOMP, mode_filter, ctypes.byref(header), 0, 0),
        "prctl(PR_SET_SECCOMP)",
    )


def landlock_version() -> int:
    """The Landlock ABI that the kernel offers, 0 when there is none."""
    return max(0, c_library().syscall(444, None, 0, 1))


def restrict_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Landlock: from now on only these paths exist for reading, and only those for writing."""
    version = landlock_version()
    if version < LEAST_LANDLOCK:
        raise OSError(f"Landlock version {version} here, {LEAST_LANDLOCK} is needed")
    library = c_library()
    # Rights by ABI: 15 up to truncate (3), then device ioctl (5).
    rights = (1 << (15 + (version >= 5))) - 1
    network, scopes = 3 * (version >= 4), 3 * (version >= 6)
    words = 1 + (version >= 4) + (version >= 6)
    attributes = struct.pack(f"{words}Q", *(rights, network, scopes)[:words])
    ruleset = checked(library.syscall(444, attributes, len(attributes), 0), "landlock ruleset")
    read = 1 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
    on_file = 1 | 1 << 1 | 1 << 2 | (rights & (1 << 14 | 1 << 15))
    for paths, wanted in ((readable, read), (writable, rights)):
        for path in paths:
            if not os.path.exists(path):
                continue
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = wanted if os.path.isdir(path) else wanted & on_file
            rule = struct.pack("=Qi", allowed, handle)
            checked(library.syscall(445, ruleset, 1, rule, 0), f"landlock rule for {path}")
            os.close(handle)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    checked(library.syscall(446, ruleset, 0), "landlock")
    os.close(ruleset)
