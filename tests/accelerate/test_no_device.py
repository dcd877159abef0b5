"""Loops where there is no GPU: training is the same, with one warning."""

import logging

import pytest
from accelerate import tracking
from accelerate.state import AcceleratorState, GradientState

from tests.accelerate.loop import Loop
from zeus_core.errors import NoDeviceError
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(folder, attach=lambda accelerator: None):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    loop = Loop(folder, None, log_with=None)
    tracked = []
    loop.accelerator.trackers.append(Tracker(tracked))
    ours = attach(loop.accelerator)
    loop.train_and_log(4)
    loop.evaluate()
    loop.accelerator.save_state(folder / "checkpoint")
    loop.train_and_log(4)
    loop.accelerator.load_state(folder / "checkpoint")
    loop.accelerator.log({"eval_loss": 1.0})
    loop.accelerator.end_training()
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return (loop.losses, tracked, files), ours


class Tracker:
    """Keeps what is logged."""

    name = "kept"

    main_process_only = False

    def __init__(self, logged):
        self.logged = logged

    def log(self, values, step=None, **_):
        self.logged.append((step, values))

    def finish(self):
        """Do nothing."""


@pytest.mark.parametrize(
    "attach",
    [
        ZeusAccelerate,
        PowerLimitOptimizer,
        lambda accelerator: ZeusAccelerate(accelerator, optimizer=PowerLimitOptimizer(accelerator)),
    ],
    ids=["energy", "search", "both"],
)
def test_training_goes_on_with_one_warning_and_nothing_else(tmp_path, caplog, attach):
    undisturbed, _ = run(tmp_path / "without")
    caplog.clear()
    disturbed, ours = run(tmp_path / "with", attach)
    assert disturbed == undisturbed
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("zeus")]
    assert "training goes on" in warning
    assert "ZEUS_SIMULATED_GPUS=" in warning
    assert isinstance(ours, PowerLimitOptimizer) or ours.summary.values() == {}


@pytest.mark.parametrize("adapter", [ZeusAccelerate, PowerLimitOptimizer])
def test_those_who_want_the_error_get_it(tmp_path, caplog, adapter):
    loop = Loop(tmp_path, None)
    with pytest.raises(NoDeviceError, match="ZEUS_SIMULATED_GPUS="):
        adapter(loop.accelerator, strict=True)
    assert "log" not in vars(loop.accelerator)


def test_a_search_without_a_monitor_makes_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    loop = Loop(tmp_path, None)
    with PowerLimitOptimizer(loop.accelerator) as search:
        assert isinstance(search.optimizer, GlobalPowerLimitOptimizer)
        assert [gpu.name for gpu in search.optimizer.monitor.gpus.values()] == ["A40 (simulated)"]


@pytest.mark.skipif(not hasattr(tracking, "register_tracker_class"), reason="this accelerate makes trackers by no name")
def test_the_tracker_needs_no_device(tmp_path, caplog):
    loop = Loop(tmp_path, None, log_with="zeus")
    loop.train_and_log(2)
    assert [line["step"] for line in loop.logged()] == [1, 2]
    assert not [record for record in caplog.records if record.name.startswith("zeus") and record.levelno > logging.INFO]
