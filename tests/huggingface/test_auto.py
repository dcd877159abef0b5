"""Energy in every Trainer of a process, without a line of code in its script."""

import os
import subprocess
import sys

import pytest
from transformers import Trainer

from tests.huggingface.trainers import losses_of, make_trainer
from zeus_core.environment import reached
from zeus_core.installed import FRAMEWORKS, registered_places
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback


@pytest.fixture
def auto(monkeypatch):
    from zeus_huggingface import auto

    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    auto.enable()
    yield auto
    auto.disable()


def train(folder, callbacks=(), kind=Trainer):
    trainer = make_trainer(folder, [*callbacks], kind, max_steps=4, logging_steps=2)
    trainer.train()
    return trainer


def energies_of(trainer):
    return [entry["total_energy_j"] for entry in trainer.state.log_history if "total_energy_j" in entry]


def test_a_script_that_knows_nothing_of_it_logs_energy(tmp_path, auto):
    class Derived(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.is_ready = True

    trainer = train(tmp_path / "with", kind=Derived)
    assert len(energies_of(trainer)) == 2
    assert trainer.is_ready
    auto.disable()
    without = train(tmp_path / "without", kind=Derived)
    assert energies_of(without) == []
    assert losses_of(trainer) == losses_of(without)


@pytest.mark.parametrize("is_added_late", [False, True])
def test_the_callback_of_the_script_itself_is_the_one_that_works(tmp_path, auto, monitor, caplog, is_added_late):
    callback = ZeusTrainerCallback(monitor)
    trainer = make_trainer(tmp_path, [] if is_added_late else [callback], max_steps=4)
    if is_added_late:
        trainer.add_callback(callback)
    trainer.train()
    assert [type(each) for each in trainer.callback_handler.callbacks].count(ZeusTrainerCallback) == 1
    assert callback.summary.steps == 4
    assert "does nothing here" not in caplog.text


def test_what_goes_wrong_is_logged_and_the_script_goes_on(tmp_path, auto, monkeypatch, caplog):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "nonsense:1")
    trainer = train(tmp_path)
    assert trainer.state.global_step == 4
    assert "nonsense" in caplog.text


def test_it_is_enabled_once_and_undone(auto):
    enabled = Trainer.__init__
    auto.enable()
    assert Trainer.__init__ is enabled
    auto.disable()
    assert Trainer.__init__ is enabled.__wrapped__


@pytest.mark.parametrize(("value", "slowdown"), [("10%", 1.1), ("", None), ("hostile", None)])
def test_a_variable_has_the_trainer_save(tmp_path, auto, monkeypatch, value, slowdown):
    monkeypatch.setenv("ZEUS_SAVE", value)
    trainer = make_trainer(tmp_path, [], Trainer, max_steps=2)
    (callback,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, ZeusTrainerCallback)]
    trainer.train()
    assert (callback.optimizer is not None) == (slowdown is not None)
    assert slowdown is None or "power limit" in callback.optimizer.result()


@pytest.mark.parametrize("by_script", [False, True])
def test_a_variable_has_the_callback_of_the_script_save_unless_the_script_searches(
    tmp_path, auto, monkeypatch, monitor, by_script
):
    monkeypatch.setenv("ZEUS_SAVE", "10%")
    own = ZeusTrainerCallback(monitor)
    search = [HFGlobalPowerLimitOptimizer(monitor)] if by_script else []
    train(tmp_path, [own, *search])
    assert (own.energy.optimizer is None) == by_script
    assert not by_script or "power limit" in search[0].optimizer.result()


@pytest.mark.parametrize("first", ["zeus_huggingface", "transformers"])
def test_the_order_of_a_scripts_imports_does_not_matter(first):
    program = f"import {first}; from transformers import Trainer; import zeus_huggingface.auto, zeus_huggingface"
    program += "; print(Trainer.__init__.__wrapped__ and zeus_huggingface.ZeusTrainerCallback.__name__)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=reached(os.environ, frameworks=registered_places(FRAMEWORKS)),
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "ZeusTrainerCallback\n"
    assert "are not measured" not in ended.stderr
