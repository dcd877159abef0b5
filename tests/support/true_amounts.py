"""What the true power of a simulated GPU emits and costs, added up independently of what is tested."""

import random

from zeus_core.device import Work
from zeus_core.electricity import RecordedSignal
from zeus_core.testing import VirtualTime

MONDAY = 1_772_409_600.0  # 2026-03-02 00:00 UTC
HOUR = 20.0  # accelerated
KILOWATT_HOUR = 3.6e6
HARD, SOFT = Work(0.5, 484.9, 0.938, 0.744), Work(0.5, 120.0, 0.2, 0.1)


def time_from(clock_seconds):
    """Virtual time with a clock of its own: times since 1970 are too coarse for what is measured in microseconds."""
    time_source = VirtualTime()
    time_source.set_clock(clock_seconds)
    return time_source


def hourly(seed=1, count=24, unit="g/kWh", begin=MONDAY, hour=HOUR):
    randomness = random.Random(seed)
    values = [randomness.uniform(100, 600) for _ in range(count)]
    return RecordedSignal([begin + hour * number for number in range(count)], values, unit)


class Truth:
    """The true energy of a GPU times the value of a signal at its moment, in short steps."""

    def __init__(self, gpu, time_source, electricity):
        self.gpu, self.time_source, self.electricity = gpu, time_source, electricity
        self.amounts = dict.fromkeys((signal.facts.amount_unit for signal in electricity.signals), 0.0)

    def execute(self, work):
        """Execute some work in pieces, each of which is charged at the mean of the values meanwhile."""
        pieces = 2
        piece = Work(work.seconds / pieces, work.active_power_watts, work.active_fraction, work.compute_bound_fraction)
        for _ in range(pieces):
            begin, joules = self.time_source.clock_seconds(), self.gpu.exact_energy_joules()
            self.gpu.execute(piece)
            end = self.time_source.clock_seconds()
            kilowatt_hours = (self.gpu.exact_energy_joules() - joules) / KILOWATT_HOUR
            for one in self.electricity.signals:
                mean = sum(part.value * part.seconds for part in one.parts(begin, end)) / (end - begin)
                self.amounts[one.facts.amount_unit] += kilowatt_hours * mean * self.electricity.pue


def train(energy, truth, steps, work=HARD):
    for _ in range(steps):
        with energy.step(samples=4):
            truth.execute(work)
