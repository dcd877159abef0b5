"""The end of a Trainer's training: the result that people see, and the model card."""

import contextlib
import re

import pytest
from huggingface_hub import ModelCard
from optuna.trial import FixedTrial
from transformers import Trainer, TrainerCallback

from tests.huggingface.trainers import BACKWARD, FORWARD, RaiseAt, make_trainer
from tests.support.result_boxes import ENERGY, LIMIT, QUICK, SEARCH_STEPS, boxes, labels, rows
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.errors import UsageError
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback


def trained(folder, gpu, callbacks, **arguments):
    trainer = make_trainer(folder, callbacks, **{"max_steps": SEARCH_STEPS, **arguments})
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    return trainer


def test_the_callback_shows_where_the_energy_went(tmp_path, monitor, gpu, capsys):
    trained(tmp_path, gpu, [ZeusTrainerCallback(monitor)])
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY


def test_the_search_alone_shows_what_it_chose(tmp_path, monitor, gpu, capsys):
    trained(tmp_path, gpu, [HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)])
    (box,) = boxes(capsys)
    assert labels(box) == LIMIT


@pytest.mark.parametrize("order", [1, -1])
def test_two_callbacks_show_one_box(tmp_path, monitor, gpu, capsys, order):
    callbacks = [ZeusTrainerCallback(monitor), HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)]
    trained(tmp_path, gpu, callbacks[::order])
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY + LIMIT


@pytest.mark.parametrize("kind", [GlobalPowerLimitOptimizer, HFGlobalPowerLimitOptimizer])
def test_a_search_within_the_callback_is_in_its_box(tmp_path, monitor, gpu, capsys, kind):
    optimizer = kind(monitor, Energy(), **QUICK)
    callbacks = [ZeusTrainerCallback(optimizer=optimizer), *([] if kind is GlobalPowerLimitOptimizer else [optimizer])]
    trained(tmp_path, gpu, callbacks)
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY + LIMIT


def test_a_search_that_did_not_finish_says_how_far_it_came(tmp_path, monitor, gpu, capsys):
    trained(tmp_path, gpu, [HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)], max_steps=3)
    (box,) = boxes(capsys)
    assert "search unfinished: 1 of 3 settings measured" in box


def test_training_that_is_interrupted_shows_it_too(tmp_path, monitor, gpu, capsys):
    optimizer = HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, gpu, [ZeusTrainerCallback(monitor), optimizer, RaiseAt(3, KeyboardInterrupt())])
    (box,) = boxes(capsys)
    assert "search unfinished" in box


def test_quiet_shows_nothing(tmp_path, monitor, gpu, capsys):
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK, quiet=True)
    trained(tmp_path, gpu, [ZeusTrainerCallback(monitor, quiet=True), search])
    assert boxes(capsys) == []


def test_an_evaluation_alone_shows_nothing(tmp_path, monitor, gpu, capsys):
    make_trainer(tmp_path, [ZeusTrainerCallback(monitor)]).evaluate()
    assert boxes(capsys) == []


def test_each_training_of_one_callback_shows_its_own(tmp_path, monitor, gpu, capsys):
    trainer = trained(tmp_path, gpu, [ZeusTrainerCallback(monitor)])
    trainer.train()
    assert len(boxes(capsys)) == 2


def searched(folder, gpu, callbacks, **arguments):
    """A trainer that has searched for the best of three learning rates, by real trainings of one model."""
    settings = {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 5, **arguments}
    trainer = make_trainer(folder, callbacks, **settings)
    model = trainer.model
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    trainer.model_init = lambda: model
    with contextlib.suppress(KeyboardInterrupt):
        trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.001, 0.03)}, n_trials=3
        )
    return trainer


@pytest.mark.long
def test_a_search_for_hyperparameters_shows_one_box_for_all_trainings(tmp_path, monitor, gpu, capsys):
    before = gpu.exact_energy_joules()
    trainer = searched(tmp_path, gpu, [ZeusTrainerCallback(monitor)])
    (box,) = boxes(capsys)
    assert labels(box) == ["trainings", *ENERGY]
    assert rows(box)["trainings"] == "3"
    kilojoules = float(re.match(r"([\d.]+) ±[\d.]+ kJ", rows(box)["energy"])[1])
    assert kilojoules == pytest.approx((gpu.exact_energy_joules() - before) / 1000, rel=0.02)
    trainer.train()
    assert labels(boxes(capsys)[0]) == ENERGY, "of a training alone, afterwards"


@pytest.mark.long
def test_a_power_limit_chosen_meanwhile_is_in_that_box(tmp_path, monitor, gpu, capsys):
    callbacks = [ZeusTrainerCallback(monitor), HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)]
    searched(tmp_path, gpu, callbacks, max_steps=SEARCH_STEPS)
    (box,) = boxes(capsys)
    assert labels(box) == ["trainings", *ENERGY, *LIMIT]


