"""The search port: which setting of a knob to try next."""

from typing import Protocol

from zeus_core.search._trial import Trial

__all__ = ["Search"]


class Search(Protocol):
    """Decides which settings are tried. Pure: it knows no device, no source of time and no framework.

    Its trials are all it knows. To resume a search, tell a new one the same trials: it asks for the same setting next.
    """

    def ask(self) -> int | None:
        """Return the setting to try next; None once enough is known. It changes with `tell` only."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take in a trial, whether it was asked for or not (such as one measured in an earlier run)."""
        ...

    @property
    def choice(self) -> int | None:
        """The best setting so far, among or between those tried; None to let the rule choose among the trials."""
        ...
