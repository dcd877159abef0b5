"""The trace of a training."""

import logging

import pytest

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.tracing import recorder as _recorder
from zeus_core.tracing.trace_file import read_trace
from zeus_core.training import TrainingEnergy

STEP = Work(0.1, 300.0)


def train(gpu, trace, tmp_path, steps=60, **settings):
    energy = TrainingEnergy(settings.pop("monitor", None), folder=tmp_path, trace=trace, quiet=True, **settings)
    with energy:
        for number in range(steps):
            with energy.step():
                gpu.execute(STEP)
            if number % 20 == 19:
                with energy.during(Activity.EVALUATION):
                    gpu.execute(Work(0.5, 150.0))
                with energy.during(Activity.CHECKPOINT):
                    gpu.execute(Work(0.2, 80.0))
                    energy.state_dict()
    return energy


def named(trace, name, kind="X"):
    return [event for event in trace.events if event["ph"] == kind and event["name"] == name]


def test_a_training_writes_its_trace_beside_its_journal(monitor, gpu, tmp_path):
    energy = train(gpu, True, tmp_path, monitor=monitor)
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    steps = named(trace, "step")
    assert [event["args"]["step"] for event in steps] == list(range(1, 61))
    assert all(event["dur"] == pytest.approx(100_000, abs=1) for event in steps)
    evaluations = named(trace, "evaluation")
    assert [event["dur"] for event in evaluations] == pytest.approx([500_000] * 3, abs=1)
    assert len(named(trace, "checkpoint")) == 3
    (facts,) = trace.ranks
    assert (facts.rank, facts.world_size, facts.steps, facts.dropped) == (0, 1, 60, {})
    assert [device.uuid for device in facts.devices] == [gpu.uuid]
    watts = [event["args"]["W"] for event in named(trace, "GPU 0 power", "C")]
    assert 250 < max(watts) <= 330
    joules = [event["args"]["J"] for event in named(trace, "GPU 0 energy", "C")]
    assert joules == sorted(joules)
    assert min(event["ts"] for event in trace.events) >= 0
    assert {event["args"]["W"] for event in named(trace, "GPU 0 power limit", "C")} == {350.0}
    assert named(trace, "GPU 0 SM clock", "C")
    assert not named(trace, "GPU 0 temperature", "C")  # a simulated GPU has none
    assert energy.summary.account.total.measured == facts.total.measured


def test_the_joules_of_the_phases_are_those_of_the_run(monitor, gpu, tmp_path):
    begin = gpu.exact_energy_joules()
    train(gpu, tmp_path / "traces", tmp_path, monitor=monitor)
    truth = gpu.exact_energy_joules() - begin
    (facts,) = read_trace(tmp_path / "traces" / "trace-0.json.gz").ranks
    phases = facts.phases.values()
    assert sum(phase.measured.energy_joules for phase in phases) == facts.total.measured.energy_joules
    assert abs(facts.total.measured.energy_joules - truth) <= facts.total.measured.uncertainty_joules
    assert {"steps", "evaluation", "checkpoint"} <= set(facts.phases)


def test_settings_are_marked_with_their_reasons(monitor, gpu, tmp_path):
    optimizer = GlobalPowerLimitOptimizer(
        monitor, wait_steps=2, warmup_steps=1, profile_steps=4, pl_step=100, search=GridSearch
    )
    train(gpu, True, tmp_path, optimizer=optimizer)
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    marks = [(event["name"], event["args"]["why"]) for event in trace.events if event["ph"] == "i"]
    assert marks[:3] == [
        ("power limit 350 W", "the search has not begun"),
        ("power limit 350 W", "a trial of the search"),
        ("power limit 250 W", "a trial of the search"),
    ]
    assert any(why == "the choice of the search" for _, why in marks)
    assert marks[-1] == ("original setting", "the original setting")
    assert 250.0 in {event["args"]["W"] for event in named(trace, "GPU 0 power limit", "C")}


def test_a_gpu_without_an_energy_counter_has_tracks_too(tmp_path):
    time_source = VirtualTime()

    class WithoutCounter(SimulatedGpu):
        def read_energy_counter_joules(self):
            from zeus_core.errors import NotSupportedError

            raise NotSupportedError("no counter")

    gpu = WithoutCounter(find_preset("A100"), time_source=time_source)
    train(gpu, True, tmp_path, monitor=ZeusMonitor(gpus=[gpu], time_source=time_source))
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    assert max(event["args"]["W"] for event in named(trace, "GPU 0 power", "C")) == pytest.approx(300, abs=30)


