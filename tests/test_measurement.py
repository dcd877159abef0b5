"""The record of energy: sums, differences, the addition over ranks, and the way through JSON."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.measurement import Device, DeviceEnergy, Measurement

METHODS = ["counted", "integrated", "estimated", "lost"]  # best first

amounts = st.floats(0.0, 1e12)
known_energies = st.builds(DeviceEnergy, amounts, amounts, st.sampled_from(METHODS[:3]))
energies = known_energies | st.text().map(DeviceEnergy.lost)

GPUS = [Device("gpu", index, f"GPU-{index}") for index in (0, 3)]
CPUS = [Device("cpu", index, f"node-1/{index}") for index in (0, 1)]
DRAMS = [Device("dram", 0, "node-1/0")]


def measurements(of=energies, devices=(*GPUS, *CPUS, *DRAMS)):
    return st.builds(Measurement, amounts, st.fixed_dictionaries(dict.fromkeys(devices, of)))


@given(energies, energies)
def test_two_energies_add_up_and_what_is_lost_stays_lost(first, second):
    total = first + second
    assert METHODS.index(total.method) == max(METHODS.index(first.method), METHODS.index(second.method))
    if "lost" in {first.method, second.method}:
        assert (total.energy_joules, total.uncertainty_joules) == (None, None)
        assert total.lost_because in {first.lost_because, second.lost_because} - {None}
    else:
        assert total.energy_joules == first.energy_joules + second.energy_joules
        assert total.uncertainty_joules == first.uncertainty_joules + second.uncertainty_joules
        assert total.lost_because is None


@given(known_energies, known_energies)
def test_a_part_that_is_added_can_be_subtracted(first, second):
    rest = first + second - second
    assert rest.energy_joules == pytest.approx(first.energy_joules, abs=1e-3)
    assert rest.uncertainty_joules >= first.uncertainty_joules, "a difference is no surer than its parts"


@given(measurements(), measurements())
def test_measurements_add_up_device_by_device(first, second):
    total, rest = first + second, first - second
    assert (total.time, rest.time) == (first.time + second.time, first.time - second.time)
    for device in first.devices:
        assert total.devices[device] == first.devices[device] + second.devices[device]
        assert rest.devices[device] == first.devices[device] - second.devices[device]
    assert sum([first, second]) == total


def test_measurements_of_different_devices_cannot_be_added():
    first, second = (Measurement.from_energies(1.0, dict.fromkeys(gpus, 5.0)) for gpus in ([0], [0, 1]))
    with pytest.raises(UsageError, match=r"different devices.*\(GPU 0\) and \(GPU 0, GPU 1\)"):
        first + second
    with pytest.raises(UsageError, match="different devices"):
        second - first


def test_the_published_names_are_views_of_the_records():
    measurement = Measurement(
        2.0,
        {
            GPUS[0]: DeviceEnergy(100.0, 5.0),
            GPUS[1]: DeviceEnergy(50.0, 2.0, "estimated"),
            CPUS[1]: DeviceEnergy(30.0, 0.5),
            DRAMS[0]: DeviceEnergy.lost("unplugged"),
        },
    )
    assert measurement.gpu_energy == {0: 100.0, 3: 50.0}
    assert measurement.of("gpu") == {0: DeviceEnergy(100.0, 5.0), 3: DeviceEnergy(50.0, 2.0, "estimated")}
    assert (measurement.cpu_energy, measurement.of("cpu")) == ({1: 30.0}, {1: DeviceEnergy(30.0, 0.5)})
    assert (measurement.dram_energy, measurement.of("dram")) == ({0: None}, {0: DeviceEnergy.lost("unplugged")})
    assert measurement.lost_because == {"DRAM 0": "unplugged"}
    assert (measurement.total_energy, measurement.total_uncertainty_joules) == (150.0, 7.0)
    assert measurement.average_power_watts == 75.0
    assert measurement.node_energy_joules is None, "its DRAM was lost"
    assert Measurement.from_energies(1.0, {0: 1.0}, {0: 2.0}, {0: 3.0}).node_energy_joules == 6.0


def test_an_unmeasured_kind_is_none_and_no_gpus_use_nothing():
    alone = Measurement(2.0, {})
    assert (alone.gpu_energy, alone.cpu_energy, alone.dram_energy) == ({}, None, None)
    assert alone.of("gpu") == alone.of("cpu") == alone.of("dram") == {}
    assert alone.node_energy_joules is None
    assert alone.total_energy == 0.0


def test_one_lost_energy_makes_total_and_power_unknown_rather_than_smaller():
    measurement = Measurement.from_energies(2.0, {0: 100.0, 3: None})
    assert measurement.total_energy is measurement.total_uncertainty_joules is measurement.average_power_watts is None


def test_there_is_no_power_where_no_time_has_passed():
    assert Measurement.from_energies(0.0, {0: 0.0}).average_power_watts is None


def test_a_measurement_cannot_be_changed():
    with pytest.raises(AttributeError):
        Measurement(2.0, {}).time = 3.0
    with pytest.raises(AttributeError):
        Measurement(2.0, {}).gpu_energy = {}


class TestRanks:
    @given(st.lists(measurements(), min_size=1, max_size=4))
    def test_a_device_every_rank_sees_counts_once_by_the_lowest_knowing_rank(self, ranks):
        job = Measurement.from_ranks(ranks)
        assert job.time == max(rank.time for rank in ranks)
        assert job.devices.keys() == ranks[0].devices.keys()
        for device, energy in job.devices.items():
            known = [rank.devices[device] for rank in ranks if rank.devices[device].method != "lost"]
            assert energy == known[0] if known else energy.method == "lost"

    @given(st.lists(measurements(known_energies, GPUS[:1]), min_size=2, max_size=4))
    def test_devices_of_several_machines_are_numbered_and_all_count(self, ranks):
        ranks = [
            Measurement(rank.time, {Device("gpu", 0, f"GPU-{number}"): energy for energy in rank.devices.values()})
            for number, rank in enumerate(ranks)
        ]
        job = Measurement.from_ranks(ranks)
        assert job.gpu_energy == {number: rank.gpu_energy[0] for number, rank in enumerate(ranks)}
        assert job.total_energy == pytest.approx(sum(rank.total_energy for rank in ranks))

    def test_devices_keep_indices_that_tell_them_apart(self):
        ranks = [Measurement(2.0, {gpu: DeviceEnergy(10.0 * gpu.index, 1.0)}) for gpu in reversed(GPUS)]
        assert Measurement.from_ranks(ranks).gpu_energy == {3: 30.0, 0: 0.0}

    def test_the_same_device_under_another_index_counts_once(self):
        ranks = [Measurement(2.0, {GPUS[1]._replace(index=index): DeviceEnergy(30.0, 1.0)}) for index in (0, 1)]
        assert Measurement.from_ranks(ranks).gpu_energy == {0: 30.0}

    @given(measurements())
    def test_one_rank_alone_stays_as_it_is(self, measurement):
        assert Measurement.from_ranks([measurement]) == measurement


class TestJson:
    @given(measurements())
    def test_a_measurement_survives_the_way_through_json(self, measurement):
        assert Measurement.from_json(json.loads(json.dumps(measurement.to_json()))) == measurement

    @pytest.mark.parametrize(
        ("field", "damaged"),
        [
            *(("time", value) for value in (None, "1.0", True, -1.0, math.nan, 10**400)),
            *(("devices", value) for value in (None, [], {"gpu/0": {}}, {"tpu/0/TPU-1": {}}, {"gpu/x/GPU-1": {}})),
        ],
        ids=str,
    )
    def test_a_damaged_field_is_a_usage_error_that_names_it(self, field, damaged):
        fields = {**Measurement.from_energies(1.0, {0: 2.0}).to_json(), field: damaged}
        with pytest.raises(UsageError, match=rf"Measurement\.{field}"):
            Measurement.from_json(fields)

    @pytest.mark.parametrize(
        "changes", [{"energy_joules": math.inf}, {"uncertainty_joules": "1"}, {"method": "guessed"}], ids=str
    )
    def test_a_damaged_energy_is_a_usage_error_that_names_device_and_field(self, changes):
        measurement = Measurement(1.0, {GPUS[0]: replace(DeviceEnergy(2.0, 1.0), **changes)})
        with pytest.raises(UsageError, match=rf"gpu/0/GPU-0'\]\.{next(iter(changes))} is "):
            Measurement.from_json(measurement.to_json())

    def test_only_the_energy_of_a_difference_may_be_negative_never_an_uncertainty(self):
        difference = Measurement(1.0, {GPUS[0]: DeviceEnergy(-0.5, 1.0)})
        assert Measurement.from_json(difference.to_json()) == difference
        with pytest.raises(UsageError, match=r"\[GPU 0\]\.uncertainty_joules is -1\.0"):
            Measurement.from_json(Measurement(1.0, {GPUS[0]: DeviceEnergy(2.0, -1.0)}).to_json())


def test_devices_that_differ_by_their_identity_alone_are_told_apart_by_it():
    first, second = (Measurement(1.0, {Device("gpu", 0, uuid): DeviceEnergy(5.0, 0.1)}) for uuid in ("GPU-a", "GPU-b"))
    with pytest.raises(UsageError, match=r"\(GPU 0 GPU-a\) and \(GPU 0 GPU-b\)"):
        first + second
