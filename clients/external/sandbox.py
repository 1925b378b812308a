"""Shut a process off before it runs foreign code: no network, no other processes, no keys, no file to write.

A program of its own runs this, in an interpreter that need not have precad: it imports the standard library alone, and
takes Python 3.10. Each step that the kernel refuses is left out and not reported as done.

    wrapper    namespaces of user, network, mounts, processes; hides folders and sockets; makes the rest read-only
    worker     a /proc of its own, no capabilities, limits, Landlock; only then foreign code

Neither a network namespace nor a read-only mount closes a socket or pipe with a name among files: Docker's socket would
lead out. Sockets that are there at the start are hidden. What holds neither socket nor pipe in /run stays. A
daemon that starts again makes its socket where nobody here sees it. Landlock (Linux 5.13) closes named pipes to
writers. From its ABI 9 on (Linux 7.1) it closes sockets, too, that others make later. On an older kernel a socket that
is made later stays open, if it is outside /run or in a folder of /run that stayed.

No namespace holds devices: a terminal is a file to whoever may open it, and root may open disks. So /dev keeps those
that calculate, or lead nowhere. Nor does one hold sockets between virtual machines: a filter of calls (seccomp) does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

NETWORK, PROCESSES, KEYS, FILES, PIPES, LATER_SOCKETS = 1, 2, 4, 8, 16, 32
"""Bits that name what a process is shut off from: the network, other processes, keys, files to write. By Landlock
alone: named pipes to write to, and sockets that others make later."""
ALL = NETWORK | PROCESSES | KEYS | FILES
"""The bits that namespaces give."""

_NEW_USER, _NEW_NET, _NEW_PID, _NEW_MOUNTS, _NEW_IPC = 0x10000000, 0x40000000, 0x20000000, 0x00020000, 0x08000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _HERE, _AND_BELOW, _ATTR_READ_ONLY = 442, -100, 0x8000, 1
_SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES, _DROP_BOUNDING, _LAST_CAPABILITY = 4, 38, 24, 63
_CAPABILITY_VERSION = 0x20080522
_RUNTIME = ("/run", "/var/run")
"""Where other programs keep their sockets and pipes. A container sees sockets there that /proc does not name."""
_DEVICES = frozenset(
    (
        *("null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"),
        *("dri", "kfd", "dxg", "accel"),
    )
)
_DEVICES_BEGIN = "nvidia"
"""Entries of /dev that stay: those that lead nowhere, links to a process's own, and what calculates."""
_SECCOMP, _FILTER, _VSOCK = 22, 2, 40
_OF_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""By machine, how the kernel's filters call it, and the number of the call that makes a socket."""
_FAMILIES = (1, 2, 10, 16)
"""Sockets that namespaces hold: of files, the internet's, the kernel's own."""
_IO_URING, _FOREIGN_CALLS = 425, 0x40000000
"""The call that makes a ring, by which sockets are made too; from where on numbers are of another kind of program."""
_LOAD, _IS, _IS_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
"""Steps of the kernel's filters of calls (classic BPF)."""
_CALL, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
"""Where a filter finds these (`struct seccomp_data`)."""
_ALLOW, _NO_CALL, _NO_FAMILY = 0x7FFF0000, 0x50026, 0x50061
"""Ends of a filter: make the call; or fail as a kernel without it (ENOSYS), or without the family (EAFNOSUPPORT)."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _VERSION, _PATH_BENEATH = 444, 445, 446, 1, 1
_WRITE_FILE, _RESOLVE_UNIX, _KNOWS_SOCKETS = 1 << 1, 1 << 16, 9
"""Landlock's rights to open a file or pipe for writing, and to reach a socket by name; the ABI that has the latter."""
_INNER_ID = 1000
"""Nobody in particular: not 0, or programs that the worker starts would be given capabilities."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def shut_off(
    hidden: Iterable[str],
    home: str,
    memory_bytes: int,
    *,
    needed: Sequence[str] = (),
    runtime: Sequence[str] = _RUNTIME,
) -> int:
    """Give this process, and those it forks, namespaces of their own. Return the bits of what that shut off.

    hidden: absolute folders and files that are not to be read.

    home: an empty folder, which stays writable, in memory. needed: folders that stay wherever they are, as it does.

    runtime: folders of other programs' sockets and pipes.

    The process must have one thread. Without namespaces nothing changes, and the result is 0.
    """
    user, group, open_doors = os.geteuid(), os.getegid(), doors(runtime)
    if _LIBC.unshare(_NEW_USER | _NEW_NET | _NEW_PID | _NEW_MOUNTS | _NEW_IPC) != 0:
        return 0
    with suppress(OSError):
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_INNER_ID} {user} 1")
        _write("/proc/self/gid_map", f"{_INNER_ID} {group} 1")
    found = PROCESSES
    if not _mount(None, "/", None, _RECURSIVE | _PRIVATE):
        return found
    for folder in dict.fromkeys(map(os.path.realpath, runtime)):
        _freeze(folder, open_doors, [home, *needed])
    has_few_devices = _cover("/dev", _stays_in_dev)
    for bit, paths in ((NETWORK, open_doors), (KEYS, hidden)):
        is_hidden = [_hide(path) for path in paths]
        if all(is_hidden):
            found |= bit
    if not _close_families():
        found &= ~NETWORK
    if _make_read_only(home, memory_bytes) and has_few_devices:
        found |= FILES
    return found


def doors(folders: Iterable[str] = _RUNTIME) -> set[str]:
    """Return the names of other programs' sockets, and of the sockets and pipes below `folders` and /dev."""
    found = set()
    with suppress(OSError), open("/proc/self/net/unix", errors="surrogateescape") as lines:
        found = {words[7].rstrip("\n") for line in lines if len(words := line.split(maxsplit=7)) == 8}
    for folder in (*folders, "/dev"):
        for place, _, names in os.walk(folder):
            found.update(os.path.join(place, name) for name in names)
    return {path for path in found if os.path.isabs(path) and _is_door(path)}


