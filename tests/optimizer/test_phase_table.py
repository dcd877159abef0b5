"""Tables of phases: they are complete, and the documentation shows them."""

from enum import Enum

import pytest

from tests.support.pages import ROOT
from tests.support.reachable_phases import reachable
from zeus_core.events import StepBegin
from zeus_core.optimizer import __main__ as search
from zeus_core.optimizer.phase_table import PhaseTable
from zeus_core.pipeline import __main__ as pipeline


class Light(Enum):
    RED = "red"
    GREEN = "green"
    OUT = "out of order"
    BLUE = "blue"


class Happening(Enum):
    TIMER = "timer"
    SENSOR = "sensor"
    FAULT = "fault"
    REPAIR = "repair"


TABLE = PhaseTable(
    first=Light.RED,
    last=Light.OUT,
    transitions={
        (Light.RED, Happening.TIMER): Light.GREEN,
        (Light.RED, Happening.SENSOR): Light.GREEN,
        (Light.GREEN, Happening.TIMER): Light.RED,
        (Light.OUT, Happening.REPAIR): Light.RED,
    },
    from_every_phase={Happening.FAULT: Light.OUT},
)


def test_the_next_phase_is_that_of_the_table():
    assert TABLE.next(Light.RED, Happening.SENSOR) is Light.GREEN
    assert TABLE.next(Light.GREEN, Happening.SENSOR) is Light.GREEN
    assert TABLE.next(Light.GREEN, Happening.FAULT) is Light.OUT


def test_the_last_phase_is_never_left():
    assert TABLE.next(Light.OUT, Happening.REPAIR) is Light.OUT


def test_a_phase_that_nothing_leads_to_is_missing_among_the_reachable():
    assert reachable(TABLE) == set(Light) - {Light.BLUE}


def test_the_diagram_has_an_arrow_for_each_pair_of_phases():
    assert "red --> green : timer, sensor" in TABLE.diagram()
    assert "any_phase --> out_of_order : fault" in TABLE.diagram()


def test_a_row_may_be_of_a_class_of_events():
    table = PhaseTable(first=Light.RED, last=None, transitions={(Light.RED, StepBegin): Light.GREEN})
    assert table.next(Light.RED, type(StepBegin())) is Light.GREEN
    assert "red --> green : step begin" in table.diagram()


@pytest.mark.parametrize(("page", "diagrams"), [*search.DIAGRAMS.items(), *pipeline.DIAGRAMS.items()])
def test_the_page_shows_the_diagram_of_the_table(page, diagrams):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for diagram in diagrams:
        assert f"```mermaid\n{diagram}```\n" in text, (
            "copy it from `python -m zeus_core.optimizer` or `zeus_core.pipeline`"
        )
