"""The tests that every `Cpu` passes, as a class."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from zeus_core.device import Cpu, CpuEnergyCounters

_READINGS = 100  # enough for threads to overlap, and quick where a reading takes a millisecond
_THREADS = 4  # enough to collide, and few beside the tests that run at the same time


class CpuContract:
    """The tests that every implementation of `Cpu` passes.

    Derive a test class and return the CPU under test from its `cpu` fixture:

        from tests.contracts.cpu import CpuContract

        class TestMyCpu(CpuContract):
            @pytest.fixture
            def cpu(self):
                return MyCpu()
    """

    @pytest.fixture
    def cpu(self) -> Cpu:
        """The CPU under test."""
        raise NotImplementedError("a test class derived from CpuContract has a fixture `cpu`; see its docstring")

    def test_it_has_an_index_and_a_name(self, cpu: Cpu) -> None:
        """The index counts from 0, and the name is not empty."""
        assert cpu.index >= 0
        assert cpu.name.strip()

    def test_dram_is_measured_if_and_only_if_it_says_so(self, cpu: Cpu) -> None:
        """None is "not measured", which is not 0."""
        counters = cpu.read_energy_counters_joules()
        assert (counters.dram_joules is not None) is cpu.has_dram

    def test_no_counter_goes_back(self, cpu: Cpu) -> None:
        """Later readings are never lower."""
        _check_order(_read_many(cpu))

    def test_several_threads_can_read_at_once(self, cpu: Cpu) -> None:
        """Each thread sees counters that never go back."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for readings in pool.map(_read_many, [cpu] * _THREADS):
                _check_order(readings)


def _read_many(cpu: Cpu) -> list[CpuEnergyCounters]:
    return [cpu.read_energy_counters_joules() for _ in range(_READINGS)]


def _check_order(readings: list[CpuEnergyCounters]) -> None:
    packages = [reading.package_joules for reading in readings]
    drams = [reading.dram_joules or 0.0 for reading in readings]
    assert packages == sorted(packages)
    assert drams == sorted(drams)
