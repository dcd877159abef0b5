"""Training with each framework that is killed while a trial is under way: the GPUs are restored."""

import os
import signal
import sys
import textwrap
import time

import jupyter_client
import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.perseus_ranks import make_perseus_program, rank_processes

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the guardian needs Linux")]

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
SEARCH = "Lowest(), wait_steps=0, warmup_steps=0, profile_steps=5"

# Steps this short take any time on a busy machine, and an original that is chosen is nothing to restore.
LOWEST = """
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.optimizer.power_limit import OptimumSelector

    class Lowest(OptimumSelector):
        def select(self, measurements):
            return min(measurement.power_limit for measurement in measurements)
"""

MODEL = f"""{LOWEST}
    import torch
    torch.set_num_threads(1)
    pairs = [(torch.randn(4), torch.randn(4)) for _ in range(64)]
    loader = torch.utils.data.DataLoader(pairs, batch_size=4, num_workers=WORKERS, persistent_workers=WORKERS > 0)
    model = torch.nn.Linear(4, 4)
"""

TRAINER = f"""{LOWEST}
    import sys
    from tests.huggingface.trainers import make_trainer
    from zeus_core.monitor import ZeusMonitor
    from zeus_huggingface import HFGlobalPowerLimitOptimizer
    search = HFGlobalPowerLimitOptimizer(ZeusMonitor(), {SEARCH})
    make_trainer("FOLDER", [search], max_steps=10**6, dataloader_num_workers=WORKERS).train()
"""

LIGHTNING = f"""{MODEL}
    import lightning
    from zeus_core.optimizer import GlobalPowerLimitOptimizer
    from zeus_lightning import ZeusCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    from zeus_core.monitor import ZeusMonitor
    zeus = ZeusCallback(
        monitor=ZeusMonitor(), optimizer=lambda monitor: GlobalPowerLimitOptimizer(monitor, {SEARCH})
    )
    lightning.Trainer(
        max_epochs=10**6, callbacks=[zeus], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir="FOLDER",
    ).fit(Module(), loader)
"""

ACCELERATE = f"""{MODEL}
    from accelerate import Accelerator
    from zeus_core.monitor import ZeusMonitor
    from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    search = PowerLimitOptimizer(accelerator, ZeusMonitor(), {SEARCH})
    with ZeusAccelerate(accelerator, optimizer=search) as energy:
        while True:
            for inputs, outputs in loader:
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), outputs))
                optimizer.step()
                optimizer.zero_grad()
"""


def until(condition, process):
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


def kill_and_wait(process, is_restored):
    """Kill a process; returns the seconds until the GPUs were restored."""
    begin = time.monotonic()
    process.kill()
    while not is_restored():
        assert time.monotonic() < begin + 240, "it was not restored"
        time.sleep(0.001)
    return time.monotonic() - begin


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("framework", [TRAINER, LIGHTNING, ACCELERATE], ids=["Trainer", "Lightning", "Accelerate"])
def test_training_that_is_killed_leaves_no_limit(make_driver, tmp_path, framework, workers):
    """Workers of a DataLoader are forked, and live on for a moment."""
    driver = make_driver(DEVICE)
    process = driver.start(framework.replace("FOLDER", str(tmp_path)).replace("WORKERS", str(workers)))
    until(lambda: driver[0].power_limit_watts < ORIGINAL_WATTS, process)
    print("restored after", kill_and_wait(process, lambda: driver[0].power_limit_watts == ORIGINAL_WATTS))
    process.communicate()


def test_a_killed_rank_of_perseus_leaves_no_clock_locked_anywhere(make_driver):
    driver = make_driver(*[DEVICE] * 4)

    def clocks():
        return [device.locked_clock_mhz for device in driver]

    process = driver.start(make_perseus_program())
    ranks = rank_processes(process)
    until(lambda: None not in clocks(), process)
    os.kill(ranks[2], signal.SIGKILL)
    process.communicate(timeout=240)  # the others lose their neighbour, and end
    end = time.monotonic() + 240
    while any(clocks()):
        assert time.monotonic() < end, clocks()
        time.sleep(0.01)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_that_is_killed_leaves_no_limit(make_driver, tmp_path, method):
    program = """
        import time
        def train():
            from zeus_core.monitor import ZeusMonitor
            from zeus_core.optimizer import GlobalPowerLimitOptimizer
            search = GlobalPowerLimitOptimizer(ZeusMonitor(), Lowest(), wait_steps=0, warmup_steps=0, profile_steps=5)
            while True:
                search.on_step_begin()
                time.sleep(0.002)
                search.on_step_end()
    """
    (tmp_path / "training.py").write_text(textwrap.dedent(LOWEST) + textwrap.dedent(program))
    driver = make_driver(DEVICE)
    process = driver.start(
        f"""
        import multiprocessing, os, signal, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import training
        child = multiprocessing.get_context({method!r}).Process(target=training.train)
        child.start()
        input()
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        input()
        """
    )
    until(lambda: driver[0].power_limit_watts < ORIGINAL_WATTS, process)
    process.stdin.write("\n")
    process.stdin.flush()
    until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS, process)
    process.communicate("\n", timeout=240)


def test_a_kernel_of_a_notebook_that_is_killed_leaves_no_limit(make_driver):
    manager = jupyter_client.KernelManager()
    driver = make_driver(DEVICE)
    manager.start_kernel(env={**os.environ, **driver.environment})
    client = manager.client()
    client.start_channels()
    client.execute(
        "from zeus_core.device import discover_gpus\n"
        "from zeus_core.settings.limit_knob import PowerLimitKnob\n"
        "knob = PowerLimitKnob(discover_gpus({}), 25)\n"
        "knob.apply(200)\n"
    )
    end = time.monotonic() + 240
    while driver[0].power_limit_watts != 200.0:
        assert time.monotonic() < end
        time.sleep(0.01)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    while driver[0].power_limit_watts != ORIGINAL_WATTS:
        assert time.monotonic() < end
        time.sleep(0.01)
