"""The port between whoever turns a knob and whoever decides which setting to try next."""

from typing import Protocol

from zeus_core.search._trial import Trial

__all__ = ["Search"]


class Search(Protocol):
    """Decides which settings are tried. Pure: it knows no device, clock or framework."""

    def ask(self) -> int | None:
        """The setting to try next; None once enough is known. Asking again without telling gives the same answer."""
        ...

    def tell(self, trial: Trial) -> None:
        """Learn the outcome of a trial, asked for or not (such as one measured in an earlier run)."""
        ...
