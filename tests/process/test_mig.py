"""Training on one MIG instance of a board: what a change means for others on it is said, or nothing is changed."""

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.variants import long_but_first

pytestmark = pytest.mark.skipif(is_unprivileged(), reason="tests/daemon/test_mig.py is about the daemon")

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
MIG_UUIDS = ("MIG-aaaa-1", "MIG-bbbb-2", "MIG-cccc-3")
PARTITIONED = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS, mig_uuids=MIG_UUIDS)
FIRST, SECOND, THIRD = (1, 0), (2, 0), (3, 0)  # the GPU instance and the compute instance of each
OTHER = 7000001  # the id of a process of somebody else, above all that Linux gives

CHANGES = {
    "power limit": "nvmlDeviceSetPowerManagementLimit",
    "clock": "nvmlDeviceSetGpuLockedClocks",
    "auto": "nvmlDeviceSetGpuLockedClocks",
}

# A weight that falls to 0. Its losses are printed, and nothing of ours may change them.
TRAINING = """
    import time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch

    print("ready", flush=True)
    input()
    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch, knob=KNOB, quiet=True
    )
    with optimizer:
        weight = 1.0
        for step in range(12):
            optimizer.on_step_begin()
            time.sleep(0.002)
            print(weight**2)
            weight -= 0.1 * weight
            optimizer.on_step_end()
"""


class Trained:
    """A training that has ended."""

    def __init__(self, driver, knob, computing):
        process = driver.start(TRAINING.replace("KNOB", repr(knob)))
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        driver[0].set_processes(*((process.pid if pid is None else pid, *instance) for pid, instance in computing))
        driver.clear_calls()
        output, self.said = process.communicate("\n", timeout=240)
        assert process.returncode == 0, self.said
        weight, losses = 1.0, []
        for _ in range(12):
            losses.append(str(weight**2))
            weight -= 0.1 * weight
        assert output.split() == losses
        self.has_changed = any(call.code == 0 and call.argument for call in driver.calls(CHANGES[knob]))
        assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (ORIGINAL_WATTS, None)
        assert not list(driver.ledger_path.glob("*.json"))


each_knob = pytest.mark.parametrize("knob", CHANGES)
one_knob = pytest.mark.parametrize("knob", long_but_first(CHANGES))


@pytest.fixture
def train(make_driver, monkeypatch):
    """Trains, with (process, instance) pairs that compute on the board; the process None is the training itself."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ZEUS_MIG_LIMITS", raising=False)

    def trained(*computing, knob="power limit", spec=PARTITIONED, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        driver = trained.driver = make_driver(spec)
        trained.prepare(driver)
        return Trained(driver, knob, computing)

    trained.prepare = lambda driver: None
    return trained


def uuid_of(train):
    return train.driver[0].uuid


@pytest.mark.parametrize("spec", [DEVICE, DeviceSpec(has_mig=False, power_limit_watts=ORIGINAL_WATTS)])
def test_without_mig_mode_nothing_is_said(train, spec):
    nowhere = (2**32 - 1, 2**32 - 1)
    trained = train((None, nowhere), (OTHER, nowhere), spec=spec)
    assert trained.has_changed
    assert "MIG" not in trained.said


@pytest.mark.parametrize(
    "computing",
    [
        pytest.param([], id="nobody computes yet"),
        pytest.param([(None, FIRST)], id="the training computes"),
        pytest.param([(None, FIRST), (OTHER, FIRST)], id="others compute on the same instance"),
    ],
)
@one_knob
def test_alone_on_the_board_a_change_is_said_once(train, knob, computing):
    trained = train(*computing, knob=knob)
    assert trained.has_changed
    assert trained.said.count("MIG mode") == 1
    assert f"NVIDIA H200 ({uuid_of(train)}) is in MIG mode" in trained.said
    assert "holds for all its instances. No process computes on another one now" in trained.said


@pytest.mark.parametrize("own", [[], [(None, FIRST)]], ids=["before it computes", "while it computes"])
@one_knob
def test_where_another_process_computes_on_another_instance_training_observes(train, knob, own):
    trained = train(*own, (OTHER, SECOND), (OTHER + 1, THIRD), knob=knob)
    assert not trained.has_changed
    assert f"NVIDIA H200 ({uuid_of(train)}) is in MIG mode" in trained.said
    assert f"process {OTHER} on instance 2/0, process {OTHER + 1} on instance 3/0" in trained.said
    assert "ZEUS_MIG_LIMITS=1" in trained.said


def test_of_very_many_processes_some_are_named(train):
    trained = train(*((OTHER + number, SECOND) for number in range(7)))
    assert f"process {OTHER + 3} on instance 2/0, and 3 more." in trained.said


@each_knob
def test_a_change_that_is_asked_for_is_made_and_restored(train, knob):
    trained = train((None, FIRST), (OTHER, SECOND), knob=knob, ZEUS_MIG_LIMITS="1")
    assert trained.has_changed
    assert trained.said.count("MIG mode") == 1
    assert f"and slows down process {OTHER} on instance 2/0" in trained.said


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_other_values_of_the_variable_ask_for_nothing(train, value):
    assert not train((None, FIRST), (OTHER, SECOND), ZEUS_MIG_LIMITS=value).has_changed


@pytest.mark.parametrize("variable", ["MIG-bbbb-2", "MIG-b", "MIG-bbbb-2,MIG-aaaa-1"])
def test_an_instance_visible_to_the_process_is_its_own_before_it_computes(train, variable):
    assert train((OTHER, SECOND), CUDA_VISIBLE_DEVICES=variable).has_changed
    trained = train((OTHER, SECOND), (OTHER, FIRST), CUDA_VISIBLE_DEVICES=variable)
    assert not trained.has_changed
    assert f"process {OTHER} on instance 1/0" in trained.said
    assert "2/0" not in trained.said


@pytest.mark.parametrize("code", [4, 13, 3], ids=["no permission", "older driver", "not supported"])
def test_where_processes_are_unreadable_a_change_is_made_and_reported(train, code):
    train.prepare = lambda driver: driver[0].fail("nvmlDeviceGetComputeRunningProcesses", code)
    trained = train((None, FIRST), (OTHER, SECOND))
    assert trained.has_changed
    assert trained.said.count("MIG mode") == 1
    assert "cannot be read" in trained.said
    assert f"(NVML error {code})" in trained.said


def test_a_passing_fault_hides_nobody(train):
    def prepare(driver):
        driver[0].fail("nvmlDeviceGetMigMode", 999, times=1)
        driver[0].fail("nvmlDeviceGetComputeRunningProcesses", 999, times=1)

    train.prepare = prepare
    assert not train((None, FIRST), (OTHER, SECOND)).has_changed
