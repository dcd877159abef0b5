"""New figures of matplotlib, which is an extra."""

from __future__ import annotations

from typing import Any

from zeus_core.errors import UsageError

__all__ = ["new_figure"]


def new_figure(width_inches: float, height_inches: float) -> Any:
    """Return an empty figure that needs no display.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'zeus-core[plot]'") from error
    return Figure(figsize=(width_inches, height_inches), layout="constrained")
