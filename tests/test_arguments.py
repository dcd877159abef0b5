"""Wrong arguments: every public constructor, class method and function answers with one of our errors."""

import gc
import random
import sys
import threading
import time

import pytest

from tests.support.arguments import callables, documented_errors, random_call
from zeus_core.device import SimulatedGpu, Work, discover_gpus, find_preset
from zeus_core.errors import UsageError
from zeus_core.jobs import DriftingSlices, RecurringJob, Target
from zeus_core.jobs.recurring_run import RecurringRun
from zeus_core.measurement import Measurement
from zeus_core.mixed.allocation.allocation_plan import read_plan as read_allocation
from zeus_core.monitor import ZeusMonitor, measure_job
from zeus_core.optimizer import GlobalPowerLimitOptimizer, PipelineFrequencyOptimizer
from zeus_core.optimizer.micro_batch import MicroBatchOptimizer
from zeus_core.pipeline import PipelineProfile, schedules
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.search import Trial
from zeus_core.settings import PowerLimitKnob, SmClockKnob
from zeus_core.training import TrainingEnergy


def monitor_with(**arguments):
    gpu = SimulatedGpu(find_preset("A40"))
    return ZeusMonitor(**{"gpus": [gpu], "cpu_indices": [], **arguments})


NOT_CALLED = {"zeus_core.pytorch", "zeus_core.pipeline.taps", "zeus_core.electricity"}
A40 = SimulatedGpu(find_preset("A40"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: monitor_with(gpu_indices=0), r"gpu_indices is 0; it must be a list of indices, such as \[0\]"),
        (lambda: monitor_with(gpu_indices="0"), "gpu_indices is '0'; it must be a list of indices"),
        (lambda: monitor_with(gpu_indices=[1.5]), r"gpu_indices is \[1.5\], but there is no GPU 1.5"),
        (lambda: monitor_with(cpu_indices=0), "cpu_indices is 0; it must be a list of indices"),
        (lambda: monitor_with(log_file=1), "log_file is 1; it must be the path of a file, such as energy.csv"),
        (lambda: monitor_with(gpus=A40), r"gpus is <.*SimulatedGpu.*>; it must be a list of Gpu objects"),
        (lambda: monitor_with(gpus=[0]), r"gpus\[0\] is 0; it must be a Gpu object, such as discover_gpus\(\)\[0\]"),
        (lambda: monitor_with(cpus=[0]), r"cpus is \[0\]; it must be a CpuDiscovery, such as discover_cpus\(\)"),
        (lambda: monitor_with(time_source=1), "time_source is 1; it must be a TimeSource object"),
        (lambda: monitor_with(precise="no"), "precise is 'no'; it must be true or false"),
        (lambda: monitor_with(approx_instant_energy=1), "approx_instant_energy is 1; it must be true or false"),
        (lambda: monitor_with(synchronize=True), "synchronize is True; it must be a function that waits for some GPUs"),
        (lambda: TrainingEnergy(monitor_with(), world=1), "world is 1; it must be a World object"),
        (lambda: TrainingEnergy(monitor_with(), folder=1), "folder is 1; it must be the path of a folder"),
        (lambda: TrainingEnergy(monitor_with(), strict=1), "strict is 1; it must be true or false"),
        (lambda: TrainingEnergy({}, optimizer=1), "optimizer is 1; it must be one such as"),
        (lambda: GlobalPowerLimitOptimizer(monitor_with(), profile_path=1), "profile_path is 1; it must be the path"),
        (
            lambda: PipelineFrequencyOptimizer(monitor_with(), device_events="x"),
            "device_events is 'x'; it must be a func",
        ),
        (
            lambda: PipelineFrequencyOptimizer(monitor_with(), make_background=1),
            "make_background is 1; it must be a fu",
        ),
        (
            lambda: PipelineFrequencyOptimizer(monitor_with(), identity=1),
            "identity is 1; it must hold numbers and text",
        ),
        (lambda: read_plan(3), "path is 3; it must be the path of a file, such as plan.json"),
        (lambda: read_plan("/dev/null"), "/dev/null: it is not JSON"),
        (lambda: PipelineProfile.from_csv(1, 80), "path is 1; it must be the path of a file, such as profile.csv"),
        (lambda: read_allocation(3), "path is 3; it must be the path of a file, such as plan.json"),
        (lambda: read_allocation("/dev/null"), "/dev/null: it is a folder or a device, not a file"),
        (lambda: PowerLimitKnob([], 25), r"gpus is \[\]; it must be a list of Gpu objects"),
        (lambda: PowerLimitKnob([A40], -1), "step_watts is -1; it must be a whole number, at least 1"),
        (lambda: PowerLimitKnob([A40], 0.5), "step_watts is 0.5; it must be a whole number, at least 1"),
        (lambda: PowerLimitKnob([A40], 25).apply("300"), "a power limit of '300' W is outside"),
        (lambda: SmClockKnob(0), "gpu is 0; it must be a Gpu object"),
        (lambda: Work(seconds="x", active_power_watts=300.0), "Work.seconds is 'x'; it must be a positive number"),
        (lambda: MicroBatchOptimizer(max_probes=0), "max_probes is 0; it must be a whole number, at least 1"),
        (lambda: MicroBatchOptimizer(optimum_selector=1), "selector is 1; it must be an OptimumSelector object"),
        (lambda: find_preset(None), "model is None; it must be the name of a GPU, such as A100-SXM4-80GB"),
        (lambda: SimulatedGpu("A40"), "preset is 'A40'; it must be a GpuPreset"),
        (lambda: discover_gpus({"ZEUS_SIMULATED_GPUS": 1}), "ZEUS_SIMULATED_GPUS is 1; it must be a text"),
        (lambda: Trial("300", 10, None), "Trial.setting is '300'; it must be a whole number, at least 1"),
        (lambda: Measurement.from_energies(1.0, [250.0]), r"gpu_energy is \[250.0\]; it must be a mapping"),
        (lambda: measure_job(None, None), "measurement is None; it must be a Measurement"),
        (lambda: Target("", 1), 'Target.metric is .*; it must be the name of a metric, such as "eval_accuracy"'),
        (lambda: RecurringJob("x", [8], 4, Target("a", 1), 3), "default is 4; it must be one of batch_sizes: 8"),
        (lambda: DriftingSlices("now"), "timestamps is 'now'; it must be timestamps, such as '2009-05-01 12:00'"),
        (
            lambda: RecurringJob("x", [8], 8, Target("a", 1), 3).measure_epochs(3),
            "train is 3; it must be the function of a run that trains",
        ),
        (lambda: RecurringRun(1), r"begun is 1; it must be a BegunRun, such as that of RecurringJob.run\(\)"),
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


def check_calls(packages, count, seed, monkeypatch, tmp_path, skip=()):
    """Make random calls of everything in turn. A call may succeed, or raise one of the errors it is documented to."""
    choose = random.Random(seed)
    found = list(callables(packages, skip))
    assert len(found) > 15
    for number in range(count):
        name, function = found[number % len(found)]
        if name == "initialize":  # its arguments are those of deepspeed.initialize, and so are their errors
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)  # what a call writes lies in its own folder
        arguments = random_call(name, function, choose)
        kinds = {argument: type(value).__name__ for argument, value in arguments.items()}
        try:
            function(**arguments)
        except documented_errors(function) as error:
            if not str(error):
                raise AssertionError(f"call {number}, {name}({kinds}), raised an error without a message") from error
        except Exception as error:
            raise AssertionError(f"call {number}, {name}({kinds}), raised {error!r}") from error