def test_a_search_for_hyperparameters_that_is_interrupted_shows_what_there_is(tmp_path, monitor, gpu, capsys):
    interrupt = RaiseAt(3, KeyboardInterrupt())
    trainer = searched(tmp_path, gpu, [ZeusTrainerCallback(monitor), interrupt])
    assert rows(boxes(capsys)[0])["trainings"] == "1"
    trainer.remove_callback(interrupt)
    trainer.train()
    assert labels(boxes(capsys)[0]) == ENERGY


@pytest.mark.long
def test_a_search_for_hyperparameters_may_be_quiet(tmp_path, monitor, gpu, capsys):
    searched(tmp_path, gpu, [ZeusTrainerCallback(monitor, quiet=True)])
    assert boxes(capsys) == []


def test_a_training_of_a_search_in_another_process_shows_nothing(tmp_path, monitor, gpu, capsys):
    make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], max_steps=2).train(trial=FixedTrial({}))
    assert boxes(capsys) == []


class TrainsAnother(TrainerCallback):
    """Trains another trainer, with the same callback of ours, in the middle of a training."""

    def __init__(self, folder, ours):
        self.folder, self.ours = folder, ours

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2:
            make_trainer(self.folder, [self.ours], max_steps=1).train()


def test_a_training_within_a_training_is_part_of_it(tmp_path, monitor, gpu, capsys):
    callback = ZeusTrainerCallback(monitor)
    trained(tmp_path, gpu, [callback, TrainsAnother(tmp_path / "inner", callback)])
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY


class OwnTrain(Trainer):
    """A trainer with a `train` of its own, as some of TRL's have had."""

    def train(self):
        self.callback_handler.on_train_begin(self.args, self.state, self.control)
        for _ in range(3):
            self.callback_handler.on_step_begin(self.args, self.state, self.control)
            self.callback_handler.on_step_end(self.args, self.state, self.control)
        self.callback_handler.on_train_end(self.args, self.state, self.control)


def test_a_trainer_with_its_own_train_shows_it_as_well(tmp_path, monitor, capsys):
    make_trainer(tmp_path, [HFGlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)], kind=OwnTrain).train()
    assert len(boxes(capsys)) == 1


# The model card.


def test_the_model_card_has_the_energy_of_training_without_evaluation(tmp_path, monitor, gpu):
    callback = ZeusTrainerCallback(monitor)
    trainer = trained(tmp_path, gpu, [callback], eval_strategy="steps", eval_steps=4)
    history = [dict(entry) for entry in trainer.state.log_history]
    assert any("eval_energy_j" in entry for entry in history)
    trainer.create_model_card()
    card = ModelCard.load(tmp_path / "README.md")
    assert "Energy J" not in card.text
    joules = callback.summary.values()["train_energy_j"]
    assert f"| energy in kWh | {joules / 3.6e6:.3g} |" in card.text
    shown = re.search(r"\| energy \| ([\d.]+) ±[\d.]+ kJ \(", card.text)
    assert float(shown[1]) == pytest.approx(joules / 1000, rel=1e-3)
    assert "| measured on | A100-SXM4-80GB (simulated) |" in card.text
    assert card.data.get("co2_eq_emissions") is None, "no carbon intensity was given"
    assert trainer.state.log_history == history


def test_emissions_are_in_the_metadata_where_the_carbon_intensity_is_given(tmp_path, monitor, gpu, capsys):
    germany = ConstantSignal(380, "g/kWh", source="Germany, mean of 2024")
    callback = ZeusTrainerCallback(monitor, electricity=Electricity(germany, pue=1.2, location="Frankfurt, Germany"))
    trainer = trained(tmp_path, gpu, [callback])
    for _ in range(2):
        trainer.create_model_card(tags="mine")
    card = ModelCard.load(tmp_path / "README.md")
    grams = callback.summary.values()["train_energy_j"] / 3.6e6 * 380 * 1.2
    assert callback.summary.values()["train_co2_eq_g"] == pytest.approx(grams)
    assert card.data.co2_eq_emissions == {
        "emissions": pytest.approx(grams),
        "source": "measured by zeus-core: energy of GPUs, PUE 1.2, at 380 g/kWh (Germany, mean of 2024; average)",
        "geographical_location": "Frankfurt, Germany",
        "hardware_used": "A100-SXM4-80GB (simulated)",
    }
    assert "mine" in card.data.tags
    assert card.text.count("## Energy of the training") == 1
    assert rows(boxes(capsys)[0])["CO2"].endswith(" g of GPUs, PUE 1.2, at 380 g/kWh (Germany, mean of 2024; average)")


