"""Agreement of ranks, which are threads here: on what one of them lacks, and on the energy of steps."""

import pytest

from zeus_core.errors import DriverFaultError, WorldError
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.world import SoloWorld
from zeus_core.testing import FaultyGpu
from zeus_deepspeed._monitor_events import MonitorEvents


class TrainingEngine:
    """In the place of an engine: takes a second a step."""

    def __init__(self, time_source):
        self.global_samples = 0
        self.events = []
        self.monitor = self
        self.time_source = time_source

    def train_batch(self):
        self.time_source.advance(1.0)
        self.global_samples += 4
        return "loss"

    def write_events(self, events):
        self.events += events


def train(engine, events, steps):
    assert [events.measure(engine.train_batch) for _ in range(steps)] == ["loss"] * steps


def test_each_step_is_written_over_the_samples_seen_by_its_end(gpu, time_source, monitor):
    engine = TrainingEngine(time_source)
    train(engine, MonitorEvents(engine, monitor, SoloWorld(), exchange_steps=2), steps=5)
    idle_watts = gpu.read_power_watts()
    assert [(name, samples) for name, _, samples in engine.events] == [
        (f"Train/Samples/{name}", samples) for samples in (4, 8, 12, 16) for name in ("energy_j", "power_w")
    ]
    assert [value for _, value, _ in engine.events] == pytest.approx([idle_watts] * 8, rel=0.1)


def test_a_step_of_which_a_part_is_lost_is_left_out(gpu, time_source):
    engine, faulty = TrainingEngine(time_source), FaultyGpu(gpu)
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    events = MonitorEvents(engine, monitor, SoloWorld(), exchange_steps=3)
    train(engine, events, steps=1)
    for method in ("read_energy_counter_joules", "read_power_watts"):
        faulty.fail(method, DriverFaultError("no answer"))
    train(engine, events, steps=1)
    faulty.heal()
    train(engine, events, steps=1)
    assert {samples for *_, samples in engine.events} == {4, 12}


class FullDiskEngine(TrainingEngine):
    def write_events(self, events):
        super().write_events(events)
        raise OSError("no space left")


def test_a_monitor_that_fails_is_told_of_once_and_left_behind(time_source, monitor, caplog):
    engine = FullDiskEngine(time_source)
    train(engine, MonitorEvents(engine, monitor, SoloWorld(), exchange_steps=1), steps=3)
    assert len(engine.events) == 6
    assert [record.levelname for record in caplog.records] == ["ERROR"]


class LostWorld:
    """A job whose other rank does not answer."""

    rank, size = 0, 2

    def __init__(self):
        self.gathered = 0

    def gather(self, value):
        self.gathered += 1
        raise WorldError("a rank did not answer in time")


def test_a_rank_that_does_not_answer_is_not_waited_for_twice(time_source, monitor, caplog):
    engine, world = TrainingEngine(time_source), LostWorld()
    train(engine, MonitorEvents(engine, monitor, world, exchange_steps=2), steps=8)
    assert (world.gathered, engine.events) == (1, [])
    assert len(caplog.records) == 1
    assert "a rank did not answer in time" in caplog.text
