"""Training while the driver does not answer: it goes on, ends when told to, and the hardware is restored."""

import signal
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.variants import long_but_first

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
SET_LIMIT, SET_CLOCK = "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"
READ_COUNTER, READ_LIMIT = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerManagementLimit"
READ_ENFORCED = "nvmlDeviceGetEnforcedPowerLimit"
MOST_SECONDS = 1.0 + 1e-9  # what a hook may wait for in all

# The driver hangs, and answers again, when the test says so.
BEGIN = """
    import logging, os, signal, sys, time
    from tests.support.hooks import recorded_waits
    waits = recorded_waits()
    from zeus_core.device import discover_gpus
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch
    from zeus_core.training import TrainingEnergy

    def tell(word):
        os.write(1, (word + os.linesep).encode())  # a handler may interrupt it, and then print must not be called again
        while not os.path.exists(os.environ["ZEUS_TEST_NVML_STATE"] + "-" + word):
            time.sleep(0.002)

    def train(observer, steps):
        for _ in range(steps):
            observer.on_step_begin()
            time.sleep(0.002)
            observer.on_step_end()

    def search():
        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch)
        train(optimizer, 8)
        return optimizer
"""


class Process:
    def __init__(self, driver, program):
        self._driver = driver
        self._process = driver.start(textwrap.dedent(BEGIN) + textwrap.dedent(program))
        self.send_signal = self._process.send_signal

    def expect(self, word):
        line = self._process.stdout.readline()
        assert line == f"{word}\n", self.end()

    def go_on_after(self, word):
        self._driver.state_path.with_name(f"{self._driver.state_path.name}-{word}").touch()

    def end(self):
        """Wait for the end, which comes although the driver hangs; return code and errors."""
        _, errors = self._process.communicate(timeout=240)
        return self._process.returncode, errors


@pytest.fixture
def driver(make_driver):
    driver = make_driver(DEVICE, DEVICE)
    yield driver
    for device in driver:
        device.release()


@pytest.mark.parametrize(
    "function", long_but_first(["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues"])
)
def test_training_goes_on_while_readings_hang(driver, function):
    process = Process(
        driver,
        """
        energy = TrainingEnergy(optimizer=search())
        with energy:
            train(energy, 8)
            known = energy.log()
            assert known["total_energy_j"] > 0, known
            tell("trained")
            train(energy, 50)
            energy.log()
            tell("released")
            while "power_w" not in energy.log():  # the energy of a log's interval is known again
                train(energy, 5)
        """,
    )
    process.expect("trained")
    driver[1].hang(function)
    process.go_on_after("trained")
    process.expect("released")
    driver[1].release()
    process.go_on_after("released")
    code, errors = process.end()
    assert code == 0, errors
    lost = "GPU 1 is lost for the time between two readings, and maybe from now on: the driver has not answered"
    assert errors.count(lost) == 1, errors
    assert driver[0].power_limit_watts == driver[1].power_limit_watts == ORIGINAL_WATTS


def test_a_log_continues_without_a_limit_that_is_not_read_in_time(driver):
    process = Process(
        driver,
        """
        with TrainingEnergy(ZeusMonitor()) as energy:
            train(energy, 8)
            assert energy.log()["power_limit_w"] == 450
            tell("trained")
            while "power_limit_w" in energy.log():  # for at most a second more: as read last
                train(energy, 1)
            for _ in range(20):
                train(energy, 1)
                logged = energy.log()
                assert "power_limit_w" not in logged
                assert logged["total_energy_j"] > 0
            tell("released")
            while "power_limit_w" not in energy.log():
                train(energy, 1)
        """,
    )
    process.expect("trained")
    driver[1].hang("nvmlDeviceGetPowerManagementLimit")
    process.go_on_after("trained")
    process.expect("released")
    driver[1].release()
    process.go_on_after("released")
    code, errors = process.end()
    assert code == 0, errors


