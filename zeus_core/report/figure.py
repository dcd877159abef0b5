"""New figures of matplotlib, which is an extra: those of plans, allocations and regrets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.installed import install_command
from zeus_core.validate import checked_path


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
