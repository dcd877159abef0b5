"""Workload power profiles: their bytes, a search among them, and how they are restored; behind the real binding."""

import os
import random
import signal
import subprocess
import sys

import pytest

from tests.daemon.conftest import until
from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.device.nvml.board_settings import read_profiles, set_profiles
from zeus_core.errors import DeviceHeldError, NotSupportedError
from zeus_core.kinds import POWER_PROFILE
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.search_optimizer import search_record
from zeus_core.optimizer.power_limit import Energy, EnergyWithin, GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.settings.knob import CommonKnob, NotEnforcedError
from zeus_core.testing import VirtualTime

MAX_Q, BALANCED, LLM_INFERENCE, LLM_TRAINING = (1 << number for number in (1, 5, 6, 7))
ALL = 1 | MAX_Q | BALANCED | LLM_INFERENCE | LLM_TRAINING
BOARD = DeviceSpec("NVIDIA B200", architecture=10, profiles=ALL)
OLD = DeviceSpec("NVIDIA B200", architecture=10, profiles=ALL, has_profile_update=False)

needs_root = pytest.mark.skipif(is_unprivileged(), reason="profiles are set by root")


class Library:
    """A library that notes the bytes of each call, and answers with those of `answer`."""

    def __init__(self, answer=b"", has_update=True):
        self.answer, self.calls = answer, []
        if not has_update:
            self.nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 = None

    def __getattr__(self, name):
        def call(handle, buffer):
            self.calls.append((name, bytes(buffer)))
            if name.endswith("GetCurrentProfiles"):
                buffer[: len(self.answer)] = self.answer
            return 0

        return call


# nvml.h: versions 0x1000064 and 0x1000024, masks of eight little-endian words of 32 bits.
NO_MASK = bytes(32)
TRAINING_BYTES = bytes.fromhex("82") + bytes(31)  # ids 1 and 7
LATE_BYTES = bytes(4) + bytes.fromhex("04") + bytes(27)  # id 34


def test_profiles_are_read_as_nvml_lays_them_out():
    library = Library(bytes.fromhex("64000001") + LATE_BYTES + TRAINING_BYTES + NO_MASK)
    code, profiles = read_profiles(library, None)
    assert code == 0
    assert (profiles.supported, profiles.requested, profiles.enforced) == (1 << 34, 0x82, 0)
    ((_, question),) = library.calls
    assert question == bytes.fromhex("64000001") + 3 * NO_MASK


@pytest.mark.parametrize("has_update", [True, False])
def test_profiles_are_overwritten_or_cleared_and_set(has_update):
    library = Library(bytes.fromhex("64000001") + NO_MASK + LATE_BYTES + NO_MASK, has_update)
    assert set_profiles(library, None, 0x82) == (0, None)
    prefix = "nvmlDeviceWorkloadPowerProfile"
    if has_update:
        expected = [(f"{prefix}UpdateProfiles_v1", bytes.fromhex("02000000") + TRAINING_BYTES)]
    else:
        expected = [
            (f"{prefix}ClearRequestedProfiles", bytes.fromhex("24000001") + LATE_BYTES),
            (f"{prefix}SetRequestedProfiles", bytes.fromhex("24000001") + TRAINING_BYTES),
        ]
    assert [call for call in library.calls if "Current" not in call[0]] == expected


class Training:
    """A training on one board of the driver, in its virtual time: watts and seconds of a step, by what is enforced."""

    def __init__(self, driver, effects, knob="power profile", selector=None, steps=1500):
        self.driver, self.device, self.effects, self.steps = driver, driver[0], effects, steps
        self.time_source, self.random = VirtualTime(), random.Random(0)
        driver.set_clock(self.time_source.now())
        gpus = discover_gpus({})
        monitor = ZeusMonitor(gpus=gpus, time_source=self.time_source, approx_instant_energy=False)
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor, selector or EnergyWithin(1.1), knob=knob, max_steps=steps, quiet=True
        )
        self.gpu, self.seconds = gpus[0], 0.0

    def run(self, steps=None):
        for _ in range(steps or self.steps):
            self.optimizer.on_step_begin()
            watts, seconds = self.effects(int(self.gpu.read_power_profiles().enforced), self.device)
            seconds *= self.random.gauss(1.0, 0.01)
            self.device.set_load(watts)
            self.time_source.advance(seconds)
            self.driver.set_clock(self.time_source.now())
            self.seconds += seconds
            self.optimizer.on_step_end()
        return self.optimizer


