"""The simulated GPU: it takes the time and burns the joules its model says."""

import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zeus_core
from tests.contracts.gpu import GpuContract
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.device.simulated.presets import PRESETS
from zeus_core.errors import PermissionDeniedError, UsageError
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.testing import VirtualTime

A40 = find_preset("A40")
A100 = find_preset("A100-SXM4-80GB")
WORK = Work(seconds=0.5, active_power_watts=420.0, active_fraction=0.8, compute_bound_fraction=0.7)
COMPUTE_ONLY = Work(seconds=0.5, active_power_watts=420.0, active_fraction=1.0, compute_bound_fraction=1.0)

works = st.builds(
    Work,
    seconds=st.floats(1e-3, 10.0),
    active_power_watts=st.floats(150.0, 600.0),
    active_fraction=st.floats(0.1, 1.0),
    compute_bound_fraction=st.floats(0.0, 1.0),
)
a100_limits_watts = st.floats(*A100.limit_range_watts)


class TestSimulatedGpuInVirtualTime(GpuContract):
    @pytest.fixture
    def gpu(self):
        return SimulatedGpu(A40, time_source=VirtualTime())


class TestSimulatedGpuInRealTime(GpuContract):
    @pytest.fixture
    def gpu(self):
        return SimulatedGpu(A100)


class TestBusySimulatedGpu(GpuContract):
    @pytest.fixture
    def gpu(self):
        gpu = SimulatedGpu(A100, noise=SimulatedNoise(seed=1))
        gpu.submit(Work(seconds=3600.0, active_power_watts=450.0))
        return gpu


class TestSimulatedGpuWithoutControl(GpuContract):
    @pytest.fixture
    def gpu(self):
        return SimulatedGpu(A100, time_source=VirtualTime(), grants_control=False)


@pytest.fixture
def time_source():
    return VirtualTime()


@pytest.fixture
def gpu(time_source):
    return SimulatedGpu(A100, time_source=time_source)


def point_of(work: Work, limit_watts: float, clock_mhz: int = A100.highest_clock_mhz):
    return A100.physics.operating_point(work, limit_watts, clock_mhz / A100.highest_clock_mhz)


def elapsed_seconds(time_source: VirtualTime, gpu: SimulatedGpu, work: Work) -> float:
    began_at = time_source.now()
    gpu.execute(work)
    return time_source.now() - began_at


