"""Energy over interruptions: saved with accelerate's checkpoints, and in a journal."""

import json
import os
import signal

import pytest
from accelerate.state import AcceleratorState, GradientState

from tests.accelerate.loop import Loop, SlowState
from tests.accelerate.processes import run_processes
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_huggingface.accelerate import ZeusAccelerate


def saved_after(folder, gpu, monitor, steps, more_steps=0, **arguments):
    """Train for some steps, save, and train for more. Returns what all of it has taken."""
    loop = Loop(folder, gpu, **arguments)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(steps)
        loop.accelerator.save_state(folder / "checkpoint")
        loop.train_and_log(more_steps)
    return energy.summary


def resumed(folder, gpu, monitor, steps=0, **arguments):
    """Load what was saved in a new loop, and train for some steps. Returns what the run has taken."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    loop = Loop(folder, gpu, **arguments)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.accelerator.load_state(folder / "checkpoint")
        loop.train_and_log(steps)
    return energy.summary


@pytest.mark.parametrize("more_steps", [0, 3])
def test_totals_and_what_was_done_again_outlive_an_interruption(tmp_path, gpu, monitor, more_steps):
    begin = gpu.exact_energy_joules()
    saved_after(tmp_path, gpu, monitor, 10, more_steps)
    summary = resumed(tmp_path, gpu, monitor, steps=6)
    truth = gpu.exact_energy_joules() - begin
    assert summary.account.total.energy_joules == pytest.approx(truth, rel=0.01)
    assert summary.account.redone.energy_joules == pytest.approx(more_steps / (16 + more_steps) * truth, rel=0.05)
    assert summary.account.samples == 4 * (16 + more_steps)
    assert summary.steps == 6


def test_loading_is_a_checkpoint_too(tmp_path, gpu, monitor):
    loop = Loop(tmp_path, gpu)
    loop.accelerator.register_for_checkpointing(SlowState(gpu, Work(8.0, 150.0, 0.5, 0.1)))
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(3)
        loop.accelerator.save_state(tmp_path / "checkpoint")
        loop.accelerator.load_state(tmp_path / "checkpoint")
        loop.train_and_log(3)
    (seconds,) = [
        activity.seconds for name, activity in energy.summary.account.activities.items() if name.value == "checkpoint"
    ]
    assert seconds == pytest.approx(2 * gpu.preset.physics.operating_point(Work(8.0, 150.0, 0.5, 0.1), 350).seconds)


def test_going_back_to_a_checkpoint_in_the_same_process_is_doing_again(tmp_path, gpu, monitor):
    begin = gpu.exact_energy_joules()
    loop = Loop(tmp_path, gpu)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(10)
        loop.accelerator.save_state(tmp_path / "checkpoint")
        loop.train_and_log(5)
        loop.accelerator.load_state(tmp_path / "checkpoint")
        loop.train_and_log(5)
    truth = gpu.exact_energy_joules() - begin
    assert energy.summary.account.total.energy_joules == pytest.approx(truth, rel=0.01)
    assert energy.summary.account.redone.energy_joules == pytest.approx(truth / 4, rel=0.05)
    assert energy.steps == 15


def test_without_a_project_folder_the_checkpoint_alone_knows(tmp_path, gpu, monitor, caplog):
    begin = gpu.exact_energy_joules()
    saved_after(tmp_path, gpu, monitor, 10, project_dir=None, log_with=None)
    summary = resumed(tmp_path, gpu, monitor, steps=6, project_dir=None, log_with=None)
    assert summary.account.total.energy_joules == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.01)
    assert "there is no energy journal of this run here" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "checkpoint has no energy state: the totals exclude what was spent before it"),
        ("{", "zeus_energy.json in"),
        ("[[[[", "zeus_energy.json in"),
        ("3", "no energy state"),
        ('{"step": "ten"}', "no energy state"),
        ('{"step": 10}', "checkpoint with no energy state"),
        ('{"step": 10, "format": "zeus-core energy", "version": 1, "run": "r", "world_size": 1}', "is damaged"),
    ],
)
def test_a_checkpoint_that_does_not_tell_is_loaded_all_the_same(tmp_path, gpu, monitor, caplog, content, complaint):
    saved_after(tmp_path, gpu, monitor, 10)
    path = tmp_path / "checkpoint" / "zeus_energy.json"
    path.unlink() if content is None else path.write_text(content)
    begin = gpu.exact_energy_joules()
    summary = resumed(tmp_path, gpu, monitor, steps=6)
    assert complaint in caplog.text
    assert not any(record.exc_info for record in caplog.records)
    assert summary.steps == 6
    assert summary.account.total.energy_joules == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.01)


def test_a_checkpoint_can_be_loaded_without_us(tmp_path, gpu, monitor):
    saved_after(tmp_path, gpu, monitor, 4)
    loop = Loop(tmp_path, None)
    loop.accelerator.load_state(tmp_path / "checkpoint")


def test_what_is_loaded_is_the_same_with_us(tmp_path, gpu, monitor):
    saved_after(tmp_path, gpu, monitor, 4)
    losses = []
    for monitors in (False, True):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        loop = Loop(tmp_path, None)
        energy = ZeusAccelerate(loop.accelerator, monitor) if monitors else None
        loop.accelerator.load_state(tmp_path / "checkpoint")
        loop.train_and_log(5)
        losses.append(loop.losses)
        if energy is not None:
            energy.close()
    assert losses[0] == losses[1]


def train_until_killed(results, folder, kill_at):
    """One process of a run: it goes on where the latest one saved, saves at step 20, and dies after `kill_at`."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, power_limit_watts=350)
    loop = Loop(folder, gpu)
    with ZeusAccelerate(loop.accelerator, ZeusMonitor(gpus=[gpu], time_source=time_source)) as energy:
        if (folder / "checkpoint").exists():
            loop.accelerator.load_state(folder / "checkpoint")
            loop.step = energy.steps
        begin = gpu.exact_energy_joules()
        for step in loop.train(40 - loop.step):
            if step % 10 == 0:
                loop.accelerator.log({"loss": loop.losses[-1]}, step=step)
                results.put(gpu.exact_energy_joules() - begin)
            if step == 20:
                loop.accelerator.save_state(folder / "checkpoint")
            if step == kill_at:
                results.put("killed")
                os.kill(os.getpid(), signal.SIGKILL)
    results.put({"total": energy.summary.account.total.energy_joules, "truth": gpu.exact_energy_joules() - begin})
    results.put(energy.summary.account.redone.energy_joules)


def until_killed(results):
    spent = []
    while (value := results.get()) != "killed":
        spent.append(value)
    return spent


@pytest.mark.long
def test_after_two_kills_the_total_sums_all_parts_until_their_last_log(tmp_path):
    (first,) = run_processes([(train_until_killed, tmp_path, 35)], read=until_killed, exit_code=-signal.SIGKILL)
    (second,) = run_processes([(train_until_killed, tmp_path, 33)], read=until_killed, exit_code=-signal.SIGKILL)
    (third,) = run_processes(
        [(train_until_killed, tmp_path, None)],
        read=lambda results: [results.get() for _ in range(4)],
    )
    *_, end, redone = third
    assert end["total"] == pytest.approx(first[-1] + second[-1] + end["truth"], rel=0.01)
    at_twenty = first[1]
    assert redone == pytest.approx(first[-1] - at_twenty + second[-1], rel=0.01)
    journal = [json.loads(line) for line in (tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()]
    assert len({entry["part"] for entry in journal if entry["step"] >= 10}) == 3
