"""Files that earlier versions wrote are read: samples of all of them, as they were written then."""

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.pipeline_training import FULL_COURSE, Run, Watched, works
from tests.support.recurring import job_in, trained
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.pipeline import PipelineFrequencySettings, PipelineProfile, schedules
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.pipeline.testing import SimulatedJob
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

SAMPLES = Path(__file__).parent / "samples"
STEP = Work(0.5, 484.9, 0.938, 0.744)


@pytest.fixture
def samples(tmp_path):
    """A copy: some of these files are continued."""
    return Path(shutil.copytree(SAMPLES, tmp_path / "samples"))


@pytest.fixture
def energy(samples):
    """What a run that searches has, on such a GPU as the samples'."""
    time_source = VirtualTime()
    time_source.set_clock(1_764_100_000.0)
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not part of this test"), time_source=time_source)

    def make(folder=None, **options):
        optimizer = GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1), quiet=True, **options)
        return gpu, TrainingEnergy(monitor, optimizer, folder=folder, quiet=True)

    return make


def train(gpu, energy, steps):
    for _ in range(steps):
        with energy.step(samples=4, tokens=512):
            gpu.execute(STEP)


def test_a_run_is_reported(samples, capsys):
    assert main(["report", str(samples / "run"), "--format", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["metrics"]["energy_j"]["value"] == pytest.approx(70756.7, abs=0.1)
    assert main(["report", str(samples / "run"), "--format", "card"]) == 0


def test_what_zeus_core_run_wrote_is_reported(samples, capsys):
    path = str(samples / "command" / "energy.json")
    assert main(["report", path, "--format", "json", "--fail-if", "energy_j > baseline", "--baseline", path]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["metrics"]["energy_j"]["value"] == json.loads(Path(path).read_text())["totals"]["energy_joules"]
    assert run["metrics"]["co2_eq_g"]["value"] == pytest.approx(0.0455, abs=1e-4)
    assert main(["report", path, "--format", "card"]) == 0
    capsys.readouterr()
    assert main(["report", path, "--format", "csv"]) == 0
    (cost,) = [line for line in capsys.readouterr().out.splitlines() if ",cost," in line]
    assert cost.endswith(",EUR")
    assert main(["report", path]) == 0
    assert "| CPUs and memory | measured where this user may read their counters |" in capsys.readouterr().out


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_run_is_resumed(samples, energy, has_journal):
    gpu, resumed = energy(samples / "run" if has_journal else None)
    resumed.use_work({"parameters": 1000})
    resumed.load_state_dict(json.loads((samples / "run" / "checkpoint.json").read_text()))
    resumed.on_train_begin(step=300)
    assert {400, 330} <= {trial.setting for trial in resumed.optimizer.trials}, "the search goes on where it was"
    train(gpu, resumed, 10)
    account = resumed.finish().account
    assert account.tokens == (410 if has_journal else 310) * 512
    if has_journal:  # it knows of the hundred steps after the checkpoint, which are done again
        assert account.total.energy_joules > 70756.7 + 10 * 150
        assert account.redone.energy_joules > 100 * 150


def test_a_trace_of_an_earlier_version_is_refused_by_name(samples, capsys):
    assert main(["trace", "merge", str(samples / "traced"), "--output", str(samples / "merged.json.gz")]) == 2
    assert "trace-0.json.gz cannot be read: its version is 2; this program reads version 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "work", "options"), [("trials.json", {"parameters": 1000}, {}), ("both.json", {}, {"knob": "auto"})]
)
def test_trials_are_not_measured_again(samples, energy, name, work, options, caplog):
    before = len(json.loads((samples / name).read_text())["profiles"])
    gpu, run = energy(profile_path=samples / name, **options)
    run.use_work(work)
    run.on_train_begin(max_steps=100)
    assert len(run.optimizer.trials) >= 2
    train(gpu, run, 100)
    run.on_train_end()
    assert "no trials that fit" not in caplog.text
    assert len(json.loads((samples / name).read_text())["profiles"]) == before


def test_a_pipeline_is_not_profiled_again_and_its_plan_is_replayed(samples):
    def course(**settings):
        job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2))
        settings = PipelineFrequencySettings(**settings)
        return Run(job, 30, lambda rank: Watched(rank, settings, identity={"layers": [0, 4]})).course

    assert PlanningPhase.PROFILING in FULL_COURSE
    assert PlanningPhase.PROFILING not in course(profile_path=str(samples / "pipeline" / "profile.json"))
    assert PlanningPhase.PROFILING not in course(plan_path=str(samples / "pipeline" / "plan.json"))
    profile = PipelineProfile.from_json(json.loads((samples / "pipeline" / "instructions.json").read_text()))
    plan = read_plan(samples / "pipeline" / "plan.json")
    assert {row.stage for row in profile.instructions} == {0, 1}
    assert len(plan.clocks_mhz) == 2

    def resumed(rank):
        optimizer = Watched(rank, PipelineFrequencySettings(), identity={"layers": [0, 4]})
        optimizer.load_state_dict(json.loads((samples / "pipeline" / "checkpoint.json").read_text()))
        return optimizer

    assert PlanningPhase.PROFILING not in Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 30, resumed).course


def test_what_a_killed_process_left_is_restored(samples, make_driver):
    """Its entries name GPUs by what the driver here calls them: the rest is as it was written."""
    driver = make_driver(*[DeviceSpec(default_limit_watts=650, power_limit_watts=450)] * 2)
    driver[0].power_limit_watts, driver[1].locked_clock_mhz = 250.0, 900
    driver.ledger_path.mkdir(exist_ok=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for device, path in zip(driver, sorted((samples / "ledger").iterdir()), strict=True):
        knob = path.name.split(".")[1]
        text = path.read_text().replace(path.name.split(".")[0], device.uuid)
        text = text.replace(json.loads(text)["owner"]["boot_id"], boot_id)
        (driver.ledger_path / f"{device.uuid}.{knob}.json").write_text(text)

    def ended(*command):
        return subprocess.run([sys.executable, "-m", "zeus_core", *command], env=driver.environment, check=False)

    assert ended("top", "--once").returncode == 1
    assert ended("restore").returncode == 0
    assert (driver[0].power_limit_watts, driver[1].locked_clock_mhz) == (450.0, None)


def test_a_recurring_job_goes_on(samples, monkeypatch, capsys):
    monkeypatch.chdir(samples / "jobs")
    with sqlite3.connect("zeus.db") as database:
        database.executescript(Path("zeus.sql").read_text())
    job = job_in(Path(), storage="sqlite:///zeus.db", pending_folder=Path("pending"))
    trained(job)
    assert not list(Path("pending").iterdir()), "what the fourth run had kept is reported"
    assert main(["jobs", "history", "nightly", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 5
