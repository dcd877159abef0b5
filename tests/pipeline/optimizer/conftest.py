import pytest

from zeus_core.pipeline.planner.frontier import rounding


@pytest.fixture(autouse=True)
def _plans_are_polished_less(monkeypatch):
    """A twentieth of the visits: what becomes of a plan does not depend on its last 0.1 %."""
    monkeypatch.setattr(rounding, "_VISITS", rounding._VISITS // 20)
