"""Several objects of one process that want the same GPU: one holds it, and the original is restored whoever held it.

Real processes and the driver in C. `tests/unprivileged.py` runs this with the daemon.
"""

import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
from tests.process.test_guardian import program_of
from tests.support.daemons import is_unprivileged
from tests.support.quick_searches import ENDS, begin, told, wait_until
from tests.support.variants import long_but_first

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the ledger needs Linux")

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS, counter_period_seconds=0.0)

STORIES = {
    "in turn, no end of training told": """
        kept = []
        for _ in range(2):
            kept.append(make())
            train(kept[-1])
    """,
    "in turn, steps alone told": """
        kept = []
        for _ in range(3):
            kept.append(make())
            walk(kept[-1], 8)
    """,
    "in turn, all told": """
        kept = []
        for _ in range(2):
            kept.append(make())
            train(kept[-1], ends=True)
    """,
    "made before, used in turn": """
        kept = [make(), make()]
        for optimizer in kept:
            train(optimizer)
    """,
    "ten in turn": """
        kept = []
        for _ in range(10):
            kept.append(make())
            train(kept[-1])
    """,
    "rebound in a notebook": """
        optimizer = make()
        train(optimizer)
        outputs = [optimizer.result]  # as a notebook keeps outputs, and so the object
        optimizer = make()
        train(optimizer)
        kept = [outputs[0].__self__, optimizer]
    """,
    "back to the first": """
        kept = [make(), make()]
        for optimizer in (*kept, kept[0]):
            train(optimizer)
    """,
}
IN_A_THREAD = "in a thread, SIGKILL"
KINDS = {"limits": "GlobalPowerLimitOptimizer", "clocks": "GlobalClockOptimizer"}


def is_as_before(device):
    return device.power_limit_watts == ORIGINAL_WATTS and device.locked_clock_mhz is None


def run(driver, story, end="", kind="GlobalPowerLimitOptimizer"):
    """Let a program go through a story and end. Returns what it told; everything is as before."""
    process = begin(driver, story, end, kind)
    found = told(process)
    _, errors = process.communicate(timeout=240)
    assert process.returncode in (0, 1, -signal.SIGTERM, -signal.SIGKILL), errors
    wait_until(lambda: all(is_as_before(driver[number]) for number in range(len(driver))))
    wait_until(lambda: not list(driver.ledger_path.glob("*.json")))
    return found


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("story", long_but_first(STORIES))
def test_a_second_one_searches_from_the_original_after_the_first_rests(make_driver, story, kind):
    found = run(make_driver(DEVICE), STORIES[story], kind=kind)
    first, *others = found["optimizers"]
    for other in others:
        assert other["original"] == first["original"]
        assert other["tried"] == first["tried"]
        assert other["chosen"] is not None
    assert not [line for line in found["lines"] if "somebody else" in line or "not permitted" in line]


# Each story is killed, and one ends in each way, with clocks too.
CELLS = [(story, "SIGKILL", "limits") for story in STORIES if story not in {"ten in turn", "made before, used in turn"}]
CELLS += [("made before, used in turn", end, kind) for end in (*ENDS, IN_A_THREAD) for kind in KINDS]


@pytest.mark.parametrize(("story", "end", "kind"), CELLS)
@pytest.mark.long
def test_the_original_is_restored_however_the_process_ends(make_driver, story, end, kind):
    lines = STORIES[story]
    if end == IN_A_THREAD:
        body = textwrap.indent(textwrap.dedent(lines), " " * 8)
        lines = f"""
            def story():
                global kept
{textwrap.indent(body, " " * 8)}
            thread = threading.Thread(target=story)
            thread.start()
            thread.join()
        """
    run(make_driver(DEVICE), lines, ENDS[end.removeprefix("in a thread, ")], KINDS[kind])


NESTED = """
    kept = [make(), make()]
    first, second = kept
    first.on_train_begin()
    first.on_epoch_begin()
    walk(first, 6)
    before = facts(first)
    train(second, ends=TOLD)
    walk(first, 6)
    assert facts(first)["in_force"] == before["in_force"] == before["chosen"], (facts(first), before)
    MORE
"""


