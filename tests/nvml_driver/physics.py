"""The energy of a scripted load, to the picojoule: the same sums as in nvml_driver.c, written a second time.

Conversions are not those of `zeus_core.units`, which is under test.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Regime", "Segment", "milliwatts", "nanoseconds", "picojoules", "seconds_of_nanoseconds"]


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)


def milliwatts(watts: float) -> int:
    """Whole milliwatts."""
    return round(watts * 1e3)


def picojoules(joules: float) -> int:
    """Whole picojoules."""
    return round(joules * 1e12)


def seconds_of_nanoseconds(moment_nanoseconds: int) -> float:
    """Return the time as `time.monotonic()` states it."""
    return moment_nanoseconds / 1e9


@dataclass(frozen=True)
class Segment:
    """Constant power for a while."""

    duration_nanoseconds: int
    power_milliwatts: int


@dataclass(frozen=True)
class Regime:
    """A load script under one limit, in force from `begin_nanoseconds` on.

    Attributes:
        begin_nanoseconds: Since when.
        begin_picojoules: The device's energy by then.
        start_nanoseconds: Where the script starts; the device idles before.
        cap_milliwatts: No more than this is drawn.
        idle_milliwatts: The idle power.
        repeats: Whether the script starts again at its end; else its last segment is held.
        segments: The script.
    """

    begin_nanoseconds: int
    begin_picojoules: int
    start_nanoseconds: int
    cap_milliwatts: int
    idle_milliwatts: int
    repeats: bool
    segments: tuple[Segment, ...]

    def energy_until(self, moment_nanoseconds: int) -> int:
        """The device's energy in picojoules by this moment."""
        drawn = self._script_energy(moment_nanoseconds) - self._script_energy(self.begin_nanoseconds)
        return self.begin_picojoules + drawn

    def _script_energy(self, moment_nanoseconds: int) -> int:
        elapsed = moment_nanoseconds - self.start_nanoseconds
        if elapsed < 0:
            return elapsed * min(self.idle_milliwatts, self.cap_milliwatts)
        if not self.repeats:
            return self._pass_energy(elapsed)
        period = sum(segment.duration_nanoseconds for segment in self.segments)
        passes, rest = divmod(elapsed, period)
        return passes * self._pass_energy(period) + self._pass_energy(rest)

    def _pass_energy(self, elapsed: int) -> int:
        energy = 0
        for segment in self.segments[:-1]:
            in_segment = min(elapsed, segment.duration_nanoseconds)
            energy += in_segment * min(segment.power_milliwatts, self.cap_milliwatts)
            elapsed -= in_segment
        return energy + elapsed * min(self.segments[-1].power_milliwatts, self.cap_milliwatts)
