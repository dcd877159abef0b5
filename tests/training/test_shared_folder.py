"""Processes that train in one output folder at the same time: what each has measured is kept."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zeus_core.tracing.merge import merge, traces_in
from zeus_core.tracing.trace_file import read_trace
from zeus_core.training.record.run_file import read_run

# Obeys one line after the other, and answers each: the test decides what happens before what. A virtual second a step.
PROGRAM = """
import errno
import fcntl
import sys
from tests.support.hooks import be_patient
be_patient()
from zeus_core import files
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

files._LOCK_SECONDS = 30.0  # on a busy machine, one that holds the lock may get no turn
time_source = VirtualTime()
time_source.set_clock(1_772_409_600.0)
gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "none"), time_source=time_source)
if sys.argv[2] == "no locks":
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl.flock = flock
energy = TrainingEnergy(monitor, folder=sys.argv[1], trace=True, quiet=True)
state = None
for line in sys.stdin:
    command, *numbers = line.split()
    if command == "begin":
        energy.on_train_begin()
    elif command == "resume":
        energy.load_state_dict(eval(line.partition(" ")[2]))
        energy.on_train_begin(10)
    elif command == "train":
        for _ in range(int(numbers[0])):
            with energy.step():
                gpu.execute(Work(1.0, 300.0))
    elif command == "save":
        state = energy.state_dict()
    elif command == "end":
        energy.finish()
        energy.on_train_end()
    print(state, flush=True)
"""


class Training:
    """A process that trains, one command after the other."""

    def __init__(self, folder, locks):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), locks],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, command):
        """Have it obey a command; return its latest checkpoint, as text."""
        self.start(command)
        return self.process.stdout.readline().strip()

    def start(self, command):
        print(command, file=self.process.stdin, flush=True)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """End the process; return what it has logged."""
        return self.process.communicate(timeout=240)[1]


@pytest.fixture
def start(tmp_path):
    """Start a process that trains in the folder of the test."""
    trainings = []

    def start(locks="locks"):
        trainings.append(Training(tmp_path, locks))
        return trainings[-1]

    yield start
    for training in trainings:
        training.kill()
        for pipe in (training.process.stdin, training.process.stdout, training.process.stderr):
            pipe.close()


def steps_by_run(folder):
    """Return the steps of each part in the files of the folder, and its state, for each file."""
    files = [read_run(path) for path in (folder / "zeus-energy").glob("run*.json")]
    return sorted([(part.step, part.state) for part in run.parts] for run in files)


def test_two_that_start_together_are_both_kept(start, tmp_path):
    first, second = start(), start()
    for training in (first, second):
        training("begin")
    first("train 10")
    second("train 20")
    first("end")
    second("end")
    assert steps_by_run(tmp_path) == [[(10, "ended")], [(20, "ended")]]
    assert read_run(tmp_path).latest.step == 20


def test_one_starting_beside_another_training_uses_another_file_and_is_named(start, tmp_path):
    first = start()
    first("begin")
    first("train 10")
    first("save")
    second = start()
    second("begin")
    second("train 20")
    second("save")
    assert steps_by_run(tmp_path) == [[(10, "running")], [(20, "running")]]
    first("train 5")
    first("save")
    first("end")
    second("end")
    assert steps_by_run(tmp_path) == [[(15, "ended")], [(20, "ended")]]
    assert read_run(tmp_path).latest.step == 20
    (beside,) = (tmp_path / "zeus-energy").glob("run-*.json")
    assert f"another process trains in this folder too: the run file of this one is now {beside}" in first.stop()
    assert "run file" not in second.stop()


@pytest.mark.parametrize(("last", "locks"), [(0, "no locks"), (1, "locks"), (2, "no locks")])
def test_three_that_take_turns_are_all_kept(start, tmp_path, last, locks):
    """Also on a file system without locks, such as Lustre without `-o flock`."""
    trainings = [start(locks) for _ in range(3)]
    for training in trainings:
        training("begin")
    for _ in range(3):
        for number, training in enumerate(trainings):
            training(f"train {number + 1}")
            training("save")
    for number in range(3):
        trainings[(last + 1 + number) % 3]("end")
    assert steps_by_run(tmp_path) == [[(3, "ended")], [(6, "ended")], [(9, "ended")]]


def test_three_that_save_at_the_same_time_are_all_kept(start, tmp_path):
    trainings = [start(), start(), start()]
    for training in trainings:
        training("begin")
    for _ in range(20):
        for training in trainings:
            training.start("train 1")
            training.start("save")
    for training in trainings:
        training.start("end")
    for training in trainings:
        training.stop()
    assert steps_by_run(tmp_path) == [[(20, "ended")]] * 3


def test_one_that_is_killed_blocks_nobody_and_loses_nothing(start, tmp_path):
    first, second = start(), start()
    first("begin")
    first("train 10")
    first("save")
    second("begin")
    second("train 20")
    second("save")
    first.kill()
    second("end")
    third = start()
    third("begin")
    third("train 30")
    third("end")
    assert steps_by_run(tmp_path) == [[(10, "running")], [(20, "ended")], [(30, "ended")]]
    assert read_run(tmp_path).latest.step == 30
    assert third.stop() == ""


def test_both_find_their_parts_again_when_they_resume(start, tmp_path):
    trainings = [start(), start()]
    for training in trainings:
        training("begin")
    for training in trainings:
        training("train 10")
    states = [training("save") for training in trainings]
    for training in trainings:
        training.kill()
    resumed = [start(), start()]
    for training, state in zip(resumed, states, strict=True):
        training(f"resume {state}")
    resumed[0]("train 7")
    resumed[1]("train 8")
    for training in resumed:
        training("save")
        training("end")
    files = steps_by_run(tmp_path)
    for steps in (17, 18):
        assert [(10, "interrupted"), (steps, "ended")] in files


def test_two_that_resume_the_same_checkpoint_are_both_kept(start, tmp_path):
    first = start()
    first("begin")
    first("train 10")
    state = first("save")
    first.kill()
    resumed = [start(), start()]
    for number, training in enumerate(resumed):
        training(f"resume {state}")
        training(f"train {7 + number}")
        training("save")
    for training in resumed:
        training("end")
    assert steps_by_run(tmp_path) == [
        [(10, "interrupted"), (17, "ended")],
        [(10, "interrupted"), (17, "interrupted"), (18, "ended")],
    ]


def test_the_traces_of_two_are_kept_and_never_merged(start, tmp_path):
    first, second = start(), start()
    for training in (first, second):
        training("begin")
    first("train 10")
    second("train 20")
    first("end")
    second("end")
    paths = sorted((tmp_path / "zeus-energy").glob("trace-0*.json.gz"))
    assert sorted(read_trace(path).ranks[0].steps for path in paths) == [10, 20]
    assert str(next(path for path in paths if path.name != "trace-0.json.gz")) in second.stop()
    merged = merge(paths)
    assert len(merged.trace.ranks) == 1
    assert any("is of another training" in note for note in merged.notes)
    assert len(traces_in(tmp_path)) == 1
