"""A process without network and with a read-only file system, by namespaces of Linux.

The whole command runs in it, with all its worker processes, because the target is loaded in several
of them. Only the folders of its results can be written to. There is no weaker mode: if the platform
does not allow it, an error says so.

A process with several threads cannot enter new namespaces, and importing numpy starts threads. The
command therefore replaces itself by this file as a program, which enters the sandbox and then
replaces itself by the command again.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

# Flags of unshare(2): mounts, System V IPC, users, network.
_NAMESPACES = 0x00020000 | 0x08000000 | 0x10000000 | 0x40000000
_BIND = 4096  # MS_BIND of mount(2)
_READ_ONLY = 1  # MS_RDONLY of mount(2), MOUNT_ATTR_RDONLY of mount_setattr(2)
_NO_DEVICES = 4  # MOUNT_ATTR_NODEV
_PRIVATE = 1 << 18  # MS_PRIVATE: mounts are not seen outside
_RECURSIVE = 0x8000  # AT_RECURSIVE
_CURRENT_FOLDER = -100  # AT_FDCWD
_MOUNT_SETATTR = 442  # number of the system call on every architecture, since Linux 5.12
_DROP_BOUNDING = 24  # PR_CAPBSET_DROP
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
_MEMORY = "/dev/shm"  # replaced by an empty file system in memory, which is also used for TMPDIR
_SOCKETS = "/run"  # services listen there, which can be reached without a network
_SEPARATOR = "--"  # between the places that can be written to and the command
_MISTAKE = 2  # exit code
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*")


class SandboxError(ValueError):
    """The platform does not allow a sandbox."""


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    ]


def in_sandbox() -> bool:
    """Whether this process has no network, a read-only root and no privileges."""
    if not sys.platform.startswith("linux"):
        return False
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(("CapBnd", "CapPrm", "NoNewPrivs"))
    )
    unprivileged = int(status["CapBnd"], 16) == int(status["CapPrm"], 16) == 0
    read_only = bool(os.statvfs("/").f_flag & os.ST_RDONLY)
    alone = [name for _, name in socket.if_nameindex()] == ["lo"]
    return unprivileged and read_only and alone and int(status["NoNewPrivs"]) == 1


def require_sandbox(writable: Iterable[Path]) -> None:
    """Return if this process is in a sandbox; otherwise start its command again in one.

    Args:
        writable: Files and folders that exist and can be written to.
    """
    if in_sandbox():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    places = [str(path.resolve()) for path in writable]
    again = [sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, [sys.executable, "-I", __file__, *places, _SEPARATOR, *again])


def _launch(words: list[str]) -> NoReturn:
    """Enter the sandbox and become the command after the separator."""
    number = words.index(_SEPARATOR)
    try:
        enter_sandbox(map(Path, words[:number]))
    except SandboxError as error:
        sys.stderr.write(f"Error: {error}\n")
        raise SystemExit(_MISTAKE) from None
    command = words[number + 1 :]
    os.execv(command[0], command)


def enter_sandbox(writable: Iterable[Path]) -> None:
    """Put this process and those that it will start into a sandbox, for the rest of their life.

    There is no network. Every file system is read-only, except `writable` and a new one in memory
    for temporary files. Devices other than random numbers and GPUs cannot be opened. Privileges
    that could undo this are given up.

    Args:
        writable: Files and folders that exist and can be written to.

    Raises:
        SandboxError: It is not Linux, user namespaces are not allowed, or there are other threads.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(_message(f"it needs Linux, and this is {sys.platform}"))
    try:
        _isolate([str(path.resolve()) for path in writable])
    except OSError as error:
        raise SandboxError(_message(str(error))) from error
    os.environ["TMPDIR"] = _MEMORY


def _message(reason: str) -> str:
    return (
        f"--sandbox is not available here: {reason}. It needs Linux 5.12 with user namespaces for "
        "all users. Leave it out for a target that you trust, or use a container without network."
    )


def _isolate(writable: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid()
    group = os.getgid()
    _check(libc.unshare(_NAMESPACES), "new namespaces are not permitted")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    devices = list(_devices())
    for path in (*writable, *devices):
        _mount(libc, path, path, "", _BIND, "")
    _change(libc, "/", set_flags=_READ_ONLY | _NO_DEVICES, at=_RECURSIVE)
    for path in writable:
        _change(libc, path, clear_flags=_READ_ONLY)
    for path in devices:
        _change(libc, path, clear_flags=_NO_DEVICES)
    _mount(libc, "tmpfs", _MEMORY, "tmpfs", _NO_DEVICES, "mode=1777")
    if Path(_SOCKETS).is_dir():
        _mount(libc, "tmpfs", _SOCKETS, "tmpfs", _NO_DEVICES | _READ_ONLY, "size=4k")
    os.chdir(Path.cwd())  # again, through the new mounts
    _give_up_privileges(libc)


def _devices() -> Iterator[str]:
    for name in _DEVICES:
        for path in Path("/dev").glob(name):
            if path.is_char_device():
                yield str(path)


def _mount(libc: ctypes.CDLL, source: str, place: str, kind: str, flags: int, options: str) -> None:
    words = (source.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags))
    _check(libc.mount(*words, options.encode()), f"{place} cannot be mounted")


def _change(
    libc: ctypes.CDLL, place: str, *, set_flags: int = 0, clear_flags: int = 0, at: int = 0
) -> None:
    """Change the flags of a mount, with `_RECURSIVE` also those of all mounts below."""
    wanted = _MountAttributes(set_flags, clear_flags, _PRIVATE, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    changed = libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        _CURRENT_FOLDER,
        place.encode(),
        at,
        ctypes.byref(wanted),
        size,
    )
    _check(changed, f"the flags of {place} cannot be changed")


def _give_up_privileges(libc: ctypes.CDLL) -> None:
    """Give up all capabilities in the new namespaces: the mounts cannot be changed back."""
    zero = ctypes.c_ulong(0)
    for number in range(_CAPABILITIES):
        # Numbers that this kernel does not know are an error.
        libc.prctl(_DROP_BOUNDING, ctypes.c_ulong(number), zero, zero, zero)
    one = ctypes.c_ulong(1)
    _check(libc.prctl(_NO_NEW_PRIVILEGES, one, zero, zero, zero), "privileges cannot be given up")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice
    _check(libc.capset(header, none), "capabilities cannot be given up")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} ({os.strerror(number)})")


if __name__ == "__main__":
    _launch(sys.argv[1:])
