"""Measurements: sums, and the way through JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement

METHODS = ["counted", "integrated", "estimated", "lost"]  # best first

amounts = st.floats(0.0, 1e12)
energies = st.none() | amounts


@st.composite
def measurements(draw, gpu_indices=None, cpu_indices=None) -> Measurement:
    """A measurement as a monitor makes it: the same devices in every field."""
    if gpu_indices is None:
        gpu_indices = draw(st.sets(st.integers(0, 20), max_size=4))
    if cpu_indices is None:
        cpu_indices = draw(st.sets(st.integers(0, 3), max_size=2))
    cpus = st.none() | st.fixed_dictionaries(dict.fromkeys(cpu_indices, energies))
    return Measurement(
        time=draw(amounts),
        gpu_energy={index: draw(energies) for index in gpu_indices},
        cpu_energy=draw(cpus),
        dram_energy=draw(cpus),
        gpu_method={index: draw(st.sampled_from(METHODS)) for index in gpu_indices},
        gpu_uncertainty_joules={index: draw(energies) for index in gpu_indices},
        cpu_uncertainty_joules=draw(cpus),
    )


same_devices = {"gpu_indices": (0, 3), "cpu_indices": (0, 1)}


class TestTotals:
    def test_the_total_is_the_sum_over_gpus(self):
        assert Measurement(2.0, {0: 100.0, 3: 50.0}).total_energy == 150.0

    def test_the_average_power_is_the_total_over_the_time(self):
        assert Measurement(2.0, {0: 100.0, 3: 50.0}).average_power_watts == 75.0

    def test_one_lost_energy_makes_total_and_power_unknown_rather_than_smaller(self):
        measurement = Measurement(2.0, {0: 100.0, 3: None})
        assert measurement.total_energy is None
        assert measurement.average_power_watts is None

    def test_there_is_no_power_where_no_time_has_passed(self):
        assert Measurement(0.0, {0: 0.0}).average_power_watts is None

    def test_a_measurement_of_time_alone_has_a_total_of_nothing(self):
        assert Measurement(2.0, {}).total_energy == 0.0

    def test_a_measurement_cannot_be_changed(self):
        with pytest.raises(AttributeError):
            Measurement(2.0, {}).time = 3.0


class TestSum:
    @given(measurements(**same_devices), measurements(**same_devices))
    def test_seconds_joules_and_uncertainties_add_and_what_is_unknown_stays_unknown(self, first, second):
        total = first + second
        assert total.time == first.time + second.time
        for field in ("gpu_energy", "gpu_uncertainty_joules", "cpu_energy", "dram_energy", "cpu_uncertainty_joules"):
            self.assert_adds(getattr(first, field), getattr(second, field), getattr(total, field))

    @given(measurements(**same_devices), measurements(**same_devices))
    def test_the_worse_method_stays(self, first, second):
        for index, method in (first + second).gpu_method.items():
            ranks = METHODS.index(first.gpu_method[index]), METHODS.index(second.gpu_method[index])
            assert METHODS.index(method) == max(ranks)

    @given(measurements(**same_devices), measurements(**same_devices))
    def test_the_order_does_not_matter(self, first, second):
        assert first + second == second + first

    def test_measurements_of_different_gpus_cannot_be_added(self):
        with pytest.raises(UsageError, match=r"different devices.*\[0\].*\[0, 1\]"):
            Measurement(1.0, {0: 5.0}) + Measurement(1.0, {0: 5.0, 1: 5.0})

    def test_measurements_that_do_not_say_their_method_can_be_added(self):
        total = Measurement(1.0, {0: 5.0}) + Measurement(2.0, {0: 6.0})
        assert total == Measurement(3.0, {0: 11.0})

    @staticmethod
    def assert_adds(first, second, total):
        if first is None or second is None:
            assert total is None
            return
        assert total.keys() == first.keys()
        for index, value in total.items():
            if first[index] is None or second[index] is None:
                assert value is None
            else:
                assert value == pytest.approx(first[index] + second[index])


class TestJson:
    @given(measurements())
    def test_a_measurement_survives_the_way_through_json(self, measurement):
        assert Measurement.from_json(json.loads(json.dumps(measurement.to_json()))) == measurement

    @given(measurements())
    def test_a_measurement_survives_without_being_written_too(self, measurement):
        assert Measurement.from_json(measurement.to_json()) == measurement

    def test_numbers_from_a_file_are_floats(self):
        fields = {**Measurement(1.0, {0: 2.0}).to_json(), "time": 1, "gpu_energy": {"0": 2}}
        measurement = Measurement.from_json(fields)
        assert isinstance(measurement.time, float)
        assert isinstance(measurement.gpu_energy[0], float)

    @pytest.mark.parametrize("field", Measurement(1.0, {}).to_json())
    def test_a_missing_field_is_a_usage_error_that_names_it(self, field):
        fields = Measurement(1.0, {0: 2.0}).to_json()
        del fields[field]
        with pytest.raises(UsageError, match=field):
            Measurement.from_json(fields)

    @pytest.mark.parametrize(
        ("field", "damaged"),
        [
            *(("time", value) for value in (None, "1.0", True, -1.0, math.nan, math.inf, [], {})),
            *(("gpu_energy", {"0": value}) for value in ("1.0", True, math.nan, math.inf, [])),
            *(("gpu_energy", value) for value in (None, 5.0, [1.0], "0", {"zero": 1.0}, {"": 1.0})),
            *(("cpu_energy", value) for value in (5.0, [1.0], {"0": math.nan})),
            *(("dram_energy", value) for value in (5.0, [1.0], {"0": math.nan})),
            *(("gpu_method", value) for value in (None, [], {"0": "guessed"}, {"0": None}, {"0": []})),
            *(("gpu_uncertainty_joules", value) for value in (None, {"0": -1.0})),
            *(("cpu_uncertainty_joules", value) for value in (5.0, {"0": -1.0})),
            pytest.param("time", 10**400, id="time-too large for a float"),
            pytest.param("gpu_energy", {"0": 10**400}, id="gpu_energy-too large for a float"),
        ],
    )
    def test_a_damaged_field_is_a_usage_error(self, field, damaged):
        fields = {**Measurement(1.0, {0: 2.0}).to_json(), field: damaged}
        with pytest.raises(UsageError, match="not a measurement"):
            Measurement.from_json(fields)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["time", "gpu_energy", "0"]), inner),
            max_leaves=10,
        )
    )
    def test_anything_else_is_a_usage_error(self, damaged):
        with pytest.raises(UsageError, match="not a measurement"):
            Measurement.from_json(damaged)
