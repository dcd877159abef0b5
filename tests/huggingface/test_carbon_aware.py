"""Trainers that follow a tariff, on simulated GPUs in virtual time: minutes stand for hours."""

import json

import pytest

from tests.huggingface.trainers import examples, make_trainer
from zeus_core.carbon import CarbonAware
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.electricity import WeeklyTariff
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import MaxSlowdownConstraint
from zeus_core.pytorch import SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback

pytestmark = pytest.mark.long

MINUTE = 60.0
AFTERNOON = 1_772_323_200.0 + 16 * 60 * MINUTE
TARIFF = WeeklyTariff({"Mon-Sun 16:10-16:05": 0.05, "Mon-Sun 16:05-16:10": 1.0}, "EUR/kWh", "UTC")
STEPS = 120
PASSES = [Work(2.0, 484.9, 0.938, 0.744), Work(4.0, 484.9, 0.938, 0.744)]


class Run:
    """A training of twelve minutes from 16:00 on, or from another minute."""

    def __init__(self, folder, minute=0.0, resume=False, measures=False, **options):
        self.time_source = VirtualTime()
        self.time_source.set_clock(AFTERNOON + minute * MINUTE)
        self.gpu = SimulatedGpu(find_preset("A100"), time_source=self.time_source)
        self.aware = CarbonAware(TARIFF, deadline=AFTERNOON + 40 * MINUTE, interval_seconds=60.0, **options)
        monitor = ZeusMonitor(gpus=[self.gpu], time_source=self.time_source)
        search = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.2), carbon_aware=self.aware, quiet=True)
        self.optimizer = search.optimizer
        self.callback = ZeusTrainerCallback(optimizer=search, quiet=True) if measures else search
        self.trainer = make_trainer(folder, [self.callback], max_steps=STEPS, save_strategy="no")
        self.trainer.train_dataset = examples(2 * STEPS)
        SimulatedCompute(self.trainer.model, self.gpu, *PASSES)
        try:
            self.trainer.train(resume_from_checkpoint=resume)
        finally:
            self.minutes = (self.time_source.clock_seconds() - AFTERNOON) / MINUTE

    @property
    def parameters(self):
        return [parameter.detach().clone() for parameter in self.trainer.model.parameters()]


def test_a_trainer_waits_out_the_dear_minutes(tmp_path):
    run = Run(tmp_path)
    assert run.trainer.state.global_step == STEPS
    assert 17.0 <= run.minutes <= 40.0
    assert run.gpu.read_power_limit_watts() == 400
    assert "EUR" in run.optimizer.result()["cost"]
    never = Run(tmp_path / "never", may_pause=False)
    assert never.minutes < 16.0
    assert all(one.equal(other) for one, other in zip(run.parameters, never.parameters, strict=True))


def test_a_trainer_that_ends_for_a_long_pause_saves_and_resumes(tmp_path):
    path = tmp_path / "resume.json"
    with pytest.raises(SystemExit) as ended:
        Run(tmp_path, measures=True, exit_from_seconds=200.0, resume_path=path)
    assert ended.value.code == 75
    assert json.loads(path.read_text())["not_before"] == "2026-03-01T16:10:00+00:00"
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    assert 30 <= int(checkpoint.name.partition("-")[2]) <= 70
    later = Run(tmp_path, minute=10.0, resume=True, measures=True)
    assert later.trainer.state.global_step == STEPS
    whole = Run(tmp_path / "whole", may_pause=False)
    assert all(one.equal(other) for one, other in zip(later.parameters, whole.parameters, strict=True))
    follower = later.optimizer._director
    assert follower.spent.begun_seconds == AFTERNOON
