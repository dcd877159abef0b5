"""The TOML file of an administrator; it, and the programs it names, can be changed by nobody else."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from zeus_core.daemon._commanded_gpu import OPERATIONS
from zeus_core.daemon._policy import ANY_VALUE, Allowance, Policy, Rule, kinds_allowed_unnamed
from zeus_core.errors import UsageError
from zeus_core.files import follow_own_links
from zeus_core.kinds import KINDS, Kind
from zeus_core.validate import shown

DEFAULT_GROUP = "zeus"

_RANGE_KEYS = {kind: key for kind in KINDS.values() if (key := kind.range_key) is not None}
_ORIGINAL_KEYS = {f"original_{key}": kind for kind, key in _RANGE_KEYS.items() if not kind.is_readable}
_KEYS = ("has_end", "group", *_ORIGINAL_KEYS, "allow", "limits", "commands", "end")
_RULE_KEYS = (
    *("users", "groups", "devices", "knobs", *_RANGE_KEYS.values()),
    *("may_exceed_original", "may_slow_other_instances", "cpu_energy"),
)


def find_policy(path: Path) -> Path | None:
    """Return the path of a file that need not exist; None only if there is none.

    A link that leads nowhere, or a folder that cannot be looked into, is no absence: to read the file says so then.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return path if path.parent.is_symlink() and not path.parent.exists() else None
    except OSError:
        return path
    return path


def read_policy(path: Path | None) -> Policy:
    """Read the file.

    Args:
        path: The file; None for the default: members of the group `zeus` may set limits up to the original one, lock
            clocks, and read the energy of CPUs.

    Raises:
        UsageError: It is not a regular file, has no `allow`, says that it was cut short, or holds something else than
            it should; the message names the key and what is accepted.
        OSError: It cannot be read; `PermissionError` if others than root and this user could change it.
    """
    document = {} if path is None else _read_toml(path)
    _check_keys(document, _KEYS, "this file")
    group = document.get("group", DEFAULT_GROUP)
    gid = _id_of("group", group, _group_id) if "group" in document else _group_id(DEFAULT_GROUP)
    rules: tuple[Rule, ...]
    if path is None:
        rules = () if gid is None else (Rule(groups=frozenset({gid})),)
    elif "allow" in document:
        rules = tuple(_rule(table, number) for number, table in enumerate(_list("allow", document["allow"])))
    else:
        raise UsageError(
            f"{path} has no rule, [[allow]]: restore the file if it has lost its content, or write who may do what, or "
            f"allow = [] for nobody. Without the file, members of the group {DEFAULT_GROUP} may set limits up to the "
            "original one"
        )
    # Root of the machine may do everything without the daemon.
    rules += (Rule(users=frozenset({0}), ranges=dict.fromkeys(KINDS.values(), ANY_VALUE)),)
    limits = _table("limits", document.get("limits", {}), ("connections_per_user", "requests_per_second"))
    counts = {name: _count(f"limits.{name}", value) for name, value in limits.items()}
    originals = {kind: _count(key, document[key]) for key, kind in _ORIGINAL_KEYS.items() if key in document}
    commands, pattern = _commands(document.get("commands", {}))
    return Policy(gid, rules, originals=originals, commands=commands, failure_pattern=pattern, **counts)


def check_programs(commands: Mapping[str, tuple[str, ...]]) -> None:
    """Check that only an administrator can change the programs of the commands.

    Raises:
        OSError: One is missing; `PermissionError` if others could change it.
    """
    for words in commands.values():
        program = Path(words[0]).resolve(strict=True)
        for path in (program, *program.parents):
            check_trusted(path, path.stat())


def check_trusted(path: Path, state: os.stat_result) -> None:
    """Raise `PermissionError` if others than root and this user could change a file, or what is in a folder."""
    if state.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {state.st_uid}; it must be root's: sudo chown root {path}")
    is_sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX  # others cannot replace what is ours
    if state.st_mode & 0o022 and not is_sticky:
        raise PermissionError(f"{path} can be changed by others: sudo chmod go-w {path}")


def _read_toml(path: Path) -> dict[str, Any]:
    target = follow_own_links(path)
    with open(target, "rb", opener=_open_regular) as file:
        check_trusted(target, os.fstat(file.fileno()))  # of the file that is read
        for folder in target.resolve().parents:
            check_trusted(folder, folder.stat())
        data = file.read()
    try:
        text = data.decode()
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    _check_end(path, text, document)
    return document


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path} is a folder, a pipe or a device, not a file: write the rules into a file")
    return descriptor


