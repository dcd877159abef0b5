"""The result at the end of a `fit`."""

import lightning.pytorch
import pytest

from tests.lightning.trainers import loader, make_trainer, module_class
from tests.support.result_boxes import ENERGY, LIMIT, QUICK, SEARCH_STEPS, boxes, labels
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.errors import UsageError
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_lightning import ZeusCallback

Module = module_class(lightning.pytorch)


def search(monitor):
    return GlobalPowerLimitOptimizer(monitor, Energy(), **QUICK)


def fit(folder, gpu, callback, steps=SEARCH_STEPS, **arguments):
    trainer = make_trainer(folder, callback, max_steps=steps, **arguments)
    trainer.fit(Module(gpu), loader(10), loader(1))
    return trainer


def test_a_fit_shows_one_box_and_other_runs_of_the_trainer_none(tmp_path, monitor, gpu, capsys):
    trainer = fit(tmp_path, gpu, ZeusCallback(monitor))
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY
    trainer.validate(Module(gpu), loader(2))
    trainer.test(Module(gpu), loader(2))
    assert boxes(capsys) == []


@pytest.mark.parametrize("makes", [True, False])
def test_a_search_is_in_the_same_box(tmp_path, monitor, gpu, capsys, makes):
    fit(tmp_path, gpu, ZeusCallback(monitor, search if makes else search(monitor)))
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY + LIMIT


def test_it_comes_after_the_progress_bar_has_ended(tmp_path, monitor, gpu, capsys):
    fit(tmp_path, gpu, ZeusCallback(monitor), enable_progress_bar=True)
    out, err = capsys.readouterr()
    assert "Epoch" in out + err
    assert err.rstrip().endswith("-+")


def test_an_error_is_followed_by_how_far_the_search_came(tmp_path, monitor, gpu, capsys):
    class Failing(Module):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 3:
                raise RuntimeError("broken")

    trainer = make_trainer(tmp_path, ZeusCallback(monitor, search), max_steps=8)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Failing(gpu), loader(10))
    (box,) = boxes(capsys)
    assert "search unfinished: 1 of 3 settings measured" in box


def test_quiet_shows_nothing(tmp_path, monitor, gpu, capsys):
    fit(tmp_path, gpu, ZeusCallback(monitor, search, quiet=True))
    assert boxes(capsys) == []


def test_emissions_are_known_where_the_carbon_intensity_is_given(tmp_path, monitor, gpu, capsys):
    fit(tmp_path, gpu, ZeusCallback(monitor, electricity=Electricity(ConstantSignal(380, "g/kWh"))))
    assert "at 380 g/kWh" in boxes(capsys)[0]
    with pytest.raises(UsageError, match="electricity is 'green'"):
        ZeusCallback(monitor, electricity="green")