@pytest.mark.parametrize("is_end_told", [True, False])
@pytest.mark.parametrize("end", long_but_first(["os.kill(os.getpid(), signal.SIGKILL)", ""]))
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_while_the_first_trains_the_second_observes_and_names_it(make_driver, end, is_end_told, kind):
    driver = make_driver(DEVICE)
    found = run(driver, NESTED.replace("TOLD", str(is_end_told)).replace("MORE", ""), end, kind)
    first, second = found["optimizers"]
    (line,) = [line for line in found["lines"] if "are not changed" in line]
    assert f"at {first['address']} of this process" in line
    assert type(first["chosen"]) is int
    (text,) = [text for name, text in second["result"].items() if name in ("power limit", "SM clock")]
    assert f"at {first['address']} of this process" in text
    assert "measured at the original" not in text
    assert second["in_force"] is None
    assert second["tried"] == [], "nobody knows at which setting"
    assert not [line for line in found["lines"] if "somebody else" in line or "not permitted" in line]


def test_the_second_has_the_gpu_once_the_nesting_first_has_ended(make_driver):
    more = "first.on_train_end(); train(second, ends=True)"
    found = run(make_driver(DEVICE), NESTED.replace("TOLD", "True").replace("MORE", more))
    first, second = found["optimizers"]
    assert second["tried"] == first["tried"]


def test_limits_and_clocks_are_two_settings_and_have_a_holder_each(make_driver):
    story = """
        kept = [make(), make(GlobalClockOptimizer)]
        for optimizer in kept:
            optimizer.on_epoch_begin()
        for _ in range(8):
            for optimizer in kept:
                walk(optimizer, 1)
    """
    found = run(make_driver(DEVICE), story, "os.kill(os.getpid(), signal.SIGKILL)")
    assert all(optimizer["chosen"] for optimizer in found["optimizers"])


def test_a_gpu_used_by_two_knobs_is_held_by_the_first(make_driver):
    story = """
        kept = [make(gpus=gpus), make(gpus=gpus[1:]), make(gpus=gpus[:1])]
        first, second, third = kept
        first.on_epoch_begin()
        walk(first, 8)
        walk(second, 8)
        first.on_epoch_end()
        walk(third, 8)
    """
    driver = make_driver(DEVICE, DEVICE)
    found = run(driver, story, "os.kill(os.getpid(), signal.SIGKILL)")
    first, second, third = found["optimizers"]
    assert second["tried"] == []
    assert third["original"] == first["original"] == ORIGINAL_WATTS


def test_a_superseded_first_one_reports_that_it_continues(make_driver):
    story = """
        kept = [make(), make()]
        first, second = kept
        train(first)
        second.on_train_begin()
        walk(second, 8)
        assert facts(first)["in_force"] is None
        train(first, steps=8)
        until = time.monotonic() + 1.5  # its watch looks once a second
        while time.monotonic() < until:
            walk(first, 1)
        first.on_train_end()
    """
    found = run(make_driver(DEVICE), story)
    second = found["optimizers"][1]
    assert second["in_force"] == second["chosen"]
    said = [line for line in found["lines"] if f"at {second['address']} of this process" in line]
    assert len([line for line in said if "training continues" in line]) == 1, said
    assert len(said) <= 2, said  # its watch says it too, if it looks while no block is under way
    assert not [line for line in found["lines"] if "somebody else" in line]


@pytest.mark.long
def test_a_forked_child_leaves_what_its_parent_holds_alone(make_driver):
    story = """
        kept = [make()]
        first = kept[0]
        first.on_train_begin()
        walk(first, 8)
        child = os.fork()
        if child == 0:
            second = make()
            train(second, ends=True)
            os._exit(0 if second.trials == [] and first._search.chosen else 3)
        assert os.waitpid(child, 0)[1] == 0
        walk(first, 4)
        assert gpus[0].read_power_limit_watts() == first._search.chosen
    """
    run(make_driver(DEVICE), story, "os.kill(os.getpid(), signal.SIGKILL)")


def test_steps_after_another_object_took_the_gpu_are_none_at_the_choice(make_driver):
    story = """
        kept = [make(), make()]
        first, second = kept
        walk(first, 10)
        before = first._search.chosen_steps
        walk(second, 10)
        second.on_train_end()
        walk(first, 50)
        assert first._search.chosen_steps == before, (first._search.chosen_steps, before)
        assert first.phase.name == "OFF"
    """
    found = run(make_driver(DEVICE), story)
    first, second = found["optimizers"]
    assert f"at {second['address']} of this process has taken the GPU over" in first["result"]["power limit"]
    assert "the original" in first["result"]["power limit"]