def test_a_search_whose_limit_is_late_steps_aside_and_restores_it(driver):
    process = Process(
        driver,
        """
        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch)
        train(optimizer, 1)
        tell("trained")
        train(optimizer, 20)
        tell("released")
        preparation = optimizer._course.preparation
        while optimizer._gpus[0].read_power_limit_watts() != 450 or not preparation._limiters[-1].restore():
            time.sleep(0.01)
        tell("restored")
        """,
    )
    process.expect("trained")
    driver[0].hang(SET_LIMIT)
    process.go_on_after("trained")
    process.expect("released")
    driver[0].release()
    process.go_on_after("released")
    process.expect("restored")
    assert [device.power_limit_watts for device in driver] == [ORIGINAL_WATTS] * 2
    process.go_on_after("restored")
    code, errors = process.end()
    assert code == 0
    assert "the search for a power limit is off for the rest of this run" in errors
    assert "the driver has not answered" in errors


def check_one_second(driver, function, program):
    """Hang at "hang", which comes once, until "ended". No hook waits for more than a second, and all is restored."""
    process = Process(driver, program)
    process.expect("hang")
    driver[1].hang(function)
    process.go_on_after("hang")
    process.expect("ended")
    driver[1].release()
    process.go_on_after("ended")
    code, errors = process.end()
    assert code == 0, errors
    assert [(device.power_limit_watts, device.locked_clock_mhz) for device in driver] == [(ORIGINAL_WATTS, None)] * 2
    assert errors.count("is off for the rest of this run") <= 1, errors
    assert errors.count("is not restored yet") <= (function not in {READ_COUNTER, READ_ENFORCED}), errors


@pytest.mark.parametrize(
    ("knob", "function", "moment"),
    long_but_first(
        [
            ("power limit", None, "window"),
            ("power limit", SET_LIMIT, "begin"),
            *[("power limit", SET_LIMIT, moment) for moment in ("window", "edge", "log", "end")],
            *[("power limit", None, moment) for moment in ("begin", "edge", "log", "end")],
            *[("power limit", READ_COUNTER, moment) for moment in ("begin", "window", "edge", "log", "end")],
            *[("power limit", READ_LIMIT, moment) for moment in ("begin", "window", "edge", "log", "end")],
            *[("power limit", READ_ENFORCED, moment) for moment in ("window", "edge")],
            *[("clock", function, moment) for function in (SET_CLOCK, None) for moment in ("begin", "window")],
            *[("clock", function, "end") for function in ("nvmlDeviceResetGpuLockedClocks", None)],
        ],
        count=2,
    ),
)
def test_no_hook_waits_more_than_a_second_in_all(driver, knob, function, moment):
    check_one_second(
        driver,
        function,
        f"""
        def at(place):
            if place == {moment!r}:
                tell("hang")

        optimizer = GlobalPowerLimitOptimizer(
            ZeusMonitor(), None, 0, 0, profile_steps=4, search=GridSearch, knob={knob!r}
        )
        energy = TrainingEnergy(optimizer=optimizer, quiet=True)
        at("begin")
        with energy:
            train(energy, 8)
            at("edge")
            train(energy, 1)
            at("window")
            train(energy, 12)
            at("log")
            energy.log()
            train(energy, 10)
            energy.log()
            at("end")
        tell("ended")
        assert 0.5 < max(waits.of_hooks) <= {MOST_SECONDS}, waits.of_hooks
        """,
    )


