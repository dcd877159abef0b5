"""Wrong arguments, above all those that would fail in a hook, late or silently: the error says what to give."""

import inspect

import pytest

from zeus_core.batches import MicroBatchOptimizer
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.jobs import DriftingSlices, RecurringJob, Target
from zeus_core.mixed.allocation.allocation_plan import read_plan as read_allocation
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.search_options import OptimizerOptions
from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineProfile, schedules
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.search import Trial
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.training import TrainingEnergy


def monitor_with(**arguments):
    gpu = SimulatedGpu(find_preset("A40"))
    return ZeusMonitor(**{"gpus": [gpu], "cpu_indices": [], **arguments})


NOT_CALLED = {"zeus_core.pytorch", "zeus_core.pipeline.taps", "zeus_core.electricity"}
A40 = SimulatedGpu(find_preset("A40"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: monitor_with(gpu_indices=[1.5]), r"gpu_indices\[0\] is 1.5; it must be a whole number, at least 0"),
        (lambda: monitor_with(log_file=1), "log_file is 1; it must be the path of a file, such as energy.csv"),
        (lambda: TrainingEnergy(monitor_with(), world=1), "world is 1; it must be a World object"),
        (lambda: TrainingEnergy(monitor_with(), folder=1), "folder is 1; it must be the path of a folder"),
        (lambda: TrainingEnergy({}, optimizer=1), "optimizer is 1; it must be one such as"),
        (lambda: GlobalPowerLimitOptimizer(monitor_with(), profile_path=1), "profile_path is 1; it must be the path"),
        (
            lambda: PipelineFrequencyOptimizer(monitor_with(), identity=1),
            "identity is 1; it must hold numbers and text",
        ),
        (lambda: read_plan(3), "path is 3; it must be the path of a file, such as plan.json"),
        (lambda: read_plan("/dev/null"), "/dev/null: it is a folder or a device"),
        (lambda: PipelineProfile.from_csv(1, 80), "path is 1; it must be the path of a file, such as profile.csv"),
        (lambda: read_allocation(3), "path is 3; it must be the path of a file, such as plan.json"),
        (lambda: read_allocation("/dev/null"), "/dev/null: it is a folder or a device, not a file"),
        (lambda: PowerLimitKnob([], 25), r"gpus is \[\]; it must be at least one Gpu object"),
        (lambda: PowerLimitKnob([A40], -1), "step_watts is -1; it must be a whole number, at least 1"),
        (lambda: PowerLimitKnob([A40], 0.5), "step_watts is 0.5; it must be a whole number, at least 1"),
        (lambda: PowerLimitKnob([A40], 25).apply("300"), "a power limit of '300' W is outside"),
        (lambda: Work(seconds="x", active_power_watts=300.0), "Work.seconds is 'x'; it must be a positive number"),
        (lambda: MicroBatchOptimizer(max_probes=0), "max_probes is 0; it must be a whole number, at least 1"),
        (lambda: MicroBatchOptimizer(optimum_selector=1), "selector is 1; it must be an OptimumSelector object"),
        (lambda: Trial("300", 10, None), "Trial.setting is '300'; it must be a whole number, at least 1"),
        (lambda: Target("", 1), 'Target.metric is .*; it must be the name of a metric, such as "eval_accuracy"'),
        (lambda: RecurringJob("x", [8], 4, Target("a", 1), 3), "default is 4; it must be one of batch_sizes: 8"),
        (lambda: DriftingSlices("now"), "timestamps is 'now'; it must be timestamps, such as '2009-05-01 12:00'"),
        (
            lambda: TrainingEnergy(monitor_with(), recurring_run=1),
            "recurring_run is 1; it must be the run of a recurring job",
        ),
        (lambda: schedules.gpipe(10**9, 10**9), "stages is 1000000000, microbatches is 1000000000; their product must"),
    ],
)
def test_the_error_names_the_argument_its_value_and_what_to_give(call, message, monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    with pytest.raises(UsageError, match=message):
        call()


def test_adapters_pass_on_every_option_of_the_search():
    own = {"monitor", "optimum_selector", "world", "quiet"}  # of each adapter itself
    assert {*inspect.signature(GlobalPowerLimitOptimizer).parameters} - own == {*OptimizerOptions.__annotations__}