def test_a_change_that_was_interrupted_before_it_began_holds_nothing(gpu, monkeypatch):
    from zeus_core.settings.limit_knob import PowerLimitKnob

    def interrupted():
        raise KeyboardInterrupt

    first = PowerLimitKnob([gpu], 25)
    monkeypatch.setattr(first._leases[0], "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.apply(300)
    assert first.restore()
    second = PowerLimitKnob([gpu], 25)
    second.apply(250)
    assert second.restore()


def test_two_simulated_gpus_of_one_process_are_held_as_well(gpu, monitor):
    """No ledger knows them: the holder in this process does."""
    from zeus_core.settings.limit_knob import PowerLimitKnob

    first, second = PowerLimitKnob([gpu], 25), PowerLimitKnob([gpu], 25)
    first.apply(300)
    assert PowerLimitKnob([gpu], 25).settings[0] == 350
    with pytest.raises(Exception, match=f"the PowerLimitKnob at {id(first):#x} of this process controls the GPU"):
        second.apply(250)
    assert second.restore()
    assert gpu.read_power_limit_watts() == 300
    assert first.restore()
    second = PowerLimitKnob([gpu], 25)
    second.apply(250)
    assert gpu.read_power_limit_watts() == 250
    assert second.restore()
    assert gpu.read_power_limit_watts() == 350


LIGHTNING = """
    import lightning.pytorch as pl
    import torch
    from zeus_lightning import ZeusCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.while_training = lambda step: None

        def training_step(self, batch, batch_idx):
            self.while_training(batch_idx)
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(module, optimizer):
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=os.environ["TMPDIR"],
            callbacks=[ZeusCallback(optimizer=optimizer)],
        )
        trainer.fit(module, torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=1))

    kept = [make(), make(), make()]
    by_lightning, nested, by_hand = kept
    module = Module()
    FIT
    train(by_hand)
"""
LIGHTNING_FITS = {
    "to its end": "fit(module, by_lightning); walk(nested, 8)",
    "left by an exception": """
        def fail(step):
            if step == 8:
                raise ValueError
        module.while_training = fail
        try:
            fit(module, by_lightning)
        except ValueError:
            pass
        walk(nested, 8)
    """,
    "with another by hand in a step": """
        module.while_training = lambda step: train(nested, ends=True) if step == 8 else None
        fit(module, by_lightning)
    """,
}


@pytest.mark.long
@pytest.mark.parametrize("fit", LIGHTNING_FITS)
@pytest.mark.parametrize("end", ["normal end", "SIGKILL"])
def test_one_through_lightning_and_others_by_hand(make_driver, tmp_path, monkeypatch, fit, end):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lines = textwrap.dedent(LIGHTNING_FITS[fit])
    story = textwrap.dedent(LIGHTNING).replace("FIT", lines.strip())
    found = run(make_driver(DEVICE), story, ENDS[end])
    by_lightning, nested, by_hand = found["optimizers"]
    assert by_hand["original"] == by_lightning["original"] == ORIGINAL_WATTS
    assert by_hand["chosen"] is not None
    if "in a step" in fit:
        assert nested["tried"] == []
        assert f"at {by_lightning['address']} of this process" in nested["result"]["power limit"]
    else:
        assert nested["tried"] == by_hand["tried"]


def guardians_of(process):
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [number for number in numbers if f", {process.pid}, " in program_of(number)]


@pytest.mark.skipif(is_unprivileged(), reason="the daemon is killed first in test_guardian.py")
@pytest.mark.parametrize("story", ["in turn, no end of training told", "made before, used in turn"])
def test_where_the_guardian_was_killed_first_the_next_start_restores(make_driver, story):
    driver = make_driver(DEVICE)
    process = begin(driver, STORIES[story], "input(); os.kill(os.getpid(), 9)")
    told(process)
    wait_until(lambda: guardians_of(process))  # on a busy machine it has not opened the driver yet
    for guardian in guardians_of(process):  # that of the first one may have ended by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(guardian, signal.SIGKILL)
    process.communicate("\n", timeout=240)
    assert not is_as_before(driver[0]), "both were killed"
    driver.run(
        "from zeus_core.device import discover_gpus; from zeus_core.settings.limit_knob import PowerLimitKnob\n"
        "PowerLimitKnob(discover_gpus({}), 25)"
    )
    assert is_as_before(driver[0])
    assert not list(driver.ledger_path.glob("*.json"))