class TestTimeAndEnergy:
    @given(works, a100_limits_watts)
    def test_work_takes_the_time_and_the_energy_of_its_operating_point(self, work, limit_watts):
        time_source = VirtualTime()
        gpu = SimulatedGpu(A100, time_source=time_source, power_limit_watts=limit_watts)
        before_joules = gpu.exact_energy_joules()
        point = point_of(work, limit_watts)
        assert elapsed_seconds(time_source, gpu, work) == pytest.approx(point.seconds)
        assert gpu.exact_energy_joules() - before_joules == pytest.approx(point.energy_joules, rel=1e-5)

    @given(st.lists(st.tuples(works, a100_limits_watts, st.floats(0.0, 5.0)), min_size=1, max_size=5))
    def test_energy_is_the_sum_of_all_work_and_all_waiting(self, parts):
        time_source = VirtualTime()
        gpu = SimulatedGpu(A100, time_source=time_source)
        expected_joules = gpu.exact_energy_joules()
        for work, limit_watts, idle_seconds in parts:
            gpu.set_power_limit(limit_watts)
            gpu.execute(work)
            time_source.advance(idle_seconds)
            expected_joules += point_of(work, limit_watts).energy_joules
            expected_joules += idle_seconds * A100.physics.blocking_power_watts
        assert gpu.exact_energy_joules() == pytest.approx(expected_joules)

    @given(works, st.lists(st.floats(0.0, 2.0), max_size=10))
    def test_looking_at_the_gpu_changes_nothing(self, work, looks_after_seconds):
        watched_clock, unwatched_clock = VirtualTime(), VirtualTime()
        watched, unwatched = (
            SimulatedGpu(A100, time_source=watched_clock),
            SimulatedGpu(A100, time_source=unwatched_clock),
        )
        for gpu in (watched, unwatched):
            gpu.submit(work)
        for seconds in looks_after_seconds:
            watched_clock.advance(seconds)
            watched.read_power_watts()
        unwatched_clock.advance(sum(looks_after_seconds))
        for gpu in (watched, unwatched):
            gpu.synchronize()
        assert watched_clock.now() == pytest.approx(unwatched_clock.now(), abs=1e-6)
        assert watched.exact_energy_joules() == pytest.approx(unwatched.exact_energy_joules(), abs=1e-3)

    @pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
    def test_the_gpu_is_as_its_preset_says(self, preset):
        gpu = SimulatedGpu(preset, time_source=VirtualTime())
        assert gpu.name == f"{preset.name} (simulated)"
        assert gpu.read_power_limit_watts() == gpu.read_default_power_limit_watts() == preset.default_limit_watts
        assert gpu.read_power_limit_range_watts() == preset.limit_range_watts
        assert gpu.energy_counter_period_seconds == preset.counter_period_seconds
        clocks_mhz = gpu.read_supported_sm_clocks_mhz()
        assert (clocks_mhz[0], clocks_mhz[-1]) == (preset.highest_clock_mhz, preset.lowest_clock_mhz)
        gpu.execute(WORK)
        assert elapsed_seconds(gpu._time_source, gpu, WORK) == pytest.approx(
            preset.physics.operating_point(WORK, preset.default_limit_watts).seconds
        )

    def test_a_limit_to_start_with_is_checked_like_any_other(self):
        with pytest.raises(UsageError, match="limit_watts is 401"):
            SimulatedGpu(A100, power_limit_watts=401)

    def test_a_locked_clock_stretches_work_by_the_physics_until_it_is_unlocked(self, time_source, gpu):
        gpu.lock_sm_clock(705)
        assert elapsed_seconds(time_source, gpu, WORK) == pytest.approx(point_of(WORK, 400.0, clock_mhz=705).seconds)
        gpu.unlock_sm_clock()
        assert elapsed_seconds(time_source, gpu, WORK) == pytest.approx(point_of(WORK, 400.0).seconds)

    def test_power_and_clock_are_those_of_the_present_stage(self, time_source, gpu):
        gpu.set_power_limit(250.0)
        point = point_of(WORK, 250.0)
        gpu.submit(WORK)
        assert gpu.read_power_watts() == pytest.approx(point.active_power_watts, abs=1e-3)
        assert gpu.read_sm_clock_mhz() == round(point.clock_fraction * A100.highest_clock_mhz)
        time_source.advance(point.active_seconds + point.blocking_seconds / 2)
        assert gpu.read_power_watts() == pytest.approx(A100.physics.blocking_power_watts, abs=1e-3)
        time_source.advance(point.blocking_seconds)
        assert gpu.read_power_watts() == pytest.approx(A100.physics.blocking_power_watts, abs=1e-3)
        assert gpu.read_sm_clock_mhz() == A100.lowest_clock_mhz

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("seconds", [1e-300, 1e-15, 1e-10, 1e-9])
    def test_work_too_short_for_the_clock_to_tell_still_ends(self, seconds):
        gpu = SimulatedGpu(A100, time_source=VirtualTime(start_seconds=1e6))
        gpu.execute(Work(seconds=seconds, active_power_watts=300.0, active_fraction=0.5))
        assert gpu.read_power_watts() == pytest.approx(A100.physics.blocking_power_watts, abs=1e-3)


class TestQueue:
    def test_submitting_takes_no_time(self, time_source, gpu):
        began_at = time_source.now()
        gpu.submit(WORK)
        assert time_source.now() == began_at

    def test_queued_work_runs_one_after_the_other(self, time_source, gpu):
        began_at = time_source.now()
        gpu.submit(WORK)
        gpu.submit(COMPUTE_ONLY)
        gpu.synchronize()
        expected_seconds = point_of(WORK, 400.0).seconds + point_of(COMPUTE_ONLY, 400.0).seconds
        assert time_source.now() - began_at == pytest.approx(expected_seconds)

    def test_executing_waits_for_what_was_queued_before(self, time_source, gpu):
        gpu.submit(WORK)
        assert elapsed_seconds(time_source, gpu, WORK) == pytest.approx(2 * point_of(WORK, 400.0).seconds)

    def test_work_runs_while_nobody_waits(self, time_source, gpu):
        point = point_of(WORK, 400.0)
        gpu.submit(WORK)
        time_source.advance(point.seconds / 4)
        began_at = time_source.now()
        gpu.synchronize()
        assert time_source.now() - began_at == pytest.approx(point.seconds * 3 / 4)

    def test_an_empty_queue_is_not_waited_for(self, time_source, gpu):
        began_at = time_source.now()
        gpu.synchronize()
        assert time_source.now() == began_at

    def test_work_submitted_after_an_idle_time_starts_then(self, time_source, gpu):
        time_source.advance(100.0)
        assert elapsed_seconds(time_source, gpu, WORK) == pytest.approx(point_of(WORK, 400.0).seconds)


