"""The tests that every `Gpu` passes, as a class."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from zeus_core.errors import NotSupportedError, PermissionDeniedError, UsageError

_READINGS = 100  # enough for threads to overlap, and quick where a reading takes a millisecond


class GpuContract:
    """Derive a test class with a fixture `gpu`.

    A test is skipped if this process lacks the right, or the GPU the function, that it needs. Each test that changes
    the hardware restores the original power limit and unlocks the SM clock.
    """

    def test_the_uuid_has_the_form_of_the_driver(self, gpu):
        """`GPU-` and something, always the same."""
        assert gpu.uuid.startswith("GPU-")
        assert len(gpu.uuid) > len("GPU-")
        assert gpu.uuid == gpu.uuid.strip()

    def test_the_name_tells_people_which_model_it_is(self, gpu):
        """The name is not empty, and says so if the device is simulated."""
        assert gpu.name.strip()
        assert isinstance(gpu.is_simulated, bool)
        if gpu.is_simulated:
            assert "simulated" in gpu.name

    def test_the_counter_is_updated_often(self, gpu):
        """A window of some seconds can be measured with it."""
        assert 0 < gpu.energy_counter_period_seconds < 10

    def test_the_original_and_the_default_limit_lie_in_the_range_of_the_board(self, gpu):
        """The board accepts both."""
        lowest_watts, highest_watts = gpu.read_power_limit_range_watts()
        assert 0 < lowest_watts <= highest_watts
        assert lowest_watts <= gpu.read_power_limit_watts() <= highest_watts
        assert lowest_watts <= gpu.read_default_power_limit_watts() <= highest_watts

    def test_the_energy_counter_never_goes_back(self, gpu):
        """Readings one after the other never fall."""
        with _skipped_if_impossible():
            readings = [gpu.read_energy_counter_joules() for _ in range(_READINGS)]
        assert readings[0] >= 0
        assert readings == sorted(readings)

    def test_the_power_is_positive(self, gpu):
        """No GPU draws nothing."""
        assert gpu.read_power_watts() > 0

    def test_a_limit_that_was_set_reads_back(self, gpu):
        """Both ends of the range and a limit between them read back."""
        lowest_watts, highest_watts = gpu.read_power_limit_range_watts()
        with _restored_hardware(gpu):
            for limit_watts in (lowest_watts, (lowest_watts + highest_watts) // 2, highest_watts):
                gpu.set_power_limit(limit_watts)
                assert gpu.read_power_limit_watts() == limit_watts
                assert 0 < gpu.read_enforced_power_limit_watts() <= limit_watts

    def test_the_original_limit_can_be_restored(self, gpu):
        """The original limit is restored to the milliwatt."""
        original_watts = gpu.read_power_limit_watts()
        with _restored_hardware(gpu):
            gpu.set_power_limit(gpu.read_power_limit_range_watts().lowest_watts)
            gpu.set_power_limit(original_watts)
            assert gpu.read_power_limit_watts() == original_watts

    @pytest.mark.parametrize("side", ["below", "above", "no number"])
    def test_a_limit_out_of_range_is_a_usage_error_that_names_value_and_range(self, gpu, side):
        """This does not depend on the right to set limits, and nothing changes."""
        lowest_watts, highest_watts = gpu.read_power_limit_range_watts()
        limit_watts = {"below": lowest_watts - 1, "above": highest_watts + 1, "no number": float("nan")}[side]
        original_watts = gpu.read_power_limit_watts()
        with pytest.raises(UsageError) as raised:
            gpu.set_power_limit(limit_watts)
        for number in (limit_watts, lowest_watts, highest_watts):
            assert f"{number:g}" in str(raised.value)
        assert gpu.read_power_limit_watts() == original_watts

    def test_supported_clocks_come_highest_first_and_once_each(self, gpu):
        """At least one, all positive."""
        with _skipped_if_impossible():
            clocks_mhz = gpu.read_supported_sm_clocks_mhz()
        assert len(clocks_mhz) > 0
        assert list(clocks_mhz) == sorted(set(clocks_mhz), reverse=True)
        assert clocks_mhz[-1] > 0

    def test_the_present_clock_is_not_above_the_highest_supported_one(self, gpu):
        """An idle GPU may have a clock below the lowest."""
        with _skipped_if_impossible():
            assert 0 <= gpu.read_sm_clock_mhz() <= gpu.read_supported_sm_clocks_mhz()[0]

    def test_every_end_of_the_supported_clocks_can_be_locked_and_unlocked(self, gpu):
        """Unlocking twice does no harm."""
        with _restored_hardware(gpu):
            clocks_mhz = gpu.read_supported_sm_clocks_mhz()
            for clock_mhz in (clocks_mhz[0], clocks_mhz[-1]):
                gpu.lock_sm_clock(clock_mhz)
            gpu.unlock_sm_clock()
            gpu.unlock_sm_clock()

    def test_locking_an_unsupported_clock_is_a_usage_error_that_names_it(self, gpu):
        """This does not depend on the right to lock clocks."""
        with _skipped_if_impossible():
            clocks_mhz = gpu.read_supported_sm_clocks_mhz()
        for clock_mhz in (clocks_mhz[0] + 1, clocks_mhz[-1] - 1, 0):
            with pytest.raises(UsageError, match=str(clock_mhz)):
                gpu.lock_sm_clock(clock_mhz)

    def test_several_threads_can_read_at_once(self, gpu):
        """Each sees a counter that never goes back."""
        threads = 4
        with _skipped_if_impossible(), ThreadPoolExecutor(threads) as pool:
            readings_of_threads = list(pool.map(_read_many, [gpu] * threads))
        for readings in readings_of_threads:
            assert readings == sorted(readings)


def _read_many(gpu):
    others = (
        gpu.read_power_watts,
        gpu.read_power_limit_watts,
        gpu.read_enforced_power_limit_watts,
        gpu.read_sm_clock_mhz,
    )
    readings_joules = []
    for _ in range(_READINGS):
        readings_joules.append(gpu.read_energy_counter_joules())
        for read in others:
            read()
    return readings_joules


@contextmanager
def _skipped_if_impossible():
    try:
        yield
    except (NotSupportedError, PermissionDeniedError) as error:
        pytest.skip(str(error))


@contextmanager
def _restored_hardware(gpu):
    """Restore limit and clock after a test that changes them. Skip the test if they cannot be changed."""
    original_watts = gpu.read_power_limit_watts()
    try:
        with _skipped_if_impossible():
            yield
    finally:
        # Hardware that cannot be restored could not be changed either.
        with suppress(NotSupportedError, PermissionDeniedError):
            gpu.set_power_limit(original_watts)
        with suppress(NotSupportedError, PermissionDeniedError):
            gpu.unlock_sm_clock()
