"""Time and energy of a rank's instructions, measured while it works."""

import pytest

from zeus_core.codec import decode, encode
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.profile.profiler import Profiler
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import StepTimeline
from zeus_core.ports.device_events import HostEvents
from zeus_core.testing import VirtualBackground, VirtualTime

A100 = find_preset("A100-SXM4-80GB")
WORKS = {"forward": Work(0.03, 380.0), "backward": Work(0.06, 350.0), "optimizer-step": Work(0.07, 150.0)}
COMPUTATIONS = [Instruction("forward", 1), Instruction("backward", 1)]


class Rank:
    """A rank that runs two microbatches in a step, and waits after each computation."""

    def __init__(self, noise=None):
        self.time_source = VirtualTime()
        self.gpu = SimulatedGpu(A100, time_source=self.time_source, noise=noise)
        self.profiler = Profiler(self.gpu, self.time_source, VirtualBackground(self.time_source), 0.1)
        self._timeline = StepTimeline(HostEvents(self.time_source), stage=1)

    def step(self, stall_seconds=0.0):
        self._timeline.begin_step()
        for kind in ("forward", "backward", "forward", "backward", "optimizer-step"):
            self._timeline.begin(kind, None, None)
            self.gpu.execute(WORKS[kind])
            if kind == "backward":
                self.time_source.advance(stall_seconds)
            self._timeline.end()
            self.time_source.advance(0.0237)
        self._timeline.begin("all-reduce", None, None)
        self.time_source.advance(0.05)
        self._timeline.end()
        return self._timeline.end_step()

    def measure(self, clock_mhz, steps=20):
        self.gpu.lock_sm_clock(clock_mhz)
        self.profiler.begin()
        self.profiler.add([self.step() for _ in range(steps)], clock_mhz, is_settled=False)

    def is_enough(self, clock_mhz, instructions, work=COMPUTATIONS):
        return self.profiler.is_enough(work, clock_mhz, instructions)

    def truth(self, kind, clock_mhz):
        return A100.physics.operating_point(WORKS[kind], A100.default_limit_watts, clock_mhz / A100.highest_clock_mhz)


@pytest.mark.parametrize("cv", [0.0, 0.01])
def test_times_and_energies_of_each_clock_are_the_true_ones(cv):
    rank = Rank(SimulatedNoise(cv, cv))
    for clock_mhz in (1410, 1110):
        rank.measure(clock_mhz, steps=40)
    profile = rank.profiler.profile()
    rows = {(row.kind, row.clock_mhz): row for row in profile.rows}
    assert rows.keys() == {
        *((kind, clock_mhz) for kind in ("forward", "backward") for clock_mhz in (1410, 1110)),
        ("optimizer-step", None),
    }
    assert profile.blocking_power_watts == pytest.approx(A100.physics.blocking_power_watts, rel=0.01)
    for (kind, clock_mhz), row in rows.items():
        if clock_mhz is not None:
            point = rank.truth(kind, clock_mhz)
            assert row.stage == 1
            assert row.time_seconds == pytest.approx(point.seconds, rel=1e-6 + cv)
            assert row.energy_joules == pytest.approx(point.energy_joules, rel=0.01)
            assert row.energy_stderr_joules < 0.01 * row.energy_joules
    step = rows["optimizer-step", None]
    assert step.energy_joules == pytest.approx(rank.truth("optimizer-step", 1410).energy_joules, rel=0.01)


def test_a_delayed_instruction_does_not_spoil_the_energy_of_its_kind():
    rank = Rank()
    rank.gpu.lock_sm_clock(1110)
    rank.profiler.begin()
    rank.profiler.add([rank.step(0.6 * (number == 4)) for number in range(20)], 1110, is_settled=False)
    profile = rank.profiler.profile()
    assert profile.is_precise(1110)
    for row in profile.rows:
        if row.kind != "optimizer-step":
            assert row.energy_joules == pytest.approx(rank.truth(row.kind, 1110).energy_joules, rel=0.01)


def test_it_suffices_after_so_many_of_each_and_twenty_counter_steps():
    rank = Rank()
    rank.measure(1410, steps=2)
    assert not rank.is_enough(1410, 3), "too short"
    rank.measure(1410, steps=10)
    assert rank.is_enough(1410, 20)
    assert not rank.is_enough(1410, 24), "the first of each trial does not count"
    assert not rank.is_enough(1200, 1)
    assert not rank.is_enough(1410, 1, [*COMPUTATIONS, Instruction("recompute", 1)]), "of each kind there is"


def test_at_a_clock_that_has_settled_the_first_instruction_counts_too():
    rank = Rank()
    rank.gpu.lock_sm_clock(1410)
    rank.profiler.add([rank.step() for _ in range(10)], 1410, is_settled=True)
    assert rank.is_enough(1410, 20)


def test_the_cost_of_a_switch_goes_with_the_profile():
    rank = Rank()
    for seconds in (0.004, 0.005, 0.3):
        rank.profiler.add_switch(seconds)
    profile = rank.profiler.profile()
    assert profile.switch_seconds == 0.005
    assert decode(RankProfile, encode(profile)) == profile


def test_what_happened_between_two_trials_does_not_matter():
    rank = Rank()
    rank.measure(1410)
    rank.gpu.unlock_sm_clock()
    rank.gpu.execute(Work(3.0, 400.0))  # an evaluation
    rank.measure(1410)
    for row in rank.profiler.profile().rows:
        if row.kind == "forward":
            assert row.energy_joules == pytest.approx(rank.truth("forward", 1410).energy_joules, rel=0.02)


def test_without_a_counter_that_steps_there_are_times_but_no_energies():
    rank = Rank()
    rank.profiler.add([rank.step(), rank.step()], 1410, is_settled=False)  # it never began to watch
    profile = rank.profiler.profile()
    assert {row.energy_joules for row in profile.rows} == {None}
    assert {row.kind for row in profile.rows} == {"forward", "backward", "optimizer-step"}
    assert profile.blocking_power_watts is None


def test_after_its_end_the_gpu_is_not_asked_any_more():
    rank = Rank()
    rank.profiler.begin()
    rank.profiler.begin()
    rank.profiler.end()
    rank.profiler.end()
    rank.profiler.add([rank.step() for _ in range(20)], 1410, is_settled=False)
    assert rank.profiler.profile().blocking_power_watts is None
