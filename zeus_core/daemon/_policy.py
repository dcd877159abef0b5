"""Which processes may change which settings of which devices, within which values, and how often they may ask."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zeus_core.daemon._peer import Peer
from zeus_core.errors import PermissionDeniedError
from zeus_core.kinds import KINDS, Kind

_BURST_SECONDS = 0.1  # of the requests that a user may make in a second, so many may come at once
_ASK = "ask an administrator, who can allow it in the TOML file of the zeus-core daemon"


class NotAllowedError(PermissionDeniedError):
    """The policy does not allow it; a driver that denies the daemon something raises the base class."""


class Allowance(NamedTuple):
    """The lowest and the highest value that may be set, in the unit of the kind of setting."""

    lowest: float
    highest: float


ANY_VALUE = Allowance(0.0, math.inf)


def kinds_allowed_unnamed() -> list[Kind]:
    """Return the kinds that a rule allows without naming them. All others are for rules that name them."""
    return [kind for kind in KINDS.values() if kind.is_allowed_unnamed]


@dataclass(frozen=True)
class Rule:
    """One permission, for the processes of some users and of some groups.

    Attributes:
        users: User ids. 0 is root of the machine alone.
        groups: Group ids. 0 is that of root of the machine alone: each container has one of that number.
        devices: UUIDs; None for all devices.
        ranges: The values that may be set, by kind; a kind that is missing may not be touched. By default, any value
            of the kinds that no rule has to name.
        may_exceed_original: Whether power limits above the original one are allowed too.
        may_slow_other_instances: Whether a board in MIG mode may be changed while others compute on other instances.
        has_cpu_energy: Whether the energy counters of the CPUs may be read.
    """

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    devices: frozenset[str] | None = None
    ranges: Mapping[Kind, Allowance] = field(default_factory=lambda: dict.fromkeys(kinds_allowed_unnamed(), ANY_VALUE))
    may_exceed_original: bool = False
    may_slow_other_instances: bool = False
    has_cpu_energy: bool = True

    def is_for(self, peer: Peer) -> bool:
        """Tell whether the rule is for a process."""
        uids, gids = {peer.uid}, peer.gids
        if not peer.is_root:
            uids, gids = uids - {0}, gids - {0}
        return not (self.users.isdisjoint(uids) and self.groups.isdisjoint(gids))


@dataclass(frozen=True)
class Policy:
    """The decisions of an administrator.

    Attributes:
        group: The group id that may connect; None: only the daemon's own user, and root.
        rules: The permissions. The first that is for a process and covers its request decides.
        connections_per_user: How many connections a user may have at a time.
        requests_per_second: How many requests of a user are served in a second; further ones wait.
        originals: The values at which the administrator keeps the GPUs, of kinds that the driver does not report.
        commands: The command of an operation that is not made by the driver's library, by operation.
        failure_pattern: A regular expression. A command has failed if its output has a match, with any exit code.
    """

    group: int | None = None
    rules: tuple[Rule, ...] = ()
    connections_per_user: int = 256  # two knobs of 16 GPUs, for eight jobs
    requests_per_second: int = 4000  # 16 GPUs take 3200 at most: a change takes their driver 5 ms or more
    originals: Mapping[Kind, float] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failure_pattern: str | None = None

    def is_known(self, peer: Peer) -> bool:
        """Tell whether any rule is for a process."""
        return any(rule.is_for(peer) for rule in self.rules)

    def check_cpu_energy(self, peer: Peer) -> None:
        """Raise `NotAllowedError` if a process may not read the energy counters of the CPUs."""
        if not any(rule.has_cpu_energy for rule in self.rules if rule.is_for(peer)):
            raise NotAllowedError(f"{peer.words} may not read the energy of CPUs; {_ASK}")

    def find_rule(self, peer: Peer, device: str, kind: Kind) -> Rule:
        """Return the rule that lets a process change a setting of a device.

        Raises:
            NotAllowedError: There is none.
        """
        for rule in self.rules:
            if rule.is_for(peer) and (rule.devices is None or device in rule.devices) and kind in rule.ranges:
                return rule
        raise NotAllowedError(f"{peer.words} may not change the {kind.words} of {device}; {_ASK}")

    def allowance(self, peer: Peer, device: str, kind: Kind, original: float | None) -> Allowance:
        """Return what a process may set.

        Args:
            peer: The process.
            device: The UUID of the device.
            kind: The kind of setting.
            original: The original; None for a device that is free.

        Raises:
            NotAllowedError: The process may not change the setting at all.
        """
        rule = self.find_rule(peer, device, kind)
        lowest, highest = rule.ranges[kind]
        return Allowance(lowest, highest if rule.may_exceed_original else min(highest, kind.ceiling(original)))


class Allotment:
    """The share of the daemon that one user takes: connections, and requests per second. Any thread may use it.

    Args:
        requests_per_second: As many are served on average.
        now: Returns the time in seconds.
    """

    def __init__(self, requests_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self.connection_count = 0
        """How many connections the user has."""
        self._request_seconds = 1.0 / requests_per_second
        self._now = now
        self._lock = threading.Lock()
        self._spent_until = -1e18  # each request moves this on by its share of a second

    @property
    def wait_seconds(self) -> float:
        """How long a request that comes now has to wait."""
        return max(self._spent_until - self._now() - _BURST_SECONDS, 0.0)

    def take(self) -> float:
        """Take the next place for a request. Returns how many seconds it has to wait for it.

        Requests that wait have a place each: they are served one after another, and none wakes the loop early.
        """
        with self._lock:
            wait_seconds = self.wait_seconds
            self._spent_until = max(self._spent_until, self._now()) + self._request_seconds
        return wait_seconds

    def change_connection_count(self, change: int) -> None:
        """Count a connection that begins (1) or ends (-1)."""
        with self._lock:
            self.connection_count += change