@pytest.fixture
def threads_end():
    """What the calls have made, monitors among them, leaves no threads: hundreds of calls would leave hundreds."""
    before = threading.active_count()
    yield
    gc.collect()
    until = time.monotonic() + 240
    while len(names := [thread.name for thread in threading.enumerate()]) > before + 20:
        assert time.monotonic() < until, names
        time.sleep(0.01)


def test_random_calls_raise_our_errors_only(monkeypatch, tmp_path, threads_end):
    check_calls(["zeus_core"], 1_500, 0, monkeypatch, tmp_path, skip=NOT_CALLED)


@pytest.mark.long
@pytest.mark.timeout(1800)  # 280 s where ten other jobs run
def test_thousands_of_random_calls_raise_our_errors_only(monkeypatch, tmp_path, threads_end):
    check_calls(["zeus_core"], 3_000, 1, monkeypatch, tmp_path, skip=NOT_CALLED)


@pytest.fixture
def nothing_stays_enabled():
    """`enable` is one of the functions: engines and trainers of later tests in this process are not to have ours."""
    yield
    for name in ("zeus_deepspeed.auto", "zeus_huggingface.auto"):
        if name in sys.modules:
            sys.modules[name].disable()


@pytest.mark.long
def test_random_calls_of_the_integrations_raise_our_errors_only(monkeypatch, tmp_path, nothing_stays_enabled):
    packages = ["zeus_core.pytorch", "zeus_core.pipeline.taps", "zeus_huggingface", "zeus_lightning", "zeus_deepspeed"]
    # Megatron-core stays patched for the tests that follow, and warns as it is imported.
    check_calls(packages, 1_500, 2, monkeypatch, tmp_path, skip={"zeus_core.pipeline.taps.megatron"})
