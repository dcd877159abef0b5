"""A training in virtual time on the boards of a fake tree, with a search of the power limit."""

from types import SimpleNamespace

from zeus_core._sysfs import find_cards
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.sysfs.amd import AmdGpu
from zeus_core.device.sysfs.intel import IntelGpu
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import EnergyWithin, GlobalPowerLimitOptimizer
from zeus_core.training import TrainingEnergy

NO_CPUS = CpuDiscovery((), "not part of this test")
VENDORS = ["AMD", "Intel"]


def add(tree, vendor, **sensors):
    """Add a board. Returns it, and what it was before the training."""
    board = tree.add(**sensors) if vendor == "AMD" else tree.add_intel(**sensors)
    return board, SimpleNamespace(cap_watts=board.cap_watts, joules=board.joules)


def opened(cards, time_source):
    """The GPUs of some cards in virtual time."""
    return [(AmdGpu if card.driver == "amdgpu" else IntelGpu)(card, time_source=time_source) for card in cards]


def train(tree, time_source, folder, *, steps=300, bound=1.2, cards=None, during=lambda step: None):
    """Train. Returns the summary, the slowdown, and the phase that the search ended in."""
    gpus = opened(find_cards(str(tree.root)) if cards is None else cards, time_source)
    time_source.repeatedly(lambda: [board.advance(0.1) for board in tree.boards], 0.1)
    monitor = ZeusMonitor(gpus=gpus, cpus=NO_CPUS, time_source=time_source, synchronize=lambda indices: None)
    optimizer = GlobalPowerLimitOptimizer(monitor, EnergyWithin(factor=bound), quiet=True)
    begin = time_source.now()
    with TrainingEnergy(monitor, optimizer, folder=folder, quiet=True) as energy:
        for step in range(steps):
            during(step)
            with energy.step(samples=8):
                speeds, watts = zip(*(board.speed_and_watts() for board in tree.boards), strict=True)
                for board, speed, power in zip(tree.boards, speeds, watts, strict=True):
                    board.watts, board.clock_mhz = power, 1980 * speed
                time_source.advance(0.5 / min(speeds))
        phase = optimizer.phase
    return energy.summary, (time_source.now() - begin) / (0.5 * steps), phase
