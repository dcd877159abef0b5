"""Losses beside the energy of a run: recorded in bounded size, drawn, and compared at equal loss."""

import json
from itertools import pairwise

import pytest

from tests.support.kept_runs import NO_CPUS
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.loss_curve import LossCurves, LossPoint, energy_to, equal_loss
from zeus_core.training.record.run_file import read_run
from zeus_core.units import number_text


def trained(folder, decay):
    time_source = VirtualTime()
    time_source.set_clock(1_772_409_600.0)
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    energy = TrainingEnergy(ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source), folder=folder, quiet=True)
    with energy:
        for step in range(1, 13):
            with energy.step():
                gpu.execute(Work(0.5, 300.0))
            if step % 3 == 0:
                energy.log()
                energy.record_losses({"loss": 4.0 * decay**step, "nothing": float("nan"), "text": "no number"})
                energy.record_losses({"eval_loss": 4.1 * decay**step, "eval_accuracy": 1 - decay**step})
    return folder


def test_losses_stand_beside_the_energy_in_file_and_report(tmp_path, capsys, caplog):
    run = read_run(trained(tmp_path / "fast", 0.8))
    assert "no number" not in caplog.text
    assert "Traceback" not in caplog.text
    assert list(run.losses) == ["loss", "eval_loss", "eval_accuracy"]
    points = run.losses["eval_loss"]
    assert [point.step for point in points] == [3, 6, 9, 12]
    assert points[-1].joules == pytest.approx(run.account.total.energy_joules, rel=0.01)
    assert points[0].joules == pytest.approx(points[-1].joules / 4, rel=0.1)
    trained(tmp_path / "slow", 0.9)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "fast"), str(tmp_path / "slow"), "--output", str(page)]) == 0
    both_have_reached = f"energy until eval_loss {number_text(4.1 * 0.9**12)}"
    assert both_have_reached in page.read_text()
    assert page.read_text().count('aria-label="Losses over the energy of the run"') == 2
    assert main(["report", str(tmp_path / "fast"), "--format", "json"]) == 0
    assert "eval_accuracy" in json.dumps(json.loads(capsys.readouterr().out))


def test_a_million_losses_are_some_hundred_points():
    curves = LossCurves()
    for step in range(1, 1_000_001, 10):
        curves.add("loss", LossPoint(step, 2.0 * step, 1 / step))
    for number in range(20):
        curves.add(f"{number}", LossPoint(1, 1.0, 1.0))
    points = curves.points["loss"]
    steps = [point.step for point in points]
    assert 100 < len(points) <= 241
    assert (steps[0], steps[-1], len(curves.points)) == (1, 999_991, 8)
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) <= 2 * min(gaps[:-1])


def test_runs_are_compared_at_a_loss_that_all_have_reached():
    fast = {"loss": [LossPoint(1, 10.0, 3.0), LossPoint(2, 20.0, 1.0)]}
    slow = {"loss": [LossPoint(1, 5.0, 3.0), LossPoint(2, 9.0, 2.0)], "eval_loss": [LossPoint(2, 9.0, 2.5)]}
    assert equal_loss([fast, slow]) == ("loss", 2.0)
    assert energy_to(fast["loss"], 2.0) == LossPoint(2, 20.0, 1.0)
    assert energy_to(slow["loss"], 1.5) is None
    assert equal_loss([{}, slow]) is None
    assert equal_loss([slow]) == ("eval_loss", 2.5)
