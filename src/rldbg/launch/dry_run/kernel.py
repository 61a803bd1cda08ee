"""The few Linux calls that Python 3.11 does not offer: namespaces, mounts, Landlock, capabilities."""

import ctypes
import os
import platform
import struct

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR, _SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_LAST_CAPABILITY = 63
_LANDLOCK_RULE_PATH_BENEATH = 1

# Landlock's rights by the version of its interface that brought them; reading and executing stay free.
_LANDLOCK_WRITES = 0b1_1111_1111_0010  # write a file, remove and make anything
_LANDLOCK_WRITES_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # refer, truncate, device ioctl
_LANDLOCK_FILE_WRITES = (1 << 1) | (1 << 14) | (1 << 15)
_LANDLOCK_TCP_SINCE, _LANDLOCK_SCOPES_SINCE = 4, 6

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options) or None
    )
    _check(result, f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """`source` and everything mounted below it, at `target`, for reading only."""
    mount(source, target, "", MS_BIND | MS_REC)
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
    )
    if result < 0:
        number = ctypes.get_errno()
        _libc.umount2(os.fsencode(target), MNT_DETACH)
        raise OSError(number, os.strerror(number), f"make {target} read-only")


def enter_root(path: str) -> None:
    """Makes `path` the root directory and unmounts the old one."""
    number = _SYS_PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(0, f"pivot_root is not known on {platform.machine()}")
    os.chdir(path)
    _check(_libc.syscall(ctypes.c_long(number), ctypes.c_char_p(b"."), ctypes.c_char_p(b".")), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount the old root")
    os.chdir("/")


def drop_capabilities(keep: frozenset[int]) -> None:
    """No program started later can regain what is dropped here."""
    for capability in range(_LAST_CAPABILITY):
        if capability not in keep and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "pdeathsig")


def landlock_version() -> int:
    """The version of the kernel's Landlock interface; 0 without Landlock."""
    version: int = _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(version, 0)


def landlock_forbid_writes(writable: list[str]) -> None:
    """From here on, this process and its children can write only in `writable`, and cannot open TCP connections."""
    version = landlock_version()
    if version == 0:
        raise OSError(0, "the kernel has no Landlock")
    rights = _LANDLOCK_WRITES
    for since, more in _LANDLOCK_WRITES_SINCE.items():
        rights |= more if version >= since else 0
    layout = struct.pack(
        "QQQ", rights, 3 if version >= _LANDLOCK_TCP_SINCE else 0, 3 if version >= _LANDLOCK_SCOPES_SINCE else 0
    )
    # The kernel knows the structure by its size, which grew with the two fields.
    size = 8 if version < _LANDLOCK_TCP_SINCE else 16 if version < _LANDLOCK_SCOPES_SINCE else 24
    ruleset = _check(
        _libc.syscall(
            ctypes.c_long(_SYS_LANDLOCK_CREATE), ctypes.c_char_p(layout), ctypes.c_size_t(size), ctypes.c_uint(0)
        ),
        "landlock_create_ruleset",
    )
    for path in writable:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if os.path.isdir(path) else rights & _LANDLOCK_FILE_WRITES  # noqa: PTH112
        rule = struct.pack("=Qi", allowed, place)
        _check(
            _libc.syscall(
                ctypes.c_long(_SYS_LANDLOCK_ADD),
                ctypes.c_int(ruleset),
                ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
                ctypes.c_char_p(rule),
                ctypes.c_uint(0),
            ),
            f"landlock_add_rule {path}",
        )
        os.close(place)
    no_new_privileges()
    _check(
        _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint(0)),
        "landlock_restrict_self",
    )
    os.close(ruleset)
