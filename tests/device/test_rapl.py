"""CPU and DRAM energy: wrap-arounds, which zone is what, trees that cannot be read, threads and forks."""

import errno
import json
import os
import signal
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.cpu import CpuContract
from zeus_core.device import discover_cpus
from zeus_core.device.cpu import Cpu, CpuEnergyCounters
from zeus_core.device.rapl import RaplZone, WrappingCounter
from zeus_core.errors import DeviceLostError, DriverFaultError, PermissionDeniedError
from zeus_core.testing import FakeRapl

TYPICAL_RANGE = 262_143_328_850
RANGES = (1, 2, 999, 1000, 65_532_610_987, TYPICAL_RANGE, 2**32 - 1, (2**32 - 1) * 1_000_000)

ranges = st.sampled_from(RANGES) | st.integers(1, 2**52)


@pytest.fixture
def rapl(tmp_path) -> FakeRapl:
    return FakeRapl(tmp_path)


def discover(rapl):
    return discover_cpus(rapl.root, read_text=rapl.read_text)


def only_cpu(rapl):
    discovery = discover(rapl)
    assert discovery.unavailable_because is None
    (cpu,) = discovery.cpus
    return cpu


@pytest.mark.parametrize("zones", ["package", "package with memory", "two dies"])
class TestContract(CpuContract):
    @pytest.fixture
    def cpu(self, tmp_path, zones):
        rapl = FakeRapl(tmp_path)
        for die in (0, 1) if zones == "two dies" else (None,):
            package = rapl.add_package(0, die)
            if zones == "package with memory":
                rapl.add_zone("dram", within=package)
        return only_cpu(rapl)


