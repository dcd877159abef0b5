"""Reports at the end of a search."""

import sys

import pytest

from zeus_core.errors import UsageError
from zeus_core.monitor import Measurement
from zeus_core.report import draw_time_energy, trial_table
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison
from zeus_core.search.objectives import MaxSlowdownConstraint, OptimumSelector, PowerLimitMeasurement

MEASUREMENTS = [PowerLimitMeasurement(300, 1000.0, 10.0), PowerLimitMeasurement(200, 780.0, 10.9)]


def trial(setting, seconds, joules):
    measurement = Measurement.from_energies(seconds, {0: joules}, uncertainty_joules=30.0)
    return Trial(setting, steps=10, measurement=measurement)


def test_a_comparison_says_saving_and_slowdown():
    comparison = Comparison(trial(300, 10.0, 1000.0), trial(200, 11.0, 800.0))
    assert comparison.saving_fraction == pytest.approx(0.2)
    assert comparison.slowdown_factor == pytest.approx(1.1)
    assert str(comparison).endswith("saving 20.0% ±4.0 of the energy for +10.0% ±0.0 time")
    assert "1 s and 100.0 ±3.0 J per step" in str(comparison)


def test_the_table_marks_what_was_chosen_and_what_was_too_slow():
    header, first, second = trial_table(MEASUREMENTS, 10, MaxSlowdownConstraint(1.05), 300).splitlines()
    assert header.split() == ["limit", "s/step", "J/step", "time", "energy", "cost", "(W)"]
    assert first.split() == ["300", "W", "1", "100", "+0.0%", "+0.0%", "300", "<-", "chosen"]
    assert second.split() == ["200", "W", "1.09", "78", "+9.0%", "-22.0%", "too", "slow"]


def test_a_selector_without_a_cost_leaves_the_column_empty():
    class Lowest(OptimumSelector):
        def select(self, measurements):
            return min(measurement.power_limit for measurement in measurements)

    assert trial_table(MEASUREMENTS, 10, Lowest(), 200).splitlines()[1].split()[-1] == "+0.0%"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_drawn(tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    draw_time_energy([trial(300, 10.0, 1000.0), trial(200, 10.9, 780.0)], 200, "A40", path)
    assert path.stat().st_size > 5_000


def test_without_matplotlib_the_pip_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install .*\[plot\]'"):
        draw_time_energy([trial(300, 10.0, 1000.0)], None, "A40", tmp_path / "picture.png")
