"""Figures of matplotlib, which is an extra, and the one of a search for a power limit."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zeus_core.adapters import install_command
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.search import Trial
from zeus_core.search.comparison import energy_error_fraction
from zeus_core.validate import checked_number, checked_path


def new_figure(width_inches: float, height_inches: float) -> Any:
    """Return an empty figure that needs no display.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"drawing needs matplotlib: {install_command('plot')}") from error
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def write_figure(figure: Any, path: str | Path) -> None:
    """Write a figure to a file, which is replaced as a whole.

    Raises:
        UsageError: The suffix of the file is no format of pictures.
        OSError: The file cannot be written.
    """
    file = Path(checked_path("path", path, "frontier.svg"))
    formats = figure.canvas.get_supported_filetypes()
    if file.suffix[1:] not in formats:
        raise UsageError(f"path is {str(file)!r}; its suffix must be one of {', '.join(formats)}")
    image = io.BytesIO()
    figure.savefig(image, format=file.suffix[1:])
    write_atomically(file, image.getvalue())


def draw_time_energy(
    trials: Sequence[Trial],
    chosen_limit_watts: int | None,
    title: str,
    path: str | Path,
    bound_factor: float | None = None,
) -> None:
    """Draw time and energy per step at each limit, with the intervals that hold the energies.

    Args:
        trials: The points, one for each limit.
        chosen_limit_watts: The point to mark.
        title: Heading of the picture.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.
        bound_factor: The allowed multiple of the time at the highest limit, for a line; None for no line.

    Raises:
        UsageError: An argument is wrong, matplotlib is not installed, or the suffix is no format.
        OSError: The file cannot be written.
    """
    figure = new_figure(7, 5)
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    trials = sorted(trials, key=lambda trial: -trial.setting)
    joules = [trial.joules_per_step for trial in trials]
    # More than half of the energy is not known of a trial that is too short: such a bar would hide the others.
    errors = [0.5 if (error := energy_error_fraction(trial)) > 0.5 else error for trial in trials]
    axes = figure.add_subplot()
    axes.errorbar(
        [trial.seconds_per_step for trial in trials],
        joules,
        yerr=[energy * error for energy, error in zip(joules, errors, strict=True)],
        fmt="o-",
        color="#4477aa",
        ecolor="#bbbbbb",
        capsize=3,
        label="measured, with its interval",
    )
    if bound_factor is not None and trials:
        factor = checked_number("bound_factor", bound_factor, 1.0, math.inf, "a number, at least 1, such as 1.02")
        allowed = factor * trials[0].seconds_per_step
        axes.axvline(allowed, color="#228833", linestyle="--", label=f"allowed: {bound_factor:g} times the time")
    for trial in trials:
        point = trial.seconds_per_step, trial.joules_per_step
        axes.annotate(f"{trial.setting} W", point, (7, 6), textcoords="offset points", fontsize=8)
        if trial.setting == chosen_limit_watts:
            axes.plot(*point, "o", markersize=14, fillstyle="none", color="#cc3311", label="chosen")
    axes.margins(x=0.15)  # room for the labels
    axes.legend()
    axes.set_xscale("log")  # the lowest limits take several times as long
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set(xlabel="time per step (s)", ylabel="energy per step (J)", title=title)
    axes.grid(alpha=0.3)
    write_figure(figure, path)
