"""The result at the end of a loop written with accelerate."""

import pytest

from tests.support.result_boxes import ENERGY, LIMIT, QUICK, SEARCH_STEPS, boxes, labels
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.optimizer import Energy
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate


def train(loop, steps=SEARCH_STEPS):
    for _ in loop.train(steps):
        pass


def test_the_end_of_training_shows_it_once(loop, monitor, capsys):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        train(loop)
        loop.accelerator.end_training()
    energy.close()
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY


def test_a_search_within_is_in_the_same_box(loop, monitor, capsys):
    search = PowerLimitOptimizer(loop.accelerator, monitor, Energy(), **QUICK)
    with ZeusAccelerate(loop.accelerator, optimizer=search):
        train(loop)
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY + LIMIT


@pytest.mark.parametrize("is_search_first", [True, False])
def test_two_loops_on_one_accelerator_show_one_box(loop, monitor, capsys, is_search_first):
    def make_search():
        return PowerLimitOptimizer(loop.accelerator, monitor, Energy(), **QUICK)

    search = make_search() if is_search_first else None
    energy = ZeusAccelerate(loop.accelerator, monitor)
    search = search or make_search()
    train(loop)
    loop.accelerator.end_training()
    (box,) = boxes(capsys)
    assert labels(box) == ENERGY + LIMIT
    assert energy.summary.not_measured is None
    assert not [name for name in vars(loop.accelerator) if "zeus" in name]


def test_an_error_is_followed_by_how_far_the_search_came(loop, monitor, capsys):
    def interrupted_training():
        with PowerLimitOptimizer(loop.accelerator, monitor, Energy(), **QUICK):
            train(loop, 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_training()
    (box,) = boxes(capsys)
    assert "search unfinished: 1 of 3 settings measured" in box


def test_quiet_shows_nothing_and_neither_does_a_loop_without_steps(loop, monitor, capsys):
    with ZeusAccelerate(loop.accelerator, monitor):
        pass
    with PowerLimitOptimizer(loop.accelerator, monitor, **QUICK, quiet=True):
        train(loop, 2)
    with ZeusAccelerate(loop.accelerator, monitor, quiet=True):
        train(loop, 2)
    assert boxes(capsys) == []


def test_emissions_are_known_where_the_carbon_intensity_is_given(loop, monitor, capsys):
    with ZeusAccelerate(loop.accelerator, monitor, electricity=Electricity(ConstantSignal(380, "g/kWh"))) as energy:
        train(loop, 2)
    joules = energy.summary.values()["train_energy_j"]
    assert loop.logged()[-1]["train_co2_eq_g"] == pytest.approx(joules / 3.6e6 * 380)
    assert "at 380 g/kWh" in boxes(capsys)[0]
