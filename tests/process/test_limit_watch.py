"""Limits that others change while training runs: noticed in the background, respected, and said once."""

import gc
import threading
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.device.remote.client import DaemonConnection
from zeus_core.errors import DeviceHeldError
from zeus_core.settings.limit_knob import PowerLimitKnob

WAIT_SECONDS = 240.0  # far more than a look takes
LIMIT, ENFORCED = "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit"


def until(condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


_of_others = []


@pytest.fixture(autouse=True)
def _know_others():
    """Knobs that other tests of this process have left to the garbage collection are watched still."""
    _of_others.clear()
    _of_others.extend(watchers())


def watchers():
    threads = [thread for thread in threading.enumerate() if thread.name == "zeus-core power limits"]
    return [thread for thread in threads if thread not in _of_others]


@pytest.fixture
def driver(make_driver, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_LEDGER_DIR", str(tmp_path / "ledger"))
    monkeypatch.setattr("zeus_core.settings.limit_knob._PERIOD_SECONDS", 0.005)
    return make_driver(DeviceSpec(power_limit_watts=450, default_limit_watts=650))


@pytest.fixture
def knob(driver):
    knob = PowerLimitKnob(discover_gpus({}), 25)
    yield knob
    knob.restore()


def is_held(driver):
    if is_unprivileged():
        return bool(DaemonConnection().ask("list")["leases"])
    return bool(list(driver.ledger_path.glob("*.json")))


def looked(driver):
    """Whether the background has looked from now on: once from the beginning to the end.

    A look reads twice where it finds a change. So two readings may be of a look that has begun before, and two of it.
    """
    driver.clear_calls()
    until(lambda: len(driver.calls(ENFORCED)) >= 5)
    return True


def test_a_cap_that_has_come_and_gone_within_a_trial_disturbs_it(driver, knob, caplog):
    knob.apply(400)
    assert knob.is_undisturbed()
    knob.apply(350)
    driver[0].enforced_cap_watts = 200.0
    assert looked(driver)
    driver[0].enforced_cap_watts = None
    assert looked(driver)
    assert not knob.is_undisturbed()
    assert caplog.records == [], "who asks says it"
    knob.apply(350)
    assert knob.is_undisturbed()


def test_a_cap_after_the_last_trial_is_reported_at_begin_and_end(driver, knob, caplog):
    knob.apply(400)
    assert knob.is_undisturbed()
    driver[0].enforced_cap_watts = 200.0
    until(lambda: "has changed from 400 to 200 W" in caplog.text)
    driver[0].enforced_cap_watts = None
    until(lambda: "has changed from 200 to 400 W" in caplog.text)
    assert looked(driver)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("has_been_asked", [False, True])
def test_a_limit_that_an_administrator_sets_is_said_once_and_stays(driver, knob, caplog, has_been_asked):
    knob.apply(400)
    assert not has_been_asked or knob.is_undisturbed()
    driver[0].power_limit_watts = 300.0
    until(lambda: "somebody else has set the power limit" in caplog.text)
    with pytest.raises(DeviceHeldError, match="to 300 W, in place of 400 W: it stays"):
        knob.apply(350)
    assert knob.restore()
    assert driver[0].power_limit_watts == 300.0
    assert len(caplog.records) == 1


def test_an_observation_in_an_endless_trial_is_reported_at_the_end(driver, knob, caplog):
    knob.apply(400)
    assert knob.is_undisturbed()
    knob.apply(350)
    driver[0].power_limit_watts = 300.0
    until(lambda: not is_held(driver))  # the lease has ended
    assert caplog.records == [], "who asks at the end of the trial would say it"
    assert knob.restore()
    until(lambda: "to 300 W, in place of 350 W: it stays" in caplog.text)
    assert len(caplog.records) == 1


def test_restoring_is_no_change_by_others_and_ends_the_watch(driver, knob, caplog):
    knob.apply(400)
    assert looked(driver)
    assert knob.restore()
    assert driver[0].power_limit_watts == 450.0
    until(lambda: not watchers())
    assert caplog.records == []


def test_a_knob_that_is_dropped_ends_its_watch(driver):
    knob = PowerLimitKnob(discover_gpus({}), 25)
    knob.apply(400)
    assert len(watchers()) == 1
    del knob
    gc.collect()
    until(lambda: not watchers())


def test_a_driver_that_does_not_answer_says_nothing_about_others(driver, knob, caplog):
    knob.apply(400)
    driver[0].fail(LIMIT, 999, times=20)
    driver[0].fail(ENFORCED, 999, times=20)
    until(lambda: len([call for call in driver.calls(ENFORCED) if call.code == 999]) == 20)
    assert looked(driver)
    assert knob.is_undisturbed()
    assert caplog.records == []


def test_a_gpu_that_no_other_process_can_reach_is_not_watched():
    knob = PowerLimitKnob([SimulatedGpu(find_preset("A40"))], 50)
    knob.apply(200)
    assert watchers() == []
    assert knob.restore()