class TestWrapAround:
    @pytest.mark.parametrize("max_energy_range", RANGES)
    def test_a_million_sequences_are_counted_exactly(self, max_energy_range):
        random = np.random.default_rng(max_energy_range % 2**32)
        sequences, steps = 1_000_000 // len(RANGES), 8
        increments = random.integers(0, (max_energy_range + 1) // 2 + 1, (sequences, steps))
        true_totals = increments.cumsum(axis=-1)
        start = random.integers(0, max_energy_range + 1, (sequences, 1))
        readings = (start + np.hstack([np.zeros_like(start), true_totals])) % (max_energy_range + 1)
        assert (np.diff(readings) < 0).any(axis=-1).mean() > 0.5, "most of the sequences should wrap around"
        counter = WrappingCounter(max_energy_range, readings[:, 0])  # of all sequences at once
        for total, reading in zip(true_totals.T, readings.T[1:], strict=True):
            assert np.array_equal(counter.advance(reading), total)

    @settings(max_examples=400, deadline=None)
    @given(data=st.data(), max_energy_range=ranges)
    def test_the_counter_is_exact_for_increments_of_less_than_the_range(self, data, max_energy_range):
        start = data.draw(st.integers(0, max_energy_range))
        increments = data.draw(st.lists(st.integers(0, max_energy_range), max_size=12))
        counter = WrappingCounter(max_energy_range, start)
        true_total = 0
        for increment in increments:
            true_total += increment
            assert counter.advance((start + true_total) % (max_energy_range + 1)) == true_total

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), st.sampled_from([15_300, 61_035, 1_000_000_000])
    )
    def test_a_kernel_register_is_at_most_a_step_low_per_wrap_around(self, increments, step_nanojoules):
        """Convert as intel_rapl_common.c does: a register of 32 bits, times the step, to whole microjoules."""
        counter = WrappingCounter((2**32 - 1) * step_nanojoules // 1000, 0)
        steps = counted = 0
        for increment in increments:
            steps += increment
            counted = counter.advance(steps % 2**32 * step_nanojoules // 1000)
        true_total, wraps = steps * step_nanojoules / 1000, steps >> 32
        assert true_total - wraps * step_nanojoules / 1000 - 1 <= counted <= true_total

    @settings(max_examples=100, deadline=None)
    @given(data=st.data(), max_energy_range=ranges, layout=st.sampled_from(["sysfs", "flat", "nested"]))
    def test_the_files_of_a_package_and_its_memory_are_counted_exactly(self, data, max_energy_range, layout):
        below_the_range = st.integers(0, max_energy_range)
        with tempfile.TemporaryDirectory() as folder:
            rapl = FakeRapl(Path(folder), layout=layout)
            package = rapl.add_package(0, energy=data.draw(below_the_range), max_energy_range=max_energy_range)
            dram = rapl.add_zone("dram", package, energy=data.draw(below_the_range), max_energy_range=max_energy_range)
            cpu = only_cpu(rapl)
            package_total = dram_total = 0
            for package_energy, dram_energy in data.draw(st.lists(st.tuples(below_the_range, below_the_range))):
                rapl.add_energy(package, package_energy)
                rapl.add_energy(dram, dram_energy)
                package_total += package_energy
                dram_total += dram_energy
                assert cpu.read_energy_counters_joules() == (package_total / 10**6, dram_total / 10**6)

    def test_joules_are_counted_from_discovery_on(self, rapl):
        package = rapl.add_package(0, energy=TYPICAL_RANGE - 1_000_000)
        cpu: Cpu = only_cpu(rapl)
        assert cpu.read_energy_counters_joules() == CpuEnergyCounters(package_joules=0.0, dram_joules=None)
        rapl.add_energy(package, 2_500_000)
        assert cpu.read_energy_counters_joules().package_joules == 2.5


class TestZones:
    @pytest.mark.parametrize("layout", ["sysfs", "flat", "nested"])
    def test_each_zone_is_counted_once_and_only_packages_are_cpus(self, tmp_path, layout):
        rapl = FakeRapl(tmp_path, layout=layout)
        for index in (0, 1):
            package = rapl.add_package(index)
            for part in ("core", "uncore", "dram"):
                rapl.add_zone(part, within=package)
            rapl.add_zone(f"package-{index}", within="intel-rapl-mmio")
        rapl.add_zone("psys")
        discovery = discover(rapl)
        assert discovery.unavailable_because is None
        assert [(cpu.index, cpu.name, cpu.has_dram) for cpu in discovery.cpus] == [
            (0, "package-0", True),
            (1, "package-1", True),
        ]
        for zone, joules in (("0", 100), ("0:0", 7), ("0:1", 7), ("0:2", 10), ("1", 200), ("1:2", 20), ("2", 1000)):
            rapl.add_energy(f"intel-rapl:{zone}", joules * 10**6)
        rapl.add_energy("intel-rapl-mmio:0", 100 * 10**6)
        assert [cpu.read_energy_counters_joules() for cpu in discovery.cpus] == [(100.0, 10.0), (200.0, 20.0)]

    def test_a_package_is_known_by_the_number_in_its_name(self, rapl):
        zones = {index: rapl.add_package(index) for index in (7, 0, 3)}
        rapl.add_energy(zones[7], 1)
        rapl.add_zone("dram", within=zones[3])
        assert [(cpu.index, cpu.has_dram) for cpu in discover(rapl).cpus] == [(0, False), (3, True), (7, False)]

    def test_dies_of_a_package_add_up(self, rapl):
        dies = [rapl.add_package(0, die=die, energy=die * 1000) for die in (0, 1)]
        drams = [rapl.add_zone("dram", within=die) for die in dies]
        cpu = only_cpu(rapl)
        assert (cpu.index, cpu.name) == (0, "package-0")
        for zone, microjoules in zip(dies + drams, (1, 2, 30, 40), strict=True):
            rapl.add_energy(zone, microjoules)
        assert cpu.read_energy_counters_joules() == (3e-6, 70e-6)

    def test_sockets_beyond_the_tenth_have_hexadecimal_folders(self, rapl):
        folders = [rapl.add_package(index) for index in range(18)]
        assert folders[10] == "intel-rapl:a"
        assert folders[16] == "intel-rapl:10"
        memory = rapl.add_zone("dram", within=folders[16])
        rapl.add_energy(memory, 1)
        cpus = discover(rapl).cpus
        assert [cpu.index for cpu in cpus] == list(range(18))
        assert [cpu.index for cpu in cpus if cpu.has_dram] == [16], "what is in intel-rapl:10 is not in intel-rapl:1"

    def test_a_second_platform_zone_is_no_package_either(self, rapl):
        rapl.add_package(0)
        rapl.add_zone("psys")
        rapl.add_zone("psys-1")
        discovery = discover(rapl)
        assert len(discovery.cpus) == 1

    @pytest.mark.parametrize("name", ["package", "package-", "package-x", "package-0-die", "Package-0", "xpackage-0"])
    def test_a_zone_that_is_not_called_a_package_is_none(self, rapl, name):
        rapl.add_zone(name)
        assert discover(rapl).cpus == ()


class TestAbsence:
    def test_a_machine_without_rapl_says_so(self, tmp_path):
        for root in (tmp_path / "absent", tmp_path):
            discovery = discover_cpus(root)
            assert discovery.cpus == ()
            assert "no RAPL" in discovery.unavailable_because

    def test_this_machine_can_be_asked(self):
        discovery = discover_cpus()
        assert discovery.cpus or discovery.unavailable_because

    def test_a_platform_zone_alone_is_no_cpu(self, rapl):
        rapl.add_zone("psys")
        discovery = discover(rapl)
        assert discovery.cpus == ()
        assert "no RAPL energy counters of CPUs" in discovery.unavailable_because

    def test_unreadable_counters_are_absent_with_the_command_that_helps(self, rapl):
        zones = [rapl.add_package(0), rapl.add_package(1)]
        zones.append(rapl.add_zone("dram", within=zones[1]))
        for zone in zones:
            rapl.make_unreadable(zone)
        discovery = discover(rapl)
        assert discovery.cpus == ()
        reason = discovery.unavailable_because
        for zone in zones:
            assert str(rapl.path(zone)) in reason
        assert reason.count("sudo") == 1
        assert f"sudo chmod a+r {rapl.root}/intel-rapl:*/energy_uj" in reason
        assert "until the next reboot" in reason
        assert "CVE-2020-8694" in reason
        rapl.make_readable()
        assert len(discover(rapl).cpus) == 2

    def test_the_command_covers_every_unreadable_file(self, tmp_path):
        rapl = FakeRapl(tmp_path / "a folder", layout="nested")
        package = rapl.add_package(0)
        dram = rapl.add_zone("dram", within=package)
        rapl.make_unreadable(package)
        rapl.make_unreadable(dram)
        reason = discover(rapl).unavailable_because
        root = rapl.root
        assert f"'{root}/intel-rapl'/intel-rapl:*/energy_uj" in reason
        assert f"'{root}/intel-rapl/{package}'/intel-rapl:*/energy_uj" in reason

    def test_unreadable_memory_leaves_the_package(self, rapl):
        package = rapl.add_package(0)
        dram = rapl.add_zone("dram", within=package)
        rapl.make_unreadable(dram)
        discovery = discover(rapl)
        (cpu,) = discovery.cpus
        assert not cpu.has_dram
        assert cpu.read_energy_counters_joules().dram_joules is None
        assert str(rapl.path(dram)) in discovery.unavailable_because

    def test_half_a_package_is_no_package_and_half_its_memory_is_none(self, rapl):
        dies = [rapl.add_package(0, die=die) for die in (0, 1)]
        drams = [rapl.add_zone("dram", within=die) for die in dies]
        rapl.make_unreadable(drams[1])
        assert [cpu.has_dram for cpu in discover(rapl).cpus] == [False]
        rapl.write(dies[0], "energy_uj", "?")
        assert discover(rapl).cpus == ()

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            *(("energy_uj", text) for text in ("", " ", "abc", "-5", "1.5", "1_000", "+7", "0x10", "٣", "²", "1 2")),
            ("energy_uj", "9" * 5000),
            ("max_energy_range_uj", "abc"),
        ],
    )
    def test_a_damaged_zone_is_left_out_and_its_file_named(self, rapl, file, text):
        damaged = rapl.add_package(0)
        rapl.add_package(1)
        rapl.write(damaged, file, text)
        discovery = discover(rapl)
        assert [cpu.index for cpu in discovery.cpus] == [1]
        assert str(rapl.path(damaged, file)) in discovery.unavailable_because
        assert len(discovery.unavailable_because) < 1000

    @pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj", "name"])
    def test_a_zone_that_lacks_a_file_is_skipped_and_the_file_named(self, rapl, file):
        damaged = rapl.add_package(0)
        rapl.add_package(1)
        rapl.remove(damaged, file)
        discovery = discover(rapl)
        assert [cpu.index for cpu in discovery.cpus] == [1]
        assert f"{rapl.path(damaged, file)} is not there" in discovery.unavailable_because

    def test_a_range_of_nothing_and_a_counter_beyond_its_range_are_damage(self, rapl):
        rapl.write(rapl.add_package(0), "max_energy_range_uj", "0")
        rapl.add_package(1, energy=1001, max_energy_range=1000)
        rapl.add_package(2, energy=1000, max_energy_range=1000)
        discovery = discover(rapl)
        assert [cpu.index for cpu in discovery.cpus] == [2]
        assert "max_energy_range_uj holds 0" in discovery.unavailable_because
        assert "holds 1001, more than the range of its counter, 1000" in discovery.unavailable_because

    def test_links_to_nowhere_as_in_a_container_are_explained(self, tmp_path):
        (tmp_path / "intel-rapl:0").symlink_to(tmp_path / "hidden")
        discovery = discover_cpus(tmp_path)
        assert discovery.cpus == ()
        assert "container" in discovery.unavailable_because

    def test_a_file_or_a_folder_in_the_wrong_place_is_no_exception(self, rapl):
        (rapl.root / "intel-rapl:9").write_text("not a folder")
        package = rapl.add_package(0)
        rapl.remove(package)
        rapl.path(package).mkdir()
        discovery = discover(rapl)
        assert discovery.cpus == ()
        assert str(rapl.path(package)) in discovery.unavailable_because

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8) | st.just("package-0"), min_size=3, max_size=3))
    def test_discovery_does_not_raise_for_any_content_of_the_files(self, texts):
        with tempfile.TemporaryDirectory() as folder:
            rapl = FakeRapl(Path(folder))
            package = rapl.add_package(0)
            for file, text in zip(("name", "max_energy_range_uj", "energy_uj"), texts, strict=True):
                rapl.write(package, file, text)
            discovery = discover(rapl)
            assert discovery.cpus or discovery.unavailable_because


