"""Ranks with batches, limits and clocks of their own that end together or one by one: all GPUs are as before."""

import os
import signal
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.ranks import torchrun_environments

# Ranks with rights restore as those of `test_levelled_end.py` do.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_unprivileged(), reason="runs with the daemon alone privileged"),
]

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

# Rank 1 takes twice as long for a step. Both train until they are killed, unless END says otherwise.
PROGRAM = """
    import os, time
    from tests.support.hooks import be_patient
    be_patient()
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from zeus_core.mixed.allocation import DeviceProfile
    from zeus_core.mixed.allocation._fit import MeasuredBatch
    from zeus_core.mixed.allocation.device_profile import keep_profile
    from zeus_core.batches.pytorch import BatchAllocation, UnevenBatches
    from zeus_core.mixed.levelling import report_work_end
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.mixed.levelling import LevellingOptimizer
    from zeus_core.pytorch import torch_world

    SETTINGS = [(450, 440.0), (300, 290.0)]
    points = tuple(MeasuredBatch(w, b, 0.05 + 0.01 * b, drawn) for w, drawn in SETTINGS for b in (2, 8))

    def train(environment, rank):
        os.environ.update(environment)
        torch.distributed.init_process_group("gloo")
        torch.set_num_threads(1)
        monitor = ZeusMonitor(gpu_indices=[rank])
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        updates = torch.optim.SGD(model.parameters(), 0.01)
        steps = changed = 0
        batches = BATCHES
        uneven = UnevenBatches(model, batches)
        loader = uneven.loader(torch.utils.data.TensorDataset(torch.ones(8000, 4)))
        levelling = LevellingOptimizer(monitor, world=torch_world(), quiet=True, ARGUMENTS)
        report_work_end(model, updates, levelling)
        with levelling:
            for (inputs,) in (batch for _ in range(EPOCHS) for batch in loader):
                levelling.on_step_begin()
                time.sleep(0.01 * (1 + rank))
                uneven.weighted(model(inputs).square().mean()).backward()
                updates.step()
                updates.zero_grad()
                levelling.on_step_end()
                changed += levelling.changes > 0
                END
        uneven.close()

    if "folder" in BATCHES:
        keep_profile(DeviceProfile("NVIDIA H200", points, 100.0), "FOLDER")
    for rank, environment in enumerate(ENVIRONMENTS):  # forked, as torch takes long to import
        child = os.fork()
        if child == 0:
            train(environment, rank)
            raise SystemExit
        print(child, flush=True)
    print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)], flush=True)
"""

CHOSEN = 'BatchAllocation(8, monitor, folder="FOLDER")'
ENDS = {
    "exception": "if changed > 5: assert rank == 0, 'a fault of the training'",
    "one killed": "pass",
    "all killed": "pass",
}
FEATURES = {"batches, limits and clocks": (CHOSEN, 'knob="clock"'), "a budget": ("[4, 4]", "budget_watts=800")}


@pytest.mark.parametrize(
    ("feature", "end"),
    [*(("batches, limits and clocks", end) for end in ("exception", "all killed")), ("a budget", "one killed")],
)
def test_gpus_are_as_before_however_ranks_end(make_driver, tmp_path, feature, end):
    driver = make_driver(DEVICE, DEVICE)
    batches, arguments = FEATURES[feature]
    program = PROGRAM.replace("BATCHES", batches, 1).replace("BATCHES", repr(batches)).replace("END", ENDS[end])
    program = program.replace("FOLDER", str(tmp_path)).replace("ARGUMENTS", arguments)
    program = program.replace("EPOCHS", "1" if end == "exception" else "1_000_000")
    process = driver.start(program.replace("ENVIRONMENTS", repr(list(torchrun_environments(2)))))
    ranks = [int(process.stdout.readline()) for _ in range(2)]
    if "killed" in end:
        until(lambda: is_changed(driver, feature == "a budget"), process)
        for rank in ranks if end == "all killed" else ranks[1:]:
            os.kill(rank, signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    until(lambda: is_as_before(driver))
    assert output.strip() == {"all killed": "[-9, -9]"}.get(end, output.strip()) != "", errors
    assert driver.calls("nvmlDeviceSetPowerManagementLimit"), errors
    assert feature == "a budget" or driver.calls("nvmlDeviceSetGpuLockedClocks"), errors


def until(condition, process=None, seconds=240.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def is_changed(driver, has_budget):
    limits = [device.power_limit_watts for device in driver]
    if has_budget:
        return min(limits) < 400.0  # half of the budget
    return limits == [300.0, 300.0] and any(device.locked_clock_mhz for device in driver)


def is_as_before(driver):
    return all(
        device.power_limit_watts == ORIGINAL_WATTS and device.locked_clock_mhz is None for device in driver.devices
    )