class TestSettingsChangedMeanwhile:
    @given(a100_limits_watts, a100_limits_watts, st.floats(0.01, 0.99))
    def test_a_new_limit_holds_for_what_is_left_of_the_work(self, first_watts, second_watts, done_fraction):
        time_source = VirtualTime()
        gpu = SimulatedGpu(A100, time_source=time_source, power_limit_watts=first_watts)
        first, second = point_of(COMPUTE_ONLY, first_watts), point_of(COMPUTE_ONLY, second_watts)
        began_at, before_joules = time_source.now(), gpu.exact_energy_joules()
        gpu.submit(COMPUTE_ONLY)
        time_source.advance(first.seconds * done_fraction)
        gpu.set_power_limit(second_watts)
        gpu.synchronize()
        left_fraction = 1 - done_fraction
        expected_seconds = first.seconds * done_fraction + second.seconds * left_fraction
        expected_joules = first.energy_joules * done_fraction + second.energy_joules * left_fraction
        assert time_source.now() - began_at == pytest.approx(expected_seconds)
        assert gpu.exact_energy_joules() - before_joules == pytest.approx(expected_joules)

    def test_another_thread_that_raises_the_limit_hastens_work_that_is_waited_for(self):
        gpu = SimulatedGpu(A100, power_limit_watts=100.0)
        work = Work(seconds=1.0, active_power_watts=420.0, active_fraction=1.0, compute_bound_fraction=1.0)
        slow_seconds = point_of(work, 100.0).seconds
        assert slow_seconds > 8
        began_at = time.monotonic()
        raising = threading.Timer(0.05, gpu.set_power_limit, [400.0])
        raising.start()
        gpu.execute(work)
        raising.join()
        assert point_of(work, 400.0).seconds < time.monotonic() - began_at < slow_seconds

    def test_another_thread_that_locks_the_clock_slows_work_that_is_waited_for(self):
        gpu = SimulatedGpu(A100)
        fast_seconds = point_of(COMPUTE_ONLY, 400.0, clock_mhz=1410).seconds
        began_at = time.monotonic()
        locking = threading.Timer(0.05, gpu.lock_sm_clock, [705])
        locking.start()
        gpu.execute(COMPUTE_ONLY)
        locking.join()
        assert time.monotonic() - began_at > fast_seconds * 1.2

    def test_a_signal_handler_may_change_the_limit_at_any_moment(self):
        """A handler of SIGTERM restores a limit so: it must neither hang nor disturb the interrupted call."""
        program = """
import itertools, signal
from zeus_core.device import SimulatedGpu, Work, find_preset

gpu = SimulatedGpu(find_preset("A100"))
limits_watts = itertools.cycle([200.0, 400.0])
pauses_seconds = itertools.cycle(microseconds * 1e-6 for microseconds in range(200, 1000, 37))

def change_limit(*_):
    gpu.set_power_limit(next(limits_watts))
    signal.setitimer(signal.ITIMER_REAL, next(pauses_seconds))

signal.signal(signal.SIGALRM, change_limit)
signal.setitimer(signal.ITIMER_REAL, 1e-3)
for _ in range(3000):
    gpu.execute(Work(seconds=2e-4, active_power_watts=450.0, active_fraction=0.5))
signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(Path(zeus_core.__file__).parents[1])},
            timeout=240,
            check=True,
        )


class TestEnergyCounter:
    @given(st.lists(st.one_of(st.floats(0.0, 0.5), works), max_size=20))
    def test_the_counter_lags_the_energy_by_at_most_one_period(self, parts):
        time_source = VirtualTime()
        gpu = SimulatedGpu(A100, time_source=time_source)
        for part in parts:
            if isinstance(part, Work):
                gpu.submit(part)
            else:
                time_source.advance(part)
            lag_joules = gpu.exact_energy_joules() - gpu.read_energy_counter_joules()
            highest_power_watts = 600.0
            assert -1e-3 <= lag_joules <= highest_power_watts * A100.counter_period_seconds

    def test_the_counter_lags_only_by_what_was_drawn_since_its_last_step(self, time_source, gpu):
        time_source.advance(10.0)
        last_step_seconds = self.first_step_seconds(time_source, gpu)
        time_source.advance(0.07)
        assert time_source.now() == pytest.approx(last_step_seconds + 0.07, abs=2e-3)
        lag_joules = gpu.exact_energy_joules() - gpu.read_energy_counter_joules()
        assert lag_joules == pytest.approx(0.07 * A100.physics.blocking_power_watts, rel=0.02)

    @pytest.mark.parametrize("preset", [find_preset("V100"), A100], ids=lambda preset: preset.name)
    def test_the_counter_steps_once_a_period_and_stands_still_between(self, time_source, preset):
        gpu = SimulatedGpu(preset, time_source=time_source)
        gpu.submit(Work(seconds=60.0, active_power_watts=250.0))
        look_seconds = preset.counter_period_seconds / 50
        steps_at = []
        latest_joules = gpu.read_energy_counter_joules()
        for _ in range(500):
            time_source.advance(look_seconds)
            if gpu.read_energy_counter_joules() != latest_joules:
                latest_joules = gpu.read_energy_counter_joules()
                steps_at.append(time_source.now())
        assert len(steps_at) == 10
        for earlier, later in itertools.pairwise(steps_at):
            assert later - earlier == pytest.approx(preset.counter_period_seconds, abs=1.5 * look_seconds)

    def test_the_counters_of_two_devices_are_out_of_step(self, time_source):
        steps_at = [
            self.first_step_seconds(time_source, SimulatedGpu(A100, index, time_source=time_source)) for index in (0, 1)
        ]
        phases_seconds = [seconds % A100.counter_period_seconds for seconds in steps_at]
        assert abs(phases_seconds[0] - phases_seconds[1]) > A100.counter_period_seconds / 10

    def test_the_counter_is_in_whole_millijoules(self, time_source, gpu):
        gpu.execute(WORK)
        time_source.advance(1.0)
        millijoules = gpu.read_energy_counter_joules() * 1000
        assert millijoules == pytest.approx(round(millijoules), abs=1e-6)
        assert millijoules > 0

    @staticmethod
    def first_step_seconds(time_source: VirtualTime, gpu: SimulatedGpu) -> float:
        before_joules = gpu.read_energy_counter_joules()
        while gpu.read_energy_counter_joules() == before_joules:
            time_source.advance(1e-3)
        return time_source.now()


class TestBoardsOfOneModel:
    """They differ in the power they take at a clock, and so in speed under one limit."""

    def boards(self, spread: float, seed: int = 0) -> list[SimulatedGpu]:
        noise = SimulatedNoise(0.0, 0.0, seed, spread)
        return [SimulatedGpu(A100, index, time_source=VirtualTime(), noise=noise) for index in range(8)]

    def seconds_of(self, gpu: SimulatedGpu) -> float:
        begin = gpu._time_source.now()
        gpu.execute(Work(0.5, 440.0, 1.0, 0.85))
        return gpu._time_source.now() - begin

    @pytest.mark.parametrize("seed", range(3))
    def test_under_one_limit_speed_differs_and_at_one_clock_power_does(self, seed: int) -> None:
        boards = self.boards(0.12, seed)
        seconds = [self.seconds_of(board) for board in boards]
        assert 1.06 < max(seconds) / min(seconds) < 1.10
        energies, seconds = [], []
        for board in boards:
            board.lock_sm_clock(1200)
            begin = board.exact_energy_joules()
            seconds.append(self.seconds_of(board))
            energies.append(board.exact_energy_joules() - begin)
        assert max(seconds) == pytest.approx(min(seconds))
        assert 1.15 < max(energies) / min(energies) < 1.28
        assert all(board.read_power_watts() < 400 for board in boards)

    def test_without_a_spread_and_with_the_same_seed_they_are_alike(self) -> None:
        assert len({self.seconds_of(board) for board in self.boards(0.0)}) == 1
        first, second = ([self.seconds_of(board) for board in self.boards(0.1, seed=3)] for _ in range(2))
        assert first == second
        assert first != [self.seconds_of(board) for board in self.boards(0.1, seed=4)]


class TestNoise:
    WORKS = 2000

    def seconds_and_joules(self, noise: SimulatedNoise | None, index: int = 0) -> list[tuple[float, float]]:
        time_source = VirtualTime()
        gpu = SimulatedGpu(A100, index, time_source=time_source, noise=noise)
        values = []
        for _ in range(self.WORKS):
            before_joules = gpu.exact_energy_joules()
            seconds = elapsed_seconds(time_source, gpu, COMPUTE_ONLY)
            values.append((seconds, gpu.exact_energy_joules() - before_joules))
        return values

    def test_there_is_none_by_default(self):
        seconds, joules = zip(*self.seconds_and_joules(None), strict=True)
        assert max(seconds) == pytest.approx(min(seconds))
        assert max(joules) == pytest.approx(min(joules))

    def test_time_and_power_scatter_by_the_stated_coefficients_around_the_physics(self):
        values = self.seconds_and_joules(SimulatedNoise(time_cv=0.01, power_cv=0.03))
        point = point_of(COMPUTE_ONLY, 400.0)
        for samples, mean, cv in (
            ([seconds for seconds, _ in values], point.seconds, 0.01),
            ([joules / seconds for seconds, joules in values], point.active_power_watts, 0.03),
        ):
            assert statistics.mean(samples) == pytest.approx(mean, rel=0.005)
            assert statistics.stdev(samples) / mean == pytest.approx(cv, rel=0.15)

    def test_the_same_seed_scatters_the_same_way(self):
        noise = SimulatedNoise(seed=7)
        assert self.seconds_and_joules(noise) == self.seconds_and_joules(noise)

    def test_another_seed_or_another_device_scatters_differently(self):
        values = self.seconds_and_joules(SimulatedNoise(seed=7))
        assert self.seconds_and_joules(SimulatedNoise(seed=8)) != values
        assert self.seconds_and_joules(SimulatedNoise(seed=7), index=1) != values

    @pytest.mark.parametrize("argument", ["time_cv", "power_cv"])
    @pytest.mark.parametrize("value", [-0.01, 0.21, float("nan")])
    def test_a_coefficient_out_of_range_is_a_usage_error_that_names_it(self, argument, value):
        with pytest.raises(UsageError, match=rf"SimulatedNoise\.{argument} is {value!r}"):
            SimulatedNoise(**{argument: value})


class TestWithoutControl:
    @pytest.fixture
    def gpu(self, time_source):
        return SimulatedGpu(A100, time_source=time_source, grants_control=False)

    def test_changing_anything_is_denied_and_changes_nothing(self, time_source, gpu):
        for change in (
            lambda: gpu.set_power_limit(200.0),
            lambda: gpu.lock_sm_clock(705),
            lambda: gpu.unlock_sm_clock(),
        ):
            with pytest.raises(PermissionDeniedError, match=r"A100-SXM4-80GB \(simulated\)"):
                change()
        assert gpu.read_power_limit_watts() == 400.0
        assert elapsed_seconds(time_source, gpu, WORK) == pytest.approx(point_of(WORK, 400.0).seconds)

    def test_a_wrong_value_is_a_usage_error_before_it_is_denied(self, gpu):
        with pytest.raises(UsageError):
            gpu.set_power_limit(1.0)


class TestIdentity:
    def test_the_uuid_depends_on_model_and_index_alone(self):
        assert SimulatedGpu(A100, 3).uuid == SimulatedGpu(A100, 3, power_limit_watts=300.0).uuid
        assert len({SimulatedGpu(preset, index).uuid for preset in PRESETS.values() for index in range(8)}) == 56

    def test_the_name_says_that_it_is_simulated(self):
        assert SimulatedGpu(A40).name == "A40 (simulated)"


class InterruptedClock(MonotonicTime):
    """A signal comes while a thread begins to wait, just as another one changes a setting."""

    def __init__(self, handle):
        self._handle = handle

    def wait(self, event, timeout_seconds):
        with event._cond:  # as in Event.wait
            self._handle()


def test_a_signal_handler_can_restore_a_setting_at_any_moment():
    handled = threading.Event()

    def handle():
        if not handled.is_set():
            handled.set()
            changing.start()
            while gpu._locked_clock_mhz != 1110:
                time.sleep(0.001)
            gpu.unlock_sm_clock()

    gpu = SimulatedGpu(A100, time_source=InterruptedClock(handle))
    changing = threading.Thread(target=gpu.lock_sm_clock, args=[1110], daemon=True)
    training = threading.Thread(target=gpu.execute, args=[Work(0.3, 300.0)], daemon=True)
    training.start()
    training.join(30.0)
    assert not training.is_alive()
    changing.join(30.0)
    assert gpu._locked_clock_mhz == 1410