@pytest.mark.long  # it loads a framework
@pytest.mark.parametrize("function", [SET_LIMIT, READ_COUNTER, None])
@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_no_framework_hook_waits_over_a_second_and_losses_stay_the_same(driver, tmp_path, framework, function):
    programs = {
        "huggingface": """
            from transformers import TrainerCallback
            from tests.huggingface.trainers import losses_of, make_trainer
            from zeus_huggingface import ZeusTrainerCallback

            class Hang(TrainerCallback):
                def on_step_begin(self, args, state, control, **kwargs):
                    if state.global_step == 9:
                        tell("hang")

            def losses(*callbacks):
                trainer = make_trainer(folder, list(callbacks), logging_steps=5)
                trainer.train()
                return losses_of(trainer)

            def callback(optimizer):
                return ZeusTrainerCallback(optimizer=optimizer)
        """,
        "lightning": """
            from tests.lightning.trainers import at, loader, make_trainer, module_class
            from zeus_lightning import ZeusCallback
            import lightning.pytorch as pl

            class Hang(pl.Callback):
                def on_train_batch_start(self, trainer, *_):
                    if trainer.global_step == 9:
                        tell("hang")

            def losses(*callbacks):
                module = module_class(pl)()
                make_trainer(folder, list(callbacks), max_steps=30).fit(module, loader(30))
                return module.losses

            def callback(optimizer):
                return ZeusCallback(optimizer=optimizer)
        """,
    }
    program = f"""
        sys.stdout = sys.stderr  # what a Trainer prints is not for this test
        folder = {str(tmp_path)!r}
        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=4, search=GridSearch)
        undisturbed = losses()
        assert losses(callback(optimizer), Hang()) == undisturbed
        tell("ended")
        assert 0.5 < max(waits.of_hooks) <= {MOST_SECONDS}, waits.of_hooks
    """
    check_one_second(driver, function, textwrap.dedent(programs[framework]) + textwrap.dedent(program))


@pytest.mark.parametrize("end", long_but_first(["tell('ready')", "with optimizer: tell('ready')"]))
def test_a_process_asked_to_end_ends_although_its_limit_cannot_be_restored(driver, end):
    process = Process(driver, f"optimizer = search()\n{end}")
    process.expect("ready")
    assert driver[1].power_limit_watts < ORIGINAL_WATTS
    driver[0].hang(SET_LIMIT)
    process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == -signal.SIGTERM
    assert driver[1].power_limit_watts == ORIGINAL_WATTS  # one GPU that hangs does not keep the other from it
    what = "could not be restored" if is_unprivileged() else "is not restored yet"
    assert f"(`sudo nvidia-smi -i {driver[0].uuid} -pl 450`) {what}" in errors


def test_a_process_told_to_end_within_a_reading_that_hangs_ends(driver):
    process = Process(
        driver,
        """
        optimizer = search()
        tell("ready")
        train(optimizer, 10**6)
        """,
    )
    process.expect("ready")
    driver[0].hang("nvmlDeviceGetTotalEnergyConsumption")
    process.go_on_after("ready")
    process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == -signal.SIGTERM, errors
    assert [device.power_limit_watts for device in driver] == [ORIGINAL_WATTS] * 2


def test_a_process_surviving_its_signal_restores_the_limit_once_the_driver_answers(driver):
    process = Process(
        driver,
        """
        signal.signal(signal.SIGTERM, lambda *_: tell("told"))
        optimizer = search()
        tell("ready")
        """,
    )
    process.expect("ready")
    driver[0].hang(SET_LIMIT)
    process.send_signal(signal.SIGTERM)
    process.expect("told")
    assert driver[0].power_limit_watts < ORIGINAL_WATTS
    driver[0].release()
    process.go_on_after("told")
    process.go_on_after("ready")
    code, errors = process.end()
    assert code == 0, errors
    assert [device.power_limit_watts for device in driver] == [ORIGINAL_WATTS] * 2


def test_a_driver_that_cannot_be_opened_does_not_keep_training_from_beginning(driver):
    driver.set_latency(4000.0, "nvmlInit")
    process = Process(
        driver,
        """
        import zeus_core.device._discovery
        zeus_core.device._discovery.OPEN_SECONDS = 0.1
        energy = TrainingEnergy()
        with energy:
            train(energy, 3)
        """,
    )
    code, errors = process.end()
    assert code == 0, errors
    assert "the driver has not answered within 0.1 s" in errors
