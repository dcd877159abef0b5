"""A GPU that exists only as a model: it takes the time and the energy that the model predicts."""

import contextlib
import math
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.device.simulated.power_model import OperatingPoint, Work
from zeus_core.device.simulated.presets import GpuPreset
from zeus_core.errors import PermissionDeniedError, UsageError
from zeus_core.ports import TimeSource
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.validate import checked_number, checked_whole_number

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # its multiples, less their whole part, are spread evenly

_UTILIZATION_SECONDS = 1.0  # that NVML averages over, at most
_INSTANT_SECONDS = 1e-9  # above the rounding errors of a stage, below the resolution of any time source


@dataclass(frozen=True)
class SimulatedNoise:
    """The scatter of a simulated GPU.

    Time and power scatter from one piece of work to the next; the defaults lie within public measurements (0.5 to 1.5 %
    in time, 0.4 to 1.6 % in power). Boards of one model differ in the power they take at a clock, and so, under one
    power limit, in speed.

    Attributes:
        time_cv: Coefficient of variation of the time of a piece of work.
        power_cv: The same of its power.
        seed: Boards with the same seed and index scatter alike.
        board_spread: The power of a board at a clock lies within this share of its model's; 0.12 makes boards of one
            model up to about 8 % faster than others under one limit, as large clusters report.
    """

    time_cv: float = 0.01
    power_cv: float = 0.01
    seed: int = 0
    board_spread: float = 0.0

    def __post_init__(self) -> None:
        """Check that they are small enough for factors to stay positive."""
        for argument in ("time_cv", "power_cv", "board_spread"):
            value = getattr(self, argument)
            checked_number(f"SimulatedNoise.{argument}", value, 0.0, 0.2, "0 to 0.2, such as 0.01")
        checked_whole_number("SimulatedNoise.seed", self.seed, 0)

    def _place_of(self, index: int) -> float:
        """Return where a board lies among those of its model, from -1 to 1. A few boards cover the range evenly."""
        first = random.Random(f"boards {self.seed}").random()
        return 2 * ((first + index * _GOLDEN_RATIO) % 1.0) - 1


# How long a change waits for a method of another thread, which take microseconds; then that thread is in a handler.
_LOCK_SECONDS = 0.2


@dataclass
class _Job:
    """Work in the queue, and the shares of its two stages that are still to be done."""

    work: Work
    time_factor: float
    power_factor: float
    active_left: float = 1.0
    blocking_left: float = 1.0

    def stage(self, point: OperatingPoint) -> tuple[float, float]:
        """Return the seconds left in the present stage, and its power: first the GPU computes, then it is blocked."""
        if self.active_left > 0:
            return (
                self.active_left * point.active_seconds * self.time_factor,
                point.active_power_watts * self.power_factor,
            )
        return self.blocking_left * point.blocking_seconds * self.time_factor, point.blocking_power_watts

    def spend(self, point: OperatingPoint, seconds: float, stage_seconds: float) -> None:
        """Let `seconds` of a stage of `stage_seconds` pass."""
        left = 0.0 if stage_seconds - seconds < _INSTANT_SECONDS else 1 - seconds / stage_seconds
        if self.active_left > 0:
            self.active_left *= left
        else:
            self.blocking_left *= left
        if point.blocking_seconds == 0:
            self.blocking_left = 0.0

    @property
    def is_done(self) -> bool:
        return self.active_left == 0 and self.blocking_left == 0


class _SettingChanged(threading.Event):
    """An event, set once, whose `set` takes no lock that a thread in a signal handler may have."""

    def __init__(self) -> None:
        super().__init__()
        self._is_pending = threading.Lock()
        self._is_pending.acquire()

    def is_set(self) -> bool:
        return not self._is_pending.locked()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was set before
            self._is_pending.release()

    def wait(self, timeout: float | None = None) -> bool:
        is_set = self._is_pending.acquire(timeout=-1 if timeout is None else timeout)
        if is_set:
            self.set()
        return is_set


