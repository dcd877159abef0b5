"""Training continues after any fault, and is the same bit for bit as without the integration."""

import pytest
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker

from tests.accelerate.loop import Loop
from zeus_core.errors import DeviceLostError, DriverFaultError
from zeus_core.monitor import ZeusMonitor
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate

# One fault at each place of a loop, and one of each kind while a limit is being measured.
FAULTS = [
    *[(place, "read_energy_counter_joules", DriverFaultError("no answer")) for place in ("construction", 1, 8, 12, 16)],
    (7, "read_power_watts", DriverFaultError("no answer")),
    (7, "read_energy_counter_joules", DeviceLostError("gone")),
    (7, "read_power_limit_watts", ValueError("a bug")),
    (7, "set_power_limit", ValueError("a bug")),
    ("end", "read_power_limit_watts", DeviceLostError("gone")),
]
ORIGINAL_WATTS = 350


def train(folder, gpu, monitor=None, disturb=lambda place: None, **arguments):
    """A loop with all that a loop can have; `disturb` is called at each place of it. Returns the losses."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    loop = Loop(folder, gpu, gradient_accumulation_steps=2, **arguments)
    disturb("construction")
    energy = None
    if monitor is not None:
        search = PowerLimitOptimizer(loop.accelerator, monitor, warmup_steps=1, profile_steps=2, search=GridSearch)
        energy = ZeusAccelerate(loop.accelerator, optimizer=search)
    try:
        train_and_disturb(loop, folder, disturb)
    finally:
        if energy is not None:
            energy.close()
    return loop.losses, energy


def train_and_disturb(loop, folder, disturb):
    for step in loop.train(24):
        disturb(step)
        loop.accelerator.log({"loss": loop.losses[-1]}, step=step)
        if step == 8:
            loop.accelerator.save_state(folder / "checkpoint")
        if step == 12:
            loop.evaluate()
        if step == 16:
            loop.accelerator.load_state(folder / "checkpoint")
    disturb("end")
    loop.accelerator.end_training()


@pytest.fixture
def without_us(tmp_path):
    return train(tmp_path / "without", None)[0]


def test_training_is_the_same_with_us(tmp_path, gpu, monitor, without_us, caplog):
    losses, energy = train(tmp_path / "with", gpu, monitor)
    assert losses == without_us
    assert energy.summary.not_measured is None
    assert [record for record in caplog.records if record.levelname in {"ERROR", "WARNING"}] == []


@pytest.mark.parametrize(("place", "method", "error"), FAULTS)
def test_a_gpu_that_fails_is_no_trouble_for_training(tmp_path, gpu, time_source, without_us, place, method, error):
    faulty = FaultyGpu(gpu)

    def disturb(here):
        if here == place:
            faulty.fail(method, error)

    losses, energy = train(tmp_path / "with", None, ZeusMonitor(gpus=[faulty], time_source=time_source), disturb)
    assert losses == without_us
    faulty.heal()
    energy.close()  # the limit is restored as soon as that is possible
    assert gpu.read_power_limit_watts() == ORIGINAL_WATTS


def test_a_fault_is_said_once(tmp_path, gpu, time_source, caplog):
    faulty = FaultyGpu(gpu)
    faulty.fail("read_energy_counter_joules", DeviceLostError("gone"))
    train(tmp_path, None, ZeusMonitor(gpus=[faulty], time_source=time_source))
    complaints = [record.getMessage() for record in caplog.records if record.levelname in {"ERROR", "WARNING"}]
    assert 1 <= len(complaints) <= 3, complaints
    assert len(set(complaints)) == len(complaints)


def test_a_folder_that_cannot_be_written_is_no_trouble_for_training(tmp_path, gpu, monitor, without_us, caplog):
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "zeus-energy").write_text("a file where the journal's folder should be")
    (folder / "run.jsonl").mkdir()  # where the tracker's file should be
    (folder / "checkpoint" / "zeus_energy.json").mkdir(parents=True)
    losses, energy = train(folder, gpu, monitor)
    assert losses == without_us
    assert energy.summary.account.total.energy_joules > 0
    for said in ("journal", "ZeusTracker.log failed", "zeus_energy.json cannot be written", "no energy state"):
        assert said in caplog.text


def test_windows_dropped_behind_our_back_are_no_trouble_for_training(tmp_path, gpu, monitor, without_us):
    losses, energy = train(tmp_path / "with", gpu, monitor, lambda place: monitor.reset_windows())
    assert losses == without_us
    assert energy.summary.account.total.energy_joules > 0


class StrictTracker(GeneralTracker):
    """A tracker that takes only what it knows."""

    name = "strict"
    requires_logging_directory = False
    tracker = None

    def __init__(self):
        super().__init__()
        self.logged = []

    def log(self, values, step=None, **_):
        if values.keys() != {"loss"}:
            raise KeyError(f"unknown: {set(values)}")
        self.logged.append(values["loss"])


def test_a_tracker_that_rejects_our_values_gets_those_of_the_loop(tmp_path, gpu, monitor, without_us, caplog):
    tracker = StrictTracker()
    losses, _ = train(tmp_path / "with", gpu, monitor, log_with=[tracker])
    assert losses == without_us
    assert tracker.logged == losses[1::2]
    assert "a tracker refuses the energy values" in caplog.text


def test_a_tracker_that_takes_nothing_raises_as_without_us(tmp_path, gpu, monitor):
    class BrokenTracker(StrictTracker):
        def log(self, values, step=None, **_):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        train(tmp_path / "with", gpu, monitor, log_with=[BrokenTracker()])
    assert gpu.read_power_limit_watts() == 350
