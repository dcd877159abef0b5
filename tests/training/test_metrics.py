"""The registry of metrics: what is logged is in it, and what is documented is all of it."""

import re
from dataclasses import replace

import pytest

from tests.support.pages import ROOT
from zeus_core.adapters.contained import Overhead
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.training import TrainingSummary
from zeus_core.training._log_intervals import LogIntervals
from zeus_core.training._metrics import EVALUATION_METRICS, LOG_METRICS, SUMMARY_METRICS, LoggedValues
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge

CALLBACKS = (
    "huggingface/zeus_huggingface/_trainer_energy.py",
    "huggingface/zeus_huggingface/accelerate/_accelerate_energy.py",
    "lightning/zeus_lightning/_callback.py",
)


def names(metrics):
    return [metric.name for metric in metrics]


def test_the_page_is_the_registry():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [*LOG_METRICS, *EVALUATION_METRICS, *SUMMARY_METRICS]


@pytest.mark.parametrize("path", CALLBACKS)
def test_docstrings_name_what_is_logged(path):
    source = (ROOT / "integrations" / path).read_text(encoding="utf-8")
    assert [name for name in names(LOG_METRICS) if f"`{name}`" not in source] == []


def test_the_summary_logs_what_is_in_the_registry():
    tally = Tally(1.0, DeviceEnergy(2.0, 0.1))
    charges = {"g": Charge(1.0), "EUR": Charge(1.0)}
    account = Account(tally, dict.fromkeys(Activity, tally), redone=tally, host=tally, charges=charges, tokens=8)
    account = replace(account, visits={Activity.REWARD: 2}, generated_tokens=4)
    electricity = Electricity(ConstantSignal(380, "g/kWh"), ConstantSignal(0.3, "EUR/kWh"))
    summary = TrainingSummary(1, account, 0.1, saving_uncertainty=0.1, electricity=electricity)
    assert list(summary.values()) == names(SUMMARY_METRICS)
    assert summary.values()["train_energy_per_token_j"] == account.training.energy_joules / 8
    assert "train_energy_per_token_j" not in replace(summary, account=replace(account, tokens=0)).values()


def test_a_log_has_what_is_in_the_registry():
    steps = {Activity.STEPS: Tally(1.0, DeviceEnergy(2.0, 0.1))}
    logged = {
        *LogIntervals().next(Account(activities=steps, samples=1)),
        *LogIntervals().next(Account(activities=steps, tokens=1)),
    }
    assert logged == set(names(LOG_METRICS)) - {"total_energy_j", "power_limit_w", "sm_clock_mhz", "co2_eq_g", "cost"}


def test_much_time_in_hooks_is_shown_with_its_causes():
    overhead = Overhead({"log": 0.4, "StepEnd": 0.2, "Pause": 0.01}, {"files": 0.3, "device": 0.001})
    summary = TrainingSummary(1, Account(Tally(20.0, DeviceEnergy(2000.0, 1.0))), overhead=overhead)
    assert summary.rows()["in hooks"] == "0.61 s (log 0.4, StepEnd 0.2), of which it waited for files 0.3"
    assert "in hooks of zeus-core: 0.61 s" in str(summary)
    assert "in hooks" not in replace(summary, account=Account(Tally(40.0, DeviceEnergy(2000.0, 1.0)))).rows()
    assert (overhead + overhead).of_hooks["log"] == 0.8


def test_what_is_logged_reads_well_and_stays_exact():
    logged = LoggedValues({"energy_j": 338.7197265625, "total_energy_j": 1234567.8, "cost": 0.0})
    assert repr(logged) == "{'energy_j': 339, 'total_energy_j': 1234568, 'cost': 0}"
    assert logged == {"energy_j": 338.7197265625, "total_energy_j": 1234567.8, "cost": 0.0}
