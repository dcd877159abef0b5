"""A training that is killed within an activity that has a clock of its own, by a driver whose calls take long."""

import itertools
import signal
import sys
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.process.test_guardian import wait_until
from tests.support.variants import long_but_first

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guardian needs Linux")

MHZ = {"generation": 900, "evaluation": 1200, "steps": 1500}

BEGIN = """
    import time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import GlobalClockOptimizer
    from zeus_core.optimizer.power_limit import EnergyWithin

    optimizer = GlobalClockOptimizer(
        ZeusMonitor(), EnergyWithin(1.02), activities="each", changes_per_hour=10**6, max_steps=10**6
    )
    is_ready = False

    def work(name):
        global is_ready
        time.sleep({seconds})
        if name == "steps" and optimizer._search is not None and optimizer._search.run_steps == 3:
            for activity, visits in optimizer._search.visits.activities.items():
                visits.take_order(dict(generation=900, evaluation=1200)[activity])
            optimizer._search.limiter.set(1500)
            is_ready = True
        if is_ready and name == "{killed}":
            print("in", name, flush=True)
            time.sleep(60)
"""

PLAIN = """
    def visit(name):
        optimizer.on_pause(Activity(name))
        work(name)
        optimizer.on_resume()

    while True:
        visit("generation")
        visit("evaluation")
        optimizer.on_step_begin()
        work("steps")
        optimizer.on_step_end()
"""

LIGHTNING = """
    import lightning
    import torch
    from tests.lightning.trainers import loader, make_trainer, module_class
    from zeus_lightning import ZeusCallback

    class Module(module_class(lightning.pytorch)):
        def training_step(self, batch, index):
            work("steps")
            return super().training_step(batch, index)

        def validation_step(self, batch, index):
            work("evaluation")

    trainer = make_trainer("{folder}", [ZeusCallback(optimizer=optimizer)], max_steps=-1, val_check_interval=1)
    trainer.fit(Module(), loader(20), loader(1))
"""


@pytest.mark.parametrize(
    ("latency", "program", "activity"),
    long_but_first(
        [
            *itertools.product([0.01, 0.05], [PLAIN], MHZ),
            *itertools.product([0.05], [LIGHTNING], ["evaluation", "steps"]),
        ]
    ),
)
def test_a_training_that_is_killed_in_an_activity_leaves_no_clock(make_driver, tmp_path, latency, program, activity):
    driver = make_driver(DeviceSpec())
    for function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"):
        driver.set_latency(latency, function)
    text = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    process = driver.start(text.format(killed=activity, seconds=6 * latency, folder=tmp_path))
    assert process.stdout.readline() == f"in {activity}\n"
    wait_until(lambda: driver[0].locked_clock_mhz == MHZ[activity])  # a busy machine sets it late
    process.kill()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: driver[0].locked_clock_mhz is None)