def effects(enforced, device):
    """LLM_TRAINING saves 10 % in the bound; MAX_Q 20 %, far beyond it; BALANCED, limits and clocks nothing."""
    watts, seconds = 600.0, 0.5
    if enforced & MAX_Q:
        watts, seconds = 0.62 * watts, 1.3 * seconds
    if enforced & LLM_TRAINING:
        watts, seconds = 0.87 * watts, 1.035 * seconds
    slower = max(watts / device.power_limit_watts, 1.0) * 1980 / (device.locked_clock_mhz or 1980)
    return watts, slower * seconds  # limits and clocks save nothing


@needs_root
@pytest.mark.parametrize("board", [BOARD, OLD])
@pytest.mark.parametrize("selector", [EnergyWithin(1.1), MaxSlowdownConstraint(1.1)])
def test_the_better_profile_is_found_within_the_bound_of_the_run(make_driver, board, selector):
    driver = make_driver(board)
    training = Training(driver, effects, selector=selector)
    optimizer = training.run()
    assert driver[0].requested_profiles == LLM_TRAINING
    assert optimizer.saving_fraction == pytest.approx(1 - 0.87 * 1.035, abs=0.01)
    assert training.seconds <= 1.1 * 0.5 * training.steps
    assert "LLM_TRAINING is the best of 5 settings" in optimizer.result()["power profile"]
    optimizer.on_train_end()
    assert driver[0].requested_profiles == 0


@needs_root
def test_without_a_bound_the_least_energy_is_found(make_driver):
    driver = make_driver(BOARD)
    optimizer = Training(driver, effects, selector=Energy()).run()
    assert driver[0].requested_profiles == LLM_TRAINING | MAX_Q
    optimizer.on_train_end()
    assert driver[0].requested_profiles == 0


@needs_root
@pytest.mark.parametrize("original", [MAX_Q, LLM_INFERENCE, 0])
def test_conflicting_and_refused_profiles_end_as_not_enforced(make_driver, original):
    driver = make_driver(DeviceSpec("NVIDIA B200", architecture=10, profiles=ALL, requested_profiles=original))
    driver[0].let_conflict(1, 7)
    driver[0].refuse_profiles(BALANCED)
    optimizer = Training(driver, effects).run()
    text = optimizer.result()["not enforced"]
    assert "does not enforce MAX_Q + LLM_TRAINING, but MAX_Q" in text
    assert "does not enforce BALANCED: " in text
    assert driver[0].requested_profiles == (MAX_Q if original == MAX_Q else LLM_TRAINING)
    assert not {trial.setting for trial in optimizer.trials} & {BALANCED, MAX_Q | LLM_TRAINING}
    optimizer.on_train_end()
    assert driver[0].requested_profiles == original


@needs_root
def test_a_profile_that_the_board_drops_in_mid_run_is_left(make_driver):
    driver = make_driver(BOARD)
    training = Training(driver, effects)
    training.run(1000)
    assert driver[0].requested_profiles == LLM_TRAINING
    driver[0].block_profiles(LLM_TRAINING)
    optimizer = training.run(500)
    assert driver[0].requested_profiles in (0, BALANCED)
    assert "does not enforce LLM_TRAINING, but no profile" in optimizer.result()["not enforced"]


@needs_root
def test_what_an_administrator_requests_meanwhile_stays(make_driver):
    driver = make_driver(BOARD)
    training = Training(driver, effects)
    training.run(1000)
    driver[0].requested_profiles = LLM_INFERENCE
    training.run(500).on_train_end()
    assert driver[0].requested_profiles == LLM_INFERENCE


@needs_root
def test_auto_tries_profiles_where_a_board_has_them(make_driver):
    driver = make_driver(BOARD)
    optimizer = Training(driver, effects, knob="auto", steps=4000).run()
    assert driver[0].requested_profiles == LLM_TRAINING
    assert driver[0].power_limit_watts == 700.0
    assert driver[0].locked_clock_mhz is None
    assert "or power limit" in optimizer.result()
    optimizer.on_train_end()
    assert driver[0].requested_profiles == 0