class TestLaterFaults:
    @pytest.fixture
    def package(self, rapl):
        return rapl.add_package(0, energy=500)

    def test_a_right_taken_away(self, rapl, package):
        cpu = only_cpu(rapl)
        rapl.make_unreadable(package)
        with pytest.raises(PermissionDeniedError, match="sudo chmod"):
            cpu.read_energy_counters_joules()

    def test_a_file_that_vanished(self, rapl, package):
        cpu = only_cpu(rapl)
        rapl.remove(package)
        with pytest.raises(DeviceLostError, match="energy_uj"):
            cpu.read_energy_counters_joules()

    @pytest.mark.parametrize("text", ["", "garbage", "-1", str(TYPICAL_RANGE + 1)])
    def test_a_reading_that_is_none(self, rapl, package, text):
        cpu = only_cpu(rapl)
        rapl.write(package, "energy_uj", text)
        with pytest.raises(DriverFaultError, match="energy_uj"):
            cpu.read_energy_counters_joules()

    @pytest.mark.parametrize(
        ("code", "kind"),
        [(errno.EIO, DriverFaultError), (errno.ENODATA, DriverFaultError), (errno.ENODEV, DeviceLostError)],
    )
    def test_errors_of_the_kernel(self, rapl, package, code, kind):
        failing = False

        def read_text(path):
            if failing:
                raise OSError(code, os.strerror(code), str(path))
            return path.read_text()

        zone = RaplZone(rapl.path(package).parent, read_text)
        failing = True
        with pytest.raises(kind, match="energy_uj"):
            zone.read_energy_counter_microjoules()

    def test_nothing_is_lost_by_a_fault_that_passes(self, rapl, package):
        cpu = only_cpu(rapl)
        rapl.write(package, "energy_uj", "garbage")
        with pytest.raises(DriverFaultError):
            cpu.read_energy_counters_joules()
        rapl.write(package, "energy_uj", "1500")
        assert cpu.read_energy_counters_joules().package_joules == 1000e-6


