"""The search that a person asks for by a word: an option of `zeus-core run`, a variable, or `optimizer="auto"`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial

from zeus_core.environment import SAVE, is_off, observes
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.optimizers import GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.search_options import Mode
from zeus_core.ports.site_defaults import site_words, with_site_defaults
from zeus_core.search.objectives import EnergyWithin
from zeus_core.validate import checked_slowdown, shown

_USUAL = "10%"

_logger = logging.getLogger(__name__)


class _AskedOptimizer(GlobalPowerLimitOptimizer):
    """Finds the best power limit; where boards have none to set, such as those of laptops, the best SM clock."""

    _substitute = "clock"


def asked_slowdown(environment: Mapping[str, str]) -> float | None:
    """Return the factor of time within which variables ask to save energy; None if they do not.

    Raises:
        UsageError: It is no percentage.
    """
    text = environment.get(SAVE) or (_USUAL if observes(environment) else "")
    return None if not text or is_off(environment) else checked_slowdown(SAVE, text)


def automatic_optimizer(text: str) -> Callable[[ZeusMonitor], GlobalPowerLimitOptimizer]:
    """Return what makes the search that an adapter's `optimizer="auto"` asks for, or `optimizer="5%"` for a slowdown.

    Raises:
        UsageError: It is neither "auto" nor a percentage.
    """
    factor = checked_slowdown("optimizer", _USUAL if text == "auto" else text)
    return partial(_AskedOptimizer, optimum_selector=EnergyWithin(factor), quiet=True)


def asked_optimizer(
    monitor: ZeusMonitor, environment: Mapping[str, str] | None = None
) -> GlobalPowerLimitOptimizer | None:
    """Return the search for the least energy within a slowdown that variables ask for; None without one.

    A wrong value is logged, and asks for nothing: the program has not set it.

    Args:
        monitor: Measures the GPUs.
        environment: The variables; those of this process, with the defaults of the site, if None.
    """
    if environment is None:
        environment = with_site_defaults(os.environ)
        if environment.get(SAVE) != os.environ.get(SAVE) and os.environ.get("RANK", "0") == "0":
            if text := os.environ.get(SAVE):
                _logger.warning("ignored: %s is %s; it must be a slowdown such as %s", SAVE, shown(text), _USUAL)
            _logger.warning("%s", site_words(os.environ))
    try:
        factor = asked_slowdown(environment)
    except UsageError as error:
        _logger.error("nothing is saved: %s", error)
        return None
    if factor is None:
        return None
    mode: Mode = "observe" if observes(environment) else "search"
    return _AskedOptimizer(monitor, EnergyWithin(factor), mode=mode, quiet=True)
