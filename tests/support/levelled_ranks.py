"""Ranks of real trainings whose simulated GPUs are unequal: the first is quicker, and would wait for the other."""

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.mixed.levelling import LevellingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

SECONDS = (0.10, 0.11)
TOP_MHZ = 1410


class LevelledRank:
    """The GPU of a rank, in virtual time, with an optimizer that levels it."""

    def __init__(self, rank, **arguments):
        time_source = VirtualTime()
        self.gpu = SimulatedGpu(find_preset("A100"), rank, time_source=time_source)
        self.work = Work(SECONDS[rank], 300.0, 1.0, 0.9)
        self.monitor = ZeusMonitor(gpus=[self.gpu], cpu_indices=[], time_source=time_source)
        self.levelling = LevellingOptimizer(self.monitor, **arguments)

    @property
    def locked_mhz(self):
        self.gpu.submit(Work(1e6, 90.0))
        return self.gpu.read_sm_clock_mhz()

    def answer(self):
        """To be called after training: the settings can no longer be seen, but what was said of them."""
        return self.levelling.result(), self.locked_mhz


class CountedWork(LevellingOptimizer):
    """Counts how often the own work of a step is reported to be over, in a training on one rank."""

    def __init__(self):
        super().__init__(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))], cpu_indices=[]), quiet=True)
        self.work_ends = 0

    def on_work_end(self):
        self.work_ends += 1


def check(answers):
    """The quick rank was lowered by about its lead, the other not at all; and both are as before."""
    for rows, locked_mhz in answers:
        assert locked_mhz == TOP_MHZ
        lowest, highest = (int(word) for word in rows["levelling"].split(" MHz")[0].split()[-3::2])
        assert 1230 <= lowest <= 1320, rows
        assert highest == TOP_MHZ, rows
        assert "before" in rows["waiting for other ranks"]
    assert answers[0][0] == answers[1][0], "ranks agree"
