"""Training whose driver fails for good: the result says what became of the original limits, the log says it once."""

import json
import re
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.result_boxes import rows
from zeus_core.training.record.run_file import read_run

pytestmark = pytest.mark.skipif(is_unprivileged(), reason="the daemon restores, and has a log of its own")

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
UNKNOWN_ERROR = 999
SET_LIMIT = "nvmlDeviceSetPowerManagementLimit"

# Six limits of 4 steps, and 4 that confirm the choice: the search is over after 28 steps.
PROGRAM = """
    import json, logging, sys, time
    from tests.support.hooks import be_patient
    PATIENCE
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch
    from zeus_core.training import TrainingEnergy

    def wait_at(step, word):
        if step == number:
            print(word, flush=True)
            sys.stdin.readline()

    monitor = ZeusMonitor()
    optimizer = GlobalPowerLimitOptimizer(monitor, Energy(), 0, 0, profile_steps=4, search=GridSearch, pl_step=50)
    with TrainingEnergy(monitor, optimizer=optimizer, folder=FOLDER) as energy:
        for number in range(50):
            wait_at(FAULT_STEP, "fault")
            energy.on_step_begin()
            time.sleep(0.002)
            energy.on_step_end()
        wait_at(number, "end")
    print(json.dumps(energy.result()))
"""
IN_THE_SEARCH, AFTER_IT = 7, 40


class Training:
    """A training in a process of its own."""

    def __init__(self, driver, folder, fault_step, patience="be_patient()"):
        program = textwrap.dedent(PROGRAM).replace("FOLDER", repr(str(folder))).replace("FAULT_STEP", str(fault_step))
        program = program.replace("PATIENCE", patience)
        self.process, self.folder = driver.start(program), folder

    def until(self, word):
        assert self.process.stdout.readline() == f"{word}\n", self.process.communicate()[1]

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Return the lines of the log, and those of the result."""
        printed, errors = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, errors
        log = [line for line in errors.splitlines() if re.match("WARNING|ERROR", line)]
        result = json.loads(printed)
        assert rows(errors).items() >= {"power limit": result["power limit"]}.items()
        return log, result


@pytest.fixture
def driver(make_driver):
    driver = make_driver(DEVICE, DEVICE)
    for device in driver:
        device.set_load(600.0)  # more than all limits: with the idle power alone, noise would choose, also the original
    yield driver
    for device in driver:
        device.release()


@pytest.mark.parametrize("fault_step", [IN_THE_SEARCH, AFTER_IT])
def test_unrestored_limits_are_named_in_the_result_and_logged_once(driver, tmp_path, fault_step):
    training = Training(driver, tmp_path, fault_step)
    training.until("fault")
    for device in driver:
        device.fail(None, UNKNOWN_ERROR)
    training.go_on()
    training.until("end")
    training.go_on()
    log, result = training.end()
    assert all(device.power_limit_watts < ORIGINAL_WATTS for device in driver)
    said = [line for line in log if "could not be restored" in line]
    assert len(said) == len(driver), log
    assert sum("is off for the rest of this run" in line for line in log) == (fault_step == IN_THE_SEARCH)
    assert all("systemctl daemon-reload" in line and "restart the container" in line for line in said)
    assert "was restored" not in json.dumps(result)
    assert result["power limit"].endswith("the original 450 W was NOT restored on 2 GPUs")
    commands = {result["to restore 1"], result["to restore 2"]}
    assert commands == {f"sudo nvidia-smi -i {device.uuid} -pl 450" for device in driver}
    record = read_run(tmp_path).latest.search_record()
    assert all(change.setting is not None for change in record.changes), "the original was never in force again"
    assert record.result.unrestored == dict.fromkeys(commands, "failed")
    assert record.result.rows()["power limit"] == result["power limit"]


def test_a_limit_that_is_restored_after_all_is_said_to_be(driver, tmp_path):
    training = Training(driver, tmp_path, IN_THE_SEARCH)
    training.until("fault")
    driver[1].fail(SET_LIMIT, UNKNOWN_ERROR)
    training.go_on()
    training.until("end")
    driver.clear_faults()
    training.go_on()
    log, result = training.end()
    assert all(device.power_limit_watts == ORIGINAL_WATTS for device in driver)
    assert sum("could not be restored" in line for line in log) == 1
    assert sum("to 450 W is restored" in line for line in log) == 1
    assert result["power limit"] == "a fault, which was logged, has ended the search; the original 450 W was restored"
    last = read_run(tmp_path).latest.search_record().changes[-1]
    assert (last.setting, last.reason) == (None, "a fault, which was logged, has ended the search")


def test_where_the_driver_does_not_answer_the_result_does_not_know(driver, tmp_path):
    training = Training(driver, tmp_path, AFTER_IT, patience="be_patient(10.0)")  # each wait for the driver that hangs
    training.until("fault")
    driver[1].hang(None)
    training.go_on()
    training.until("end")
    training.go_on()
    log, result = training.end()
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    assert driver[1].power_limit_watts < ORIGINAL_WATTS
    assert sum("is not restored yet" in line for line in log) == 1
    assert "the original 450 W may not be in force again on 1 GPU" in result["power limit"]
    assert result["to restore"] == f"sudo nvidia-smi -i {driver[1].uuid} -pl 450"


def test_what_somebody_else_has_set_is_not_called_the_original(driver, tmp_path):
    training = Training(driver, tmp_path, AFTER_IT)
    training.until("fault")
    driver[1].power_limit_watts = 333.0
    training.go_on()
    training.until("end")
    training.go_on()
    _, result = training.end()
    assert [device.power_limit_watts for device in driver] == [ORIGINAL_WATTS, 333.0]
    assert "the original 450 W was not restored on 1 GPU, where somebody else has set another" in result["power limit"]
    record = read_run(tmp_path).latest.search_record()
    assert record.changes[-1].setting is not None