def _check_end(path: Path, text: str, document: Mapping[str, Any]) -> None:
    """Refuse a file that says that it has an end, and has none.

    A file that was cut between two lines is valid TOML, and allows more than the whole if a lost line was a bound. The
    first key is there wherever the file is cut, or there is no rule; the last line is not.
    """
    if "has_end" not in document and "end" not in document:
        return
    if next(iter(document)) != "has_end" or document["has_end"] is not True:
        raise UsageError(
            f"{path} has has_end or [end]: then its first key must be has_end = true, and its last line [end]"
        )
    if not text.rstrip().endswith("\n[end]"):
        raise UsageError(
            f"{path} has has_end = true, and its last line is not [end]: it has been cut short, or [end] is missing; "
            "restore it, or add [end] if it is complete"
        )
    _table("end", document["end"], ())


def _rule(table: Any, number: int) -> Rule:
    where = f"allow[{number}]"
    table = _table(where, table, _RULE_KEYS)
    if not table.get("users") and not table.get("groups"):
        raise UsageError(f'{where} names nobody: add users = ["alice"] or groups = ["{DEFAULT_GROUP}"]')
    bounded = [kind for kind, key in _RANGE_KEYS.items() if key in table]  # who bounds a kind has named it
    unnamed = [kind.name for kind in dict.fromkeys([*kinds_allowed_unnamed(), *bounded])]
    knobs = _texts(f"{where}.knobs", table.get("knobs", unnamed))
    for knob in knobs:
        if knob not in KINDS:
            raise _wrong(f"{where}.knobs", knob, " or ".join(f'"{name}"' for name in KINDS))
    devices = _texts(f"{where}.devices", table.get("devices", ["all"]))
    return Rule(
        _ids(f"{where}.users", table.get("users", []), _user_id),
        _ids(f"{where}.groups", table.get("groups", []), _group_id),
        None if "all" in devices else frozenset(devices),
        {KINDS[knob]: _range(where, table, KINDS[knob]) for knob in knobs},
        _flag(f"{where}.may_exceed_original", table.get("may_exceed_original", False)),
        _flag(f"{where}.may_slow_other_instances", table.get("may_slow_other_instances", False)),
        _flag(f"{where}.cpu_energy", table.get("cpu_energy", True)),
    )


def _commands(value: Any) -> tuple[dict[str, tuple[str, ...]], str | None]:
    table = dict(_table("commands", value, (*OPERATIONS, "failure_pattern")))
    pattern = table.pop("failure_pattern", None)
    if pattern is not None:
        try:
            re.compile(_text("commands.failure_pattern", pattern))
        except re.error as error:
            raise _wrong("commands.failure_pattern", pattern, f"a regular expression ({error})") from error
    commands = {name: tuple(_texts(f"commands.{name}", words)) for name, words in table.items()}
    for name, words in commands.items():
        placeholder = OPERATIONS[name]
        if not words or not words[0].startswith("/") or not all(part in " ".join(words[1:]) for part in placeholder):
            wanted = ["/usr/bin/sudo", "-n", "/usr/bin/nvidia-smi", *OPERATIONS[name]]
            raise _wrong(
                f"commands.{name}", list(words), f"a program by its full path, and its words, such as {wanted}"
            )
    return commands, pattern


def _range(where: str, table: Mapping[str, Any], kind: Kind) -> Allowance:
    key = _RANGE_KEYS.get(kind)
    value = None if key is None else table.get(key)
    where = f"{where}.{key}"
    if value is None:
        return ANY_VALUE
    numbers = [number for number in _list(where, value) if type(number) in (int, float)]
    if len(numbers) != 2 or len(value) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise _wrong(where, value, "the lowest and the highest value, such as [150, 300]")
    return Allowance(float(numbers[0]), float(numbers[1]))


def _ids(where: str, names: Any, find: Callable[[str], int | None]) -> frozenset[int]:
    return frozenset(_id_of(where, name, find) for name in _list(where, names))


def _id_of(where: str, value: Any, find: Callable[[str], int | None]) -> int:
    if type(value) is int and 0 <= value < 2**32 - 1:
        return value
    found = find(value) if type(value) is str else None
    if found is None:
        raise _wrong(where, value, "a name, or an id, that this machine knows")
    return found


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return None


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def _table(where: str, value: Any, keys: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a table")
    _check_keys(value, keys, where)
    return value


def _check_keys(table: Mapping[str, Any], keys: Collection[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise UsageError(f"{shown(key)} is not a key of {where}; its keys are {', '.join(keys)}")


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    return value


def _texts(where: str, value: Any) -> list[str]:
    return [_text(where, entry) for entry in _list(where, value)]


def _text(where: str, value: Any) -> str:
    if type(value) is not str:
        raise _wrong(where, value, "a text")
    return value


def _flag(where: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong(where, value, "true or false")
    return value


def _count(where: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 10**6:
        raise _wrong(where, value, "a whole number from 1 to 1000000")
    return value


def _wrong(where: str, value: Any, wanted: str) -> UsageError:
    return UsageError(f"{where} is {shown(value)}; it must be {wanted}")