@needs_root
def test_auto_says_nothing_of_profiles_on_other_boards(make_driver, caplog):
    driver = make_driver(DeviceSpec())
    spec = driver[0]
    time_source = VirtualTime()
    driver.set_clock(time_source.now())
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(monitor, EnergyWithin(1.1), knob="auto", quiet=True)
    optimizer.on_step_begin()
    assert "profile" not in caplog.text
    assert spec.power_limit_watts == 700.0
    optimizer.on_train_end()


def test_boards_without_profiles_are_refused(make_driver):
    make_driver(DeviceSpec())
    for gpu in (discover_gpus({})[0], SimulatedGpu(find_preset("A40"), time_source=VirtualTime())):
        with pytest.raises(NotSupportedError):
            CommonKnob(POWER_PROFILE, [gpu])


def test_profiles_that_cannot_be_restored_are_not_touched(make_driver):
    make_driver(DeviceSpec("NVIDIA B300", profiles=ALL, requested_profiles=1 << 31))
    with pytest.raises(NotSupportedError, match="does not know"):
        CommonKnob(POWER_PROFILE, discover_gpus({}))


def test_the_command_for_an_administrator_leaves_what_was_asked_for():
    command = POWER_PROFILE.command(["GPU-1"], float(MAX_Q))
    assert command == "sudo nvidia-smi power-profiles -i GPU-1 -cr 5,7 -sr 1"
    assert POWER_PROFILE.command(["GPU-1"], 0.0) == "sudo nvidia-smi power-profiles -i GPU-1 -cr 1,5,7"


PROGRAM = """
    import sys
    from zeus_core.device import discover_gpus
    from zeus_core.kinds import POWER_PROFILE
    from zeus_core.settings.knob import CommonKnob
    knob = CommonKnob(POWER_PROFILE, discover_gpus({}))
    knob.apply(130)
    print("ready", flush=True)
    sys.stdin.read()
"""


@needs_root
@pytest.mark.parametrize("board", [BOARD, OLD])
def test_the_guardian_restores_them_after_a_kill(make_driver, board):
    spec = DeviceSpec(**{**vars(board), "requested_profiles": BALANCED})
    driver = make_driver(spec)
    process = driver.start(PROGRAM)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    assert driver[0].requested_profiles == LLM_TRAINING | MAX_Q
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: driver[0].requested_profiles == BALANCED)


@needs_root
def test_zeus_core_restore_restores_what_was_left(make_driver):
    driver = make_driver(DeviceSpec("NVIDIA B200", profiles=ALL, requested_profiles=BALANCED))
    process = driver.start(PROGRAM.replace("knob.apply(130)", "driver = None; knob.apply(130)"))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    driver.fail("nvmlDeviceWorkloadPowerProfileUpdateProfiles", 4)  # also to the guardian
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: driver.calls("nvmlDeviceWorkloadPowerProfileUpdateProfiles")[-1].code == 4)
    assert driver[0].requested_profiles == LLM_TRAINING | MAX_Q
    driver.clear_faults()
    command = [sys.executable, "-m", "zeus_core", "restore"]
    ended = subprocess.run(command, env={**os.environ, **driver.environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "BALANCED" in ended.stdout + ended.stderr
    assert driver[0].requested_profiles == BALANCED


@needs_root
def test_a_knob_says_what_is_enforced_instead(make_driver):
    driver = make_driver(BOARD)
    knob = CommonKnob(POWER_PROFILE, discover_gpus({}))
    driver[0].block_profiles(MAX_Q)
    with pytest.raises(NotEnforcedError, match=r"does not enforce MAX_Q \+ LLM_TRAINING, but LLM_TRAINING"):
        knob.apply(MAX_Q | LLM_TRAINING)
    knob.apply(LLM_TRAINING)
    assert knob.is_undisturbed()
    driver[0].block_profiles(LLM_TRAINING)
    assert not knob.is_undisturbed()
    driver[0].requested_profiles = BALANCED
    with pytest.raises(DeviceHeldError, match="BALANCED"):
        knob.is_undisturbed()
    assert main(["top", "--once"]) == 0


@needs_root
def test_blocks_know_the_temperature_of_the_board(make_driver):
    driver = make_driver(BOARD)
    training = Training(driver, effects)
    training.run(100)
    driver[0].set_temperature(80)
    optimizer = training.run(400)
    temperatures = search_record(optimizer).result.temperatures_celsius
    assert temperatures[0] == 45.0
    assert temperatures[-1] == 80.0
