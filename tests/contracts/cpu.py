"""The tests that every `Cpu` passes, as a class."""

from concurrent.futures import ThreadPoolExecutor

_READINGS = 100  # enough for threads to overlap, and quick where a reading takes a millisecond
_THREADS = 4  # enough to collide, and few beside the tests that run at the same time


class CpuContract:
    """Derive a test class with a fixture `cpu`."""

    def test_it_has_an_index_and_a_name(self, cpu):
        """The index counts from 0, and the name is not empty."""
        assert cpu.index >= 0
        assert cpu.name.strip()

    def test_dram_is_measured_if_and_only_if_it_says_so(self, cpu):
        """None is "not measured", which is not 0."""
        counters = cpu.read_energy_counters_joules()
        assert (counters.dram_joules is not None) is cpu.has_dram

    def test_no_counter_goes_back(self, cpu):
        """Later readings are never lower."""
        _check_order(_read_many(cpu))

    def test_several_threads_can_read_at_once(self, cpu):
        """Each thread sees counters that never go back."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for readings in pool.map(_read_many, [cpu] * _THREADS):
                _check_order(readings)


def _read_many(cpu):
    return [cpu.read_energy_counters_joules() for _ in range(_READINGS)]


def _check_order(readings):
    packages = [reading.package_joules for reading in readings]
    drams = [reading.dram_joules or 0.0 for reading in readings]
    assert packages == sorted(packages)
    assert drams == sorted(drams)
