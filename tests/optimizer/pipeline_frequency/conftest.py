import pytest

from zeus_core.pipeline import _compiled, _rounding


@pytest.fixture(autouse=True)
def _plans_are_polished_less(monkeypatch):
    """A twentieth of the visits, as without numba: what becomes of a plan does not depend on its last 0.1 %."""
    monkeypatch.setattr(_rounding, "_VISITS", _rounding._VISITS // _compiled._SLOWER_WITHOUT_NUMBA)
