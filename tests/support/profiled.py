"""A training with a trace of its energy, one as a profiler writes it, and the truth."""

import json
import random

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.tracing.ranges.range_joules import add_energy, rank_of
from zeus_core.tracing.trace_file import read_document, read_trace
from zeus_core.training import TrainingEnergy

__all__ = ["PARTS", "Profiled"]

PARTS = {"forward": (0.02, 300.0), "backward": (0.045, 380.0), "optimizer": (0.025, 120.0)}


def steady(choose, seconds, watts):
    """Return the seconds and the watts of the pieces of a range: one, that takes about as long each time."""
    return [(seconds * choose.gauss(1.0, 0.02), watts)]


class Profiled:
    """A training of steps of some ranges, with its energy trace, a trace as a profiler writes it, and the truth.

    `pieces` returns the seconds and the watts of the pieces of one range; watts of None are rest.
    """

    def __init__(self, folder, parts=PARTS, steps=100, seed=0, ahead=0.0, pieces=steady):
        choose = random.Random(seed)
        time_source = VirtualTime()
        time_source.set_clock(1.7e9)
        gpu = SimulatedGpu(
            find_preset("A100-SXM4-80GB"), seed % 4, time_source=time_source, noise=SimulatedNoise(seed=seed)
        )
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
        base, self.truth, self.each, events = 1.7e9 - 1000, {}, [], []

        def done(name, begin, before):
            joules = gpu.exact_energy_joules() - before
            self.truth[name] = self.truth.get(name, 0.0) + joules
            end = time_source.clock_seconds() + ahead
            ts, end_ts = (round((at - base) * 1e6, 3) for at in (begin + ahead, end))
            event = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 7}
            events.append({**event, "ts": ts, "dur": round(end_ts - ts, 3)})
            self.each.append(joules)

        def warm(count):
            for _ in range(count):
                with energy.step():
                    gpu.execute(Work(0.1, 250.0))

        with TrainingEnergy(monitor, folder=folder, trace=True, quiet=True) as energy:
            warm(20)
            for _ in range(steps):
                step_begin, step_before = time_source.clock_seconds(), gpu.exact_energy_joules()
                with energy.step():
                    for name, (seconds, watts) in parts.items():
                        begin, before = time_source.clock_seconds(), gpu.exact_energy_joules()
                        for piece_seconds, piece_watts in pieces(choose, seconds, watts):
                            if piece_watts is None:
                                time_source.advance(piece_seconds)
                            else:
                                gpu.execute(Work(piece_seconds, piece_watts))
                        done(name, begin, before)
                done("step", step_begin, step_before)
            warm(20)
        self.energy = folder / "zeus-energy" / "trace-0.json.gz"
        self.document = {"baseTimeNanoseconds": round(base * 1e9), "traceEvents": events}
        self.profile = folder / "profile.json"
        self.profile.write_text(json.dumps(self.document))

    def added(self):
        return add_energy(rank_of(read_trace(self.energy).ranks, self.document), read_document(self.profile))
