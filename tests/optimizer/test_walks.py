"""Walks through the search of a setting: how many calls lie between an event of training and the hardware."""

import sys

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.testing import VirtualTime


def test_a_limit_change_reaches_the_knob_directly_through_no_module_twice(monkeypatch):
    walks = []
    apply = PowerLimitKnob.apply

    def noted(knob, setting):
        frame, walk = sys._getframe(1), []
        while frame.f_code.co_filename != __file__:
            walk.insert(0, frame.f_code.co_filename)
            frame = frame.f_back
        walks.append(walk)
        apply(knob, setting)

    monkeypatch.setattr(PowerLimitKnob, "apply", noted)
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "none"), time_source=time_source)
    with GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1), max_steps=600, quiet=True) as optimizer:
        for _ in range(600):
            optimizer.on_step_begin()
            gpu.execute(Work(0.5, 484.9, 0.938, 0.744))
            optimizer.on_step_end()
    assert len(walks) >= 3
    for walk in walks:
        assert len(walk) <= 8, walk
        rooms = [room for room, before in zip(walk, ["", *walk], strict=False) if room != before]
        assert len(rooms) == len(set(rooms)), walk
