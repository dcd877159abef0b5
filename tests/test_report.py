"""A comparison as text, and figures."""

import re
import sys

import pytest

from zeus_core.errors import UsageError
from zeus_core.monitor import Measurement
from zeus_core.report.figure import new_figure, write_figure
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, energy_error_fraction
from zeus_core.units import energy_text


def trial(setting, seconds, joules):
    measurement = Measurement.from_energies(seconds, {0: joules}, uncertainty_joules=30.0)
    return Trial(setting, steps=10, measurement=measurement)


def test_a_comparison_says_saving_and_slowdown():
    comparison = Comparison(trial(300, 10.0, 1000.0), trial(200, 11.0, 800.0))
    assert comparison.saving_fraction == pytest.approx(0.2)
    assert comparison.slowdown_factor == pytest.approx(1.1)
    assert str(comparison).endswith("saving 20.0% ±4.0 of the energy for +10.0% ±0.0 time")
    assert "1 s and 100.0 ±3.2 J per step" in str(comparison)


def test_a_comparison_and_a_report_have_one_interval_for_the_energy_of_a_step():
    """Before, the comparison left the scatter of the steps out: ±3.0 there, ±3.2 in box and report."""
    before = trial(300, 10.0, 1000.0)
    said = re.search(r"before: 1 s and (.*) per step", str(Comparison(before, trial(200, 11.0, 800.0))))[1]
    assert said == energy_text(100.0, 100.0 * energy_error_fraction(before))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_is_written(tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    figure = new_figure(7, 5)
    figure.add_subplot().plot([1, 2])
    write_figure(figure, path)
    assert path.stat().st_size > 2_000


def test_without_matplotlib_the_pip_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install .*\[plot\]'"):
        new_figure(7, 5)
