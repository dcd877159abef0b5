from importlib import import_module

import pytest

from zeus_core.pipeline.planner.frontier import rounding

WAITING = (
    *("process.deadline", "adapters.contained", "monitor._instruments", "pipeline.optimizer._baseline"),
    *("settings.restoration", "settings.knob", "settings.clock_knob"),
)


@pytest.fixture(autouse=True)
def _plans_are_polished_less(monkeypatch):
    """A twentieth of the visits: what becomes of a plan does not depend on its last 0.1 %."""
    monkeypatch.setattr(rounding, "_VISITS", rounding._VISITS // 20)


@pytest.fixture(autouse=True)
def _hooks_are_patient(monkeypatch):
    """On a busy machine a thread can wait for a core for longer than the second that hooks have for a driver."""
    for module in (import_module(f"zeus_core.{name}") for name in WAITING):
        for name in ("HOOK_SECONDS", "CALL_SECONDS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 30.0 * getattr(module, name))
