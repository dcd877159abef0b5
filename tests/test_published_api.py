"""Programs written for the documented interface of the `zeus` package, with only their imports changed."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec

MEASURING = """
    import time
    from zeus_core.monitor import ZeusMonitor

    monitor = ZeusMonitor(gpu_indices=[0, 1], approx_instant_energy=True, log_file="energy.csv")
    monitor.begin_window("training")
    steps = []
    for epoch in range(2):
        monitor.begin_window("epoch")
        for step in range(3):
            monitor.begin_window("step", sync_execution=False)
            time.sleep(0.05)
            result = monitor.end_window("step", sync_execution=False)
            steps.append(result)
        result = monitor.end_window("epoch")
        print(f"Epoch {epoch} consumed {result.time:.1f} s and {result.total_energy:.1f} J")
    monitor.begin_window("cancelled")
    cancelled = monitor.end_window("cancelled", cancel=True)
    assert (cancelled.time, cancelled.gpu_energy, cancelled.total_energy) == (0.0, {0: 0.0, 1: 0.0}, 0.0)
    result = monitor.end_window("training")
    for index, energy in result.gpu_energy.items():
        print(f"GPU {index}: {energy:.1f} J")
    assert sorted(result.gpu_energy) == monitor.gpu_indices == [0, 1]
    assert result.total_energy == sum(result.gpu_energy.values()) > 0
    assert result.soc_energy is None
    assert result.cpu_energy is None or sum(result.cpu_energy.values()) >= 0
    assert all(step.total_energy > 0 for step in steps)
    assert result.time >= 0.3
"""

PLAIN_LOOP = """
    import time
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint, OptimumSelector
    from zeus_core.optimizer.power_limit import Energy, Time, ZeusCost

    class Lowest(OptimumSelector):
        def select(self, measurements):
            assert all(it.energy > 0 and it.time > 0 for it in measurements)
            return min(it.power_limit for it in measurements)

    monitor = ZeusMonitor(gpu_indices=[0])
    plo = GlobalPowerLimitOptimizer(
        monitor,
        optimum_selector=Lowest(),
        wait_steps=1,
        warmup_steps=2,
        profile_steps=5,
        pl_step=100,
        profile_path="power_limit.json",
    )
    for epoch in range(10):
        plo.on_epoch_begin()
        for step in range(10):
            plo.on_step_begin()
            time.sleep(0.004)
            plo.on_step_end()
        plo.on_epoch_end()
    import pynvml
    assert pynvml.nvmlDeviceGetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0)) == 200_000
"""

TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import MaxSlowdownConstraint
    from zeus_huggingface import HFGlobalPowerLimitOptimizer

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1,
                                       bos_token_id=0, eos_token_id=0))
    data = [{"input_ids": torch.tensor([1, 2, 3, 4]), "labels": torch.tensor([1, 2, 3, 4])}] * 200
    monitor = ZeusMonitor(gpu_indices=[0])
    optimizer = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(factor=9.0), wait_steps=1, warmup_steps=1,
                                            profile_steps=5, pl_step=250)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir="out", per_device_train_batch_size=4, num_train_epochs=1, report_to="none",
                               use_cpu=True, save_strategy="no", dataloader_pin_memory=False),
        train_dataset=data,
        callbacks=[optimizer],
    )
    trainer.train()
    assert optimizer.optimizer.chosen_limit_watts is not None
"""


def run(driver, program, folder):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **driver.environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "program",
    [MEASURING, PLAIN_LOOP, pytest.param(TRAINER, marks=pytest.mark.long)],
    ids=["measuring", "plain loop", "trainer"],
)
def test_a_published_program_runs(make_driver, tmp_path, program):
    driver = make_driver(DeviceSpec(power_limit_watts=450), DeviceSpec())
    for device in driver:
        device.set_load(420.0)
    finished = run(driver, program, tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert driver[0].power_limit_watts == 450
    assert driver[1].power_limit_watts == 700