class SimulatedGpu(Gpu):
    """A `Gpu` whose time and power follow `zeus_core.device.simulated.power_model`.

    Work is submitted as to a real GPU: `submit` queues it and returns, `synchronize` waits until the queue is empty,
    `execute` does both. A limit or clock set meanwhile takes effect at once. While the queue is empty the GPU draws
    its blocking power: the measurements behind the presets were taken during training, so none shows the idle power.

    Args:
        preset: The GPU model.
        index: Tells devices of one machine apart: enters the UUID and shifts the updates of the energy counter.
        time_source: Real time by default; with virtual time a simulated hour takes milliseconds.
        power_limit_watts: The limit the device starts with; the model's default if None.
        noise: Scatter of time and power; none by default.
        grants_control: Whether this process may change limits and clocks; False imitates a process without rights.

    Raises:
        UsageError: An argument is wrong, such as a limit outside the range of the board; the message names it.
    """

    is_simulated = True

    def __init__(
        self,
        preset: GpuPreset,
        index: int = 0,
        *,
        time_source: TimeSource | None = None,
        power_limit_watts: float | None = None,
        noise: SimulatedNoise | None = None,
        grants_control: bool = True,
    ) -> None:
        self.preset: GpuPreset = preset
        index = checked_whole_number("index", index, 0)
        self._noise = SimulatedNoise(time_cv=0.0, power_cv=0.0) if noise is None else noise
        self.name: str = f"{preset.name} (simulated)"
        self.uuid: str = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'zeus-core simulated {preset.name} {index}')}"
        self.energy_counter_period_seconds: float = preset.counter_period_seconds
        self._time_source = time_source or MonotonicTime()
        self.submitted: int = 0
        """How many pieces of work were submitted."""
        self._random = random.Random(f"{self._noise.seed} {index}")
        self._grants_control = grants_control
        self._power_factor = 1 + self._noise.board_spread * self._noise._place_of(index)
        self._idle_watts = self._power_factor * preset.physics.blocking_power_watts
        self._operating_point = lru_cache(maxsize=256)(self._own_operating_point)
        # Re-entrant, because a limit may be restored by a signal handler that interrupts a change.
        self._lock = threading.RLock()
        self._waiting: dict[int, _SettingChanged] = {}  # by thread, set when a setting has changed
        self._locked_clock_mhz = preset.highest_clock_mhz
        self._limit_watts = preset.default_limit_watts
        if power_limit_watts is not None:
            self._limit_watts = preset.limit_range_watts.checked(power_limit_watts, self.name)
        self.held_gib: tuple[float, float] = (0.0, 0.0)
        """GiB of its memory that are in use between two steps, and at most."""
        self._jobs: list[_Job] = []
        # The driver was loaded some time ago, so that the counter has been updated before.
        self._integrated_until = self._time_source.now() - 2 * preset.counter_period_seconds
        self._worked_until = -math.inf
        self._is_integrating = False
        self._energy_joules = 0.0
        self._counter_joules = 0.0
        # The counters of real devices are not updated at the same time.
        self._counter_phase_seconds = self._integrated_until + 0.37 * (index + 1) * preset.counter_period_seconds

    def submit(self, work: Work) -> None:
        """Queue work behind what is already queued."""
        time_factor = 1 + self._noise.time_cv * self._random.gauss(0.0, 1.0)
        power_factor = 1 + self._noise.power_cv * self._random.gauss(0.0, 1.0)
        with self._lock:
            self._integrate()
            self.submitted += 1
            self._jobs.append(_Job(work, time_factor, power_factor))

    def synchronize(self) -> None:
        """Block until the queue is empty."""
        while True:
            with self._lock:
                self._integrate()
                if not self._jobs:
                    return
                # At least an instant: a wait that the time source cannot show would be waited for again, for ever.
                seconds_left = max(sum(self._seconds_left(job) for job in self._jobs), _INSTANT_SECONDS)
                self._waiting[threading.get_ident()] = setting_changed = _SettingChanged()
            self._time_source.wait(setting_changed, seconds_left)

    def execute(self, work: Work) -> None:
        """Block as long as the GPU needs for `work`, behind what is already queued, at its limit and clock."""
        self.submit(work)
        self.synchronize()

    def exact_energy_joules(self) -> float:
        """Return the true energy up to this moment, which no real device knows, from where the counter counts."""
        with self._lock:
            self._integrate()
            return self._energy_joules

    def read_energy_counter_joules(self) -> float:
        """Read the true energy as of the counter's latest update, in whole millijoules."""
        with self._lock:
            self._integrate()
            return round(self._counter_joules, 3)

    def read_power_watts(self) -> float:
        """Read the power at this moment, in whole milliwatts."""
        with self._lock:
            self._integrate()
            if not self._jobs:
                return round(self._idle_watts, 3)
            _, power_watts = self._jobs[0].stage(self._point(self._jobs[0]))
            return round(power_watts, 3)

    def read_utilization(self) -> float:
        """Read whether there was work in the latest second, 1, or none, 0."""
        with self._lock:
            self._integrate()
            return 1.0 if self._integrated_until - self._worked_until < _UTILIZATION_SECONDS else 0.0

    def read_power_limit_watts(self) -> float:
        """Read the limit set last."""
        return self._limit_watts

    def read_default_power_limit_watts(self) -> float:
        """Read the default of the GPU model."""
        return self.preset.default_limit_watts

    def read_power_limit_range_watts(self) -> PowerRange:
        """Read the range of the GPU model."""
        return self.preset.limit_range_watts

    def set_power_limit(self, limit_watts: float) -> None:
        """Change the limit, for the work that is running too."""
        limit_watts = self.preset.limit_range_watts.checked(limit_watts, self.name)
        with self._control("power limit"):
            self._limit_watts = limit_watts

    def read_sm_clock_mhz(self) -> int:
        """Read the clock the present work runs at; the lowest one while there is none."""
        with self._lock:
            self._integrate()
            if not self._jobs:
                return self.preset.lowest_clock_mhz
            return round(self._point(self._jobs[0]).clock_fraction * self.preset.highest_clock_mhz)

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Read every clock of the GPU model, highest first."""
        preset = self.preset
        return tuple(range(preset.highest_clock_mhz, preset.lowest_clock_mhz - 1, -preset.clock_step_mhz))

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the clock at or below `clock_mhz`, for the work that is running too."""
        supported = self.read_supported_sm_clocks_mhz()
        if clock_mhz not in supported:
            raise UsageError(
                f"clock_mhz is {clock_mhz!r}; {self.name} supports {supported[0]} down to {supported[-1]} MHz "
                f"in steps of {self.preset.clock_step_mhz}"
            )
        with self._control("SM clock"):
            self._locked_clock_mhz = clock_mhz

    def unlock_sm_clock(self) -> None:
        """Let the clock rise to the highest again."""
        with self._control("SM clock"):
            self._locked_clock_mhz = self.preset.highest_clock_mhz

    @contextmanager
    def _control(self, setting: str) -> Iterator[None]:
        """Change a setting: account for the past under the old one, then let waiting work notice the new one."""
        if not self._grants_control:
            raise PermissionDeniedError(
                f"this process may not change the {setting} of {self.name}, which was made with grants_control=False"
            )
        # A thread that has the lock may be in a signal handler, which waits for this change in another thread: then the
        # latest instant is accounted for under the new setting.
        has_lock = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            if has_lock:
                self._integrate()
            yield
            waiting, self._waiting = self._waiting, {}
        finally:
            if has_lock:
                self._lock.release()
        for setting_changed in waiting.values():
            setting_changed.set()

    def _own_operating_point(self, work: Work, limit_watts: float, locked_clock_fraction: float) -> OperatingPoint:
        """Return the point of this board: it takes its own share of the power of its model."""
        factor = self._power_factor
        point = self.preset.physics.operating_point(work, limit_watts / factor, locked_clock_fraction)
        return replace(
            point,
            active_power_watts=factor * point.active_power_watts,
            blocking_power_watts=factor * point.blocking_power_watts,
        )

    def _point(self, job: _Job) -> OperatingPoint:
        locked_clock_fraction = self._locked_clock_mhz / self.preset.highest_clock_mhz
        return self._operating_point(job.work, self._limit_watts, locked_clock_fraction)

    def _seconds_left(self, job: _Job) -> float:
        point = self._point(job)
        return job.time_factor * (job.active_left * point.active_seconds + job.blocking_left * point.blocking_seconds)

    def _integrate(self) -> None:
        """Bring the energy, the counter and the queue up to this moment. The caller holds the lock."""
        if self._is_integrating:  # in a signal handler that interrupts this very method: nothing has passed since
            return
        self._is_integrating = True
        try:
            self._integrate_until_now()
        finally:
            self._is_integrating = False

    def _integrate_until_now(self) -> None:
        now, period = self._time_source.now(), self.energy_counter_period_seconds
        steps = math.floor((now - self._counter_phase_seconds) / period)
        latest_step_seconds = self._counter_phase_seconds + steps * period
        if latest_step_seconds > self._integrated_until:
            self._integrate_until(latest_step_seconds)
            self._counter_joules = self._energy_joules
        self._integrate_until(now)

    def _integrate_until(self, moment: float) -> None:
        while self._jobs and self._integrated_until < moment:
            job = self._jobs[0]
            point = self._point(job)
            stage_seconds, power_watts = job.stage(point)
            seconds = min(stage_seconds, moment - self._integrated_until)
            self._energy_joules += power_watts * seconds
            self._integrated_until += seconds
            self._worked_until = self._integrated_until
            job.spend(point, seconds, stage_seconds)
            if job.is_done:
                self._jobs.pop(0)
        if self._integrated_until < moment:
            self._energy_joules += self._idle_watts * (moment - self._integrated_until)
            self._integrated_until = moment