def test_a_long_training_keeps_its_last_steps(monitor, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(_recorder, "_STEPS", 50)
    train(gpu, True, tmp_path, steps=130, monitor=monitor)
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    assert [event["args"]["step"] for event in named(trace, "step")] == list(range(81, 131))
    assert trace.ranks[0].dropped == {"steps": 80}
    assert trace.ranks[0].steps == 130


def test_the_trace_of_the_steps_before_a_resume_is_kept(monitor, gpu, tmp_path):
    train(gpu, True, tmp_path, monitor=monitor)
    energy = TrainingEnergy(monitor, folder=tmp_path, trace=True, quiet=True)
    energy.on_train_begin(60)
    with energy.step():
        gpu.execute(STEP)
    energy.on_train_end()
    folder = tmp_path / "zeus-energy"
    assert read_trace(folder / "trace-0.json.gz").ranks[0].steps == 61
    assert read_trace(folder / "trace-0-until-step-60.json.gz").ranks[0].steps == 60


def test_ranks_compare_their_clocks_if_all_are_traced(tmp_path):
    def rank_main(world):
        time_source = VirtualTime()
        time_source.set_clock(1e9 + 10 * world.rank)
        gpu = SimulatedGpu(find_preset("A100"), world.rank, time_source=time_source)
        trace = True if everyone else world.rank == 0
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
        energy = train(gpu, trace, tmp_path, steps=3, monitor=monitor, world=world)
        return energy.summary.not_measured is None

    for everyone in (True, False):
        assert all(ThreadWorld.run(2, rank_main, timeout_seconds=60.0))
        files = sorted((tmp_path / "zeus-energy").glob("trace-*"))
        assert [path.name for path in files] == ["trace-0.json.gz", "trace-1.json.gz"]
        clocks = [read_trace(path).ranks[0].clock for path in files[: 1 + everyone]]
        if everyone:
            assert [point.ahead_seconds for point in clocks[1]] == pytest.approx([10.0, 10.0])
        else:
            assert clocks == [()]


def test_without_a_trace_nothing_is_written(monitor, gpu, tmp_path):
    train(gpu, False, tmp_path, monitor=monitor)
    assert not list((tmp_path / "zeus-energy").glob("trace*"))


def test_a_folder_that_cannot_be_written_costs_a_warning(monitor, gpu, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    energy = train(gpu, tmp_path / "file", tmp_path, monitor=monitor)
    assert energy.summary.not_measured is None
    assert "cannot be written" in caplog.text


def test_a_trace_without_any_folder_costs_a_warning(monitor, gpu, caplog):
    with caplog.at_level(logging.WARNING), TrainingEnergy(monitor, trace=True, quiet=True) as energy, energy.step():
        gpu.execute(STEP)
    assert "give trace a folder" in caplog.text


@pytest.mark.parametrize("trace", [7, "", None, ["folder"]])
def test_what_is_no_trace_is_refused(monitor, trace):
    with pytest.raises(UsageError, match="trace is"):
        TrainingEnergy(monitor, trace=trace)


def test_an_evaluation_within_an_evaluation_is_one(monitor, gpu, tmp_path):
    with TrainingEnergy(monitor, folder=tmp_path, trace=True, quiet=True) as energy:
        with energy.step():
            gpu.execute(STEP)
        with energy.during(Activity.EVALUATION):
            gpu.execute(STEP)
            with energy.during(Activity.EVALUATION):
                gpu.execute(STEP)
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    assert [event["dur"] for event in named(trace, "evaluation")] == pytest.approx([200_000], abs=1)


def test_a_trace_has_the_temperature_where_a_gpu_knows_it(monitor, gpu, tmp_path):
    gpu.read_temperature_celsius = lambda: 61.0
    train(gpu, tmp_path / "traces", tmp_path, monitor=monitor)
    trace = read_trace(tmp_path / "traces" / "trace-0.json.gz")
    assert {event["args"]["degrees C"] for event in named(trace, "GPU 0 temperature", "C")} == {61.0}