def test_a_model_made_from_another_one_was_fine_tuned(tmp_path, monitor, gpu):
    callback = ZeusTrainerCallback(monitor, electricity=Electricity(ConstantSignal(380, "g/kWh")))
    trained(tmp_path, gpu, [callback], max_steps=2).create_model_card(finetuned_from="openai-community/gpt2")
    emissions = ModelCard.load(tmp_path / "README.md").data.co2_eq_emissions
    assert emissions["training_type"] == "fine-tuning"
    assert "geographical_location" not in emissions


def test_a_price_alone_makes_no_emissions(tmp_path, monitor, gpu):
    callback = ZeusTrainerCallback(monitor, electricity=Electricity(price=ConstantSignal(0.3, "EUR/kWh")))
    trainer = trained(tmp_path, gpu, [callback], max_steps=4, logging_steps=2)
    trainer.create_model_card()
    assert ModelCard.load(tmp_path / "README.md").data.get("co2_eq_emissions") is None
    values = callback.summary.values()
    assert values["train_cost"] == pytest.approx(values["train_energy_j"] / 3.6e6 * 0.3)
    costs = [entry["cost"] for entry in trainer.state.log_history if "loss" in entry]
    assert 0 < costs[0] < costs[1] <= values["train_cost"]
    assert callback.summary.co2_grams is None


@pytest.mark.parametrize("electricity", [380.0, "green", ConstantSignal(380, "g/kWh")])
def test_what_is_no_electricity_is_refused(monitor, electricity):
    with pytest.raises(UsageError, match=r"electricity is .*; it must be an? Electricity, such as"):
        ZeusTrainerCallback(monitor, electricity=electricity)


def test_a_card_of_a_trainer_that_has_not_trained_is_left_alone(tmp_path, monitor):
    trainer = make_trainer(tmp_path, [ZeusTrainerCallback(monitor)])
    trainer.create_model_card()
    assert "Energy" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_card_that_cannot_be_read_is_a_message(tmp_path, monitor, gpu, caplog):
    class Unreadable(Trainer):
        def create_model_card(self):
            (tmp_path / "README.md").write_bytes(b"\xff\xfe---")

    trainer = make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], kind=Unreadable, max_steps=2)
    trainer.train()
    trainer.create_model_card()
    assert "add_to_model_card failed; training continues" in caplog.text


def test_a_card_written_by_a_derived_class_has_the_energy_too(tmp_path, monitor):
    """As TRL's trainers have one."""

    class WithOwnCard(Trainer):
        def create_model_card(self):
            (tmp_path / "README.md").write_text("---\ntags: [mine]\n---\n\n# Mine\n", encoding="utf-8")

    trainer = make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], kind=WithOwnCard, max_steps=2)
    trainer.train()
    trainer.create_model_card()
    assert "## Energy of the training" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_card_that_the_model_writes_as_it_is_saved_has_it(tmp_path, monitor):
    """As the models of sentence-transformers do, in any folder."""
    trainer = make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], max_steps=2)

    class WithOwnCard(type(trainer.model)):
        def save_pretrained(self, path):
            self._create_model_card(path)

        def _create_model_card(self, path, model_name=None):
            path.mkdir(exist_ok=True)
            (path / "README.md").write_text("---\ntags: [mine]\n---\n\n# Mine\n", encoding="utf-8")
            return "theirs"

    trainer.model.__class__ = WithOwnCard
    trainer.model.save_pretrained(tmp_path / "before")
    trainer.train()
    assert trainer.model._create_model_card(tmp_path / "after") == "theirs"
    trainer.model.save_pretrained(tmp_path / "after")
    other = make_trainer(tmp_path, []).model
    other.__class__ = WithOwnCard
    other.save_pretrained(tmp_path / "other")
    texts = [(tmp_path / name / "README.md").read_text() for name in ("before", "after", "other")]
    assert [text.count("## Energy of the training") for text in texts] == [0, 1, 0]


def test_the_metrics_print_as_more_than_zero(tmp_path, monitor, gpu, capsys):
    """`log_metrics` prints four decimals: kilowatt-hours of a small run were 0.0."""
    trainer = make_trainer(
        tmp_path, [ZeusTrainerCallback(monitor, electricity=Electricity(ConstantSignal(380, "g/kWh")))], max_steps=2
    )
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    metrics = trainer.train().metrics
    trainer.log_metrics("train", metrics)
    printed = re.findall(r"^ +(train_(?:energy|co2)\w+) += +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert {name for name, value in printed if float(value) == 0} <= {
        "train_energy_idle_j",
        "train_co2_eq_stale_fraction",
    }
    assert "train_energy_wh" in dict(printed)