class TestThreads:
    def test_totals_never_fall_and_come_out_exact(self, rapl):
        package = rapl.add_package(0, max_energy_range=100_000)
        cpu = only_cpu(rapl)
        done = threading.Event()

        def read_until_done():
            totals = []
            while not done.is_set():
                totals.append(cpu.read_energy_counters_joules().package_joules)
            return totals

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read_until_done) for _ in range(4)]
            for _ in range(100):
                rapl.add_energy(package, 40_000)
                cpu.read_energy_counters_joules()
            done.set()
        for reader in readers:
            totals = reader.result()
            assert totals == sorted(totals)
        assert cpu.read_energy_counters_joules().package_joules == 4.0


def in_a_fork(body):
    """Return the result of `body` in a forked process, which is ended if it hangs."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking while there are threads is what is tested
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(240)
        try:
            os.write(sending, json.dumps(body()).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return json.loads(text)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of POSIX")
class TestFork:
    def test_a_child_forked_while_a_thread_was_reading_can_read(self, rapl):
        package = rapl.add_package(0)
        reading, go_on = threading.Event(), threading.Event()

        def read_text(path):
            if threading.current_thread() is not threading.main_thread():
                reading.set()
                go_on.wait(240)
            return path.read_text()

        (cpu,) = discover_cpus(rapl.root, read_text=read_text).cpus
        thread = threading.Thread(target=cpu.read_energy_counters_joules)
        thread.start()
        assert reading.wait(240)
        rapl.add_energy(package, 3_000_000)
        assert in_a_fork(lambda: cpu.read_energy_counters_joules().package_joules) == 3.0
        go_on.set()
        thread.join(240)
        assert cpu.read_energy_counters_joules().package_joules == 3.0

    def test_parent_and_child_count_on_by_themselves(self, rapl):
        package = rapl.add_package(0, max_energy_range=1_000_000)
        cpu = only_cpu(rapl)
        rapl.add_energy(package, 900_000)
        cpu.read_energy_counters_joules()

        def child():
            rapl.add_energy(package, 900_000)
            return cpu.read_energy_counters_joules().package_joules

        assert in_a_fork(child) == 1.8
        assert cpu.read_energy_counters_joules().package_joules == 1.8
