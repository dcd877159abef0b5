"""What notebooks show: the cells of the example, run one after another, and escaped tables."""

import ast
import html
import json
from pathlib import Path

import pytest

from zeus_core.events import TrainingHooks
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, RankShare
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.schedules import one_f_one_b
from zeus_core.units import rows_html

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook" / "energy.ipynb"


def shown(source, names):
    """Run a cell; the table of its last expression, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else None


def test_the_example_runs_and_shows_tables(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names = {}
    tables = [shown("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    monitor, window, training, comparison, *rest = tables
    assert "<td>A100-SXM4-80GB" in monitor
    assert "<th>GPU 0</th>" in window
    assert "<th>saving</th>" in training
    assert "<th>saving</th>" in comparison
    assert rest == [None, None]
    assert Path("time-energy.png").stat().st_size > 5_000
    assert names["energy"].summary._repr_html_().startswith("<table><tr><th>energy</th>")


def test_what_stands_in_a_table_is_escaped():
    text = "<script>alert('a & b')</script>"
    assert rows_html({text: text}).count(html.escape(text)) == 2


def test_a_training_without_a_result_is_shown_as_usual():
    assert TrainingHooks()._repr_html_() is None


def test_plans_are_tables():
    plan = Plan("frontier", one_f_one_b(2, 2), ((None,) * 4,) * 2, 1.0, 2.0, 3, 0.0, 4.0, "")
    assert "<th>iteration</th><td>1 s, 2 J</td>" in plan._repr_html_()
    allocation = AllocationPlan("even", (RankShare("A40", 64, 250, 0.1, 22.0),) * 20, 0.1, 440.0)
    assert "<th>rank 0</th><td>64 samples on A40 at 250 W</td>" in allocation._repr_html_()
    assert "4 more ranks" in allocation._repr_html_()