def _is_door(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _freeze(folder: str, open_doors: Iterable[str], needed: Iterable[str]) -> None:
    """Put a folder in memory over this one, with its entries that hold no door or something needed.

    What comes later is not in it. Where that cannot be done, the doors in it are hidden one by one.
    """
    places, stays = ([os.path.realpath(path) for path in paths] for paths in (open_doors, needed))
    if os.path.isdir(folder) and folder != "/":
        _cover(folder, lambda path: _holds(path, stays) or not _holds(path, places))


def _cover(folder: str, stays: Callable[[str], bool]) -> bool:
    """Put a folder in memory over this one, with those of its entries that stay. Return whether that could be done."""
    kept: list[tuple[os.DirEntry[str], int]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if stays(entry.path):
                kept.append((entry, os.open(entry.path, os.O_PATH | os.O_NOFOLLOW)))
    is_covered = _mount("tmpfs", folder, "tmpfs", _NO_SUID | _NO_DEVICES, "size=4m,mode=0755")
    for entry, descriptor in kept:
        with suppress(OSError):
            if is_covered:
                _put_back(entry, descriptor)
        os.close(descriptor)
    return is_covered


def _stays_in_dev(path: str) -> bool:
    name = os.path.basename(path)
    return name in _DEVICES or name.startswith(_DEVICES_BEGIN)


def _close_families() -> bool:
    """Make no socket of a family that no namespace holds, by a filter of calls. Return whether none can be made.

    Neither by the ring of the kernel's that makes sockets without that call, nor by calls of another machine's numbers.
    """
    machine, call = _OF_MACHINES.get(os.uname().machine, (0, 0))
    if machine and struct.calcsize("P") == 8:
        n = len(_FAMILIES)
        steps = [  # (what, steps to skip if it is so, if not, value)
            (_LOAD, 0, 0, _MACHINE),
            (_IS, 0, n + 6, machine),  # else no call
            (_LOAD, 0, 0, _CALL),
            (_IS_AT_LEAST, n + 4, 0, _FOREIGN_CALLS),  # no call
            (_IS, n + 3, 0, _IO_URING),  # no call
            (_IS, 0, n + 3, call),  # else allow
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            *((_IS, n + 1 - i, 0, family) for i, family in enumerate(_FAMILIES)),  # allow
            (_RETURN, 0, 0, _NO_FAMILY),
            (_RETURN, 0, 0, _NO_CALL),
            (_RETURN, 0, 0, _ALLOW),
        ]
        code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
        _LIBC.prctl(_SECCOMP, _FILTER, struct.pack("<H6xQ", len(steps), ctypes.addressof(code)), 0, 0)
    made = _LIBC.socket(_VSOCK, 1, 0)
    if made >= 0:
        os.close(made)
    return bool(made < 0)


def _holds(folder: str, paths: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for path in paths)


def _put_back(entry: os.DirEntry[str], descriptor: int) -> None:
    """Make an entry again that a mount has covered; one that cannot be made again stays away."""
    if entry.is_symlink():
        os.symlink(os.readlink("", dir_fd=descriptor), entry.path)
        return
    if entry.is_dir():
        os.mkdir(entry.path)
    else:
        os.close(os.open(entry.path, os.O_WRONLY | os.O_CREAT))
    if not _mount(f"/proc/self/fd/{descriptor}", entry.path, None, _BIND | _RECURSIVE):
        os.rmdir(entry.path) if entry.is_dir() else os.unlink(entry.path)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _hide(path: str) -> bool:
    """Put an empty folder over a folder, and an empty device over a file. Return whether it is hidden, or not there."""
    path = os.path.realpath(path)
    if os.path.isdir(path):
        flags = _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC
        return _mount("tmpfs", path, "tmpfs", flags, "size=4k,mode=0000")
    return not os.path.exists(path) or _mount("/dev/null", path, None, _BIND)


def _make_read_only(home: str, memory_bytes: int) -> bool:
    """Make all files read-only, but for `home` and /dev/shm, which are in memory."""
    attributes = struct.pack("<QQQQ", _ATTR_READ_ONLY, 0, 0, 0)
    if _LIBC.syscall(_MOUNT_SETATTR, _HERE, b"/", _AND_BELOW, attributes, ctypes.c_size_t(len(attributes))) != 0:
        return False
    flags, options = _NO_SUID | _NO_DEVICES, f"size={memory_bytes},mode=0700"
    if os.path.isdir("/dev/shm"):  # noqa: S108 - not a file of ours: where libraries share memory between processes
        _mount("tmpfs", "/dev/shm", "tmpfs", flags, options)  # noqa: S108
    return _mount("tmpfs", home, "tmpfs", flags, options)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> bool:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    data = None if options is None else options.encode()
    return bool(_LIBC.mount(*words, ctypes.c_ulong(flags), data) == 0)


def confine(granted: int, home: str, memory_bytes: int) -> int:
    """Bound this process, forked after `shut_off`, and take its capabilities. What it forks inherits both.

    Return the bits of what that shut off beyond `granted`.

    granted: the result of `shut_off`. Without a namespace of its own, a mount would be everybody's. home: what it may
    write to.
    """
    if granted & KEYS:
        # of its own processes alone; root, whatever it may do here, would else write the kernel's settings
        _mount("proc", "/proc", "proc", _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC)
    for number in range(_LAST_CAPABILITY + 1):
        _LIBC.prctl(_DROP_BOUNDING, number, 0, 0, 0)
    _LIBC.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    closed = close_doors([home, "/dev", "/proc/self/fd/1"]) if granted & FILES else 0
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    _LIBC.capset(header, bytes(24))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_FSIZE, memory_bytes)
    _limit(resource.RLIMIT_NOFILE, 4096)
    return closed


def close_doors(writable: Iterable[str]) -> int:
    """Open nothing for writing but what is below these, pipes included, and no socket of others, by Landlock.

    Does what the kernel knows of it, and returns the bits of that. This process must have given up new privileges.
    """
    version = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return 0
    handled = struct.pack("<Q", _WRITE_FILE | (_RESOLVE_UNIX if version >= _KNOWS_SOCKETS else 0))
    rules = _LIBC.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return 0
    for path in writable:
        with suppress(OSError):
            below = os.open(path, os.O_PATH)
            _LIBC.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", _WRITE_FILE, below), 0)
            os.close(below)
    is_held = _LIBC.syscall(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    if not is_held:
        return 0
    return PIPES | (LATER_SOCKETS if version >= _KNOWS_SOCKETS else 0)


def hide_this_process() -> None:
    """Keep this process's memory and environment from others of the same user, whom no namespace keeps from it."""
    _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _limit(which: int, most: int) -> None:
    """Lower a limit; one that is lower stays."""
    hard = resource.getrlimit(which)[1]
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))
