"""A power sensor and an energy counter that differ: said once, and the intervals hold both."""

import json
import re

import pytest

from tests.support.driven_gpu import Physics
from tests.support.random_training import Case, measure
from zeus_core.events import Activity
from zeus_core.report.energy_statement import card_of, statement_of
from zeus_core.report.run_page import run_page
from zeus_core.report.run_text import runs_json, runs_markdown
from zeus_core.training.record.run_file import read_run


def training_of(
    gain=1.0, offset_watts=0.0, seconds=15.0, watts=(300.0,), step_seconds=0.2, period_seconds=0.1, spike_every=0
):
    """Steps, and then as long idle at 70 W."""
    case = Case(
        Physics(
            1.013 * period_seconds,
            period_seconds,
            0.005,
            noise_fraction=0.02,
            seed=4,
            power_gain=gain,
            power_offset_watts=offset_watts,
            spike_every=spike_every,
        ),
        script=[(70.0, 0.3)],
    )
    for _ in range(round(seconds / step_seconds)):
        case.run(Activity.STEPS, list(watts), step_seconds)
    case.run(Activity.IDLE, [70.0], seconds)
    case.script.append((70.0, 1.0))
    return case


def differences_said(caplog):
    return [record.getMessage() for record in caplog.records if "differ" in record.getMessage()]


@pytest.mark.parametrize("gain", [0.6, 1.3, 1.75])
@pytest.mark.parametrize("period_seconds", [0.1, 0.02])
def test_a_sensor_gain_is_said_once_and_held_by_intervals(gain, period_seconds, caplog):
    outcome = measure(training_of(gain, period_seconds=period_seconds))
    (said,) = differences_said(caplog)
    counter_watts, sensor_watts = map(float, re.search(r"\((\d+) W and (\d+) W in steps", said).groups())
    assert counter_watts == pytest.approx(300, rel=0.02)
    assert sensor_watts == pytest.approx(gain * 300, rel=0.02)
    account = outcome.summary.account
    for activity in (Activity.STEPS, Activity.IDLE):
        tally, truth = account.activities[activity], outcome.truth[activity]
        assert abs(tally.energy_joules - gain * truth) <= tally.measured.uncertainty_joules
        assert tally.measured.uncertainty_joules <= 1.1 * abs(gain - 1) * truth + 0.02 * truth
    truth, total = sum(outcome.truth.values()), account.total
    assert abs(total.energy_joules - gain * truth) <= total.measured.uncertainty_joules
    assert abs(total.energy_joules - truth) <= total.measured.uncertainty_joules


def test_garbage_of_a_right_sensor_is_no_difference(caplog):
    measure(training_of(spike_every=5))
    assert differences_said(caplog) == []


def test_a_sensor_wrong_at_idle_widens_idle_alone(caplog):
    outcome = measure(training_of(offset_watts=40.0))
    (said,) = differences_said(caplog)
    counter_watts, sensor_watts = map(float, re.search(r"\((\d+) W and (\d+) W in idle", said).groups())
    assert counter_watts == 70
    assert sensor_watts == pytest.approx(110, rel=0.02)
    assert "steps" not in said
    activities = outcome.summary.account.activities
    assert activities[Activity.IDLE].measured.uncertainty_joules >= 0.9 * 40 * 15
    assert activities[Activity.STEPS].measured.uncertainty_joules <= 0.02 * outcome.truth[Activity.STEPS]


@pytest.mark.parametrize(
    ("gain", "watts", "step_seconds"),
    [
        *((gain, (300.0,), 0.2) for gain in (0.9, 1.0, 1.1)),
        *((gain, (400.0, 150.0), seconds) for gain, seconds in ((0.9, 0.23), (1.1, 0.0995))),
    ],
)
def test_a_sensor_within_a_tenth_says_nothing(gain, watts, step_seconds, caplog):
    outcome = measure(training_of(gain, watts=watts, step_seconds=step_seconds, seconds=30.0))
    assert not differences_said(caplog)
    total = outcome.summary.account.total
    assert total.measured.uncertainty_joules <= 0.01 * total.energy_joules
    assert outcome.calls_per_second <= 20


def test_less_than_ten_seconds_say_nothing(caplog):
    measure(training_of(1.75, seconds=8.0))
    assert not differences_said(caplog)


def test_box_file_report_and_statement_say_it(tmp_path):
    outcome = measure(training_of(1.75), folder=tmp_path)
    remark = outcome.summary.rows()["remarks"]
    assert remark in str(outcome.summary)
    run = read_run(tmp_path)
    assert run.latest.results["remarks"] == remark
    runs = [("it", run)]
    statement = statement_of(runs)
    for text in (runs_markdown(runs), run_page(runs), card_of(statement, runs)):
        assert remark in text
    assert remark in statement["method"]
    metric = json.loads(runs_json(runs))["runs"][0]["metrics"]["energy_j"]
    assert metric["high"] >= 1.7 * sum(outcome.truth.values())
