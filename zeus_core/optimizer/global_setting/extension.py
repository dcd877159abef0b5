"""The hook for what extends the search of an optimizer, such as by a setting of its own for each activity.

A distribution registers the class of an extension as an entry point in the group `zeus_core.searches`. The name of the
entry point is a value of the argument `activities` of the optimizers, beside "common", which extends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from zeus_core.device import Gpu
from zeus_core.errors import UsageError
from zeus_core.events import Event
from zeus_core.installed import SEARCHES, missing_registration, registered, registered_places
from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.search_options import COMMON, SearchOptions
from zeus_core.optimizer.global_setting.setting_search import SettingSearch
from zeus_core.optimizer.limiter import Limiter
from zeus_core.settings.holders import KnobUser
from zeus_core.validate import checked_one_of


class Extension(Protocol):
    """Extends the searches of one optimizer, on one rank. Its class takes the options and the recorder of that."""

    def receive(self, event: Event) -> None:
        """Follow an event of training, before the search does; a pause of training, after it."""

    def limiter(self, gpus: Sequence[Gpu], kind: Kind, user: KnobUser, observes: bool) -> Limiter:
        """Make what applies the settings of a training on this rank. The arguments are those of `Limiter`."""

    def search(self, resumed: Any, *arguments: Any) -> SettingSearch:
        """Make the search of a training. All ranks call this.

        Args:
            resumed: The state of the checkpoint that the training continues from; None if it begins anew.
            arguments: Those of `SettingSearch`.
        """


def extension_of(options: SearchOptions, recorder: TrialRecorder) -> Extension | None:
    """Make the extension that the options name; None if they name none.

    Raises:
        UsageError: There is no such extension, or it does not go with another argument.
    """
    if options.activities == COMMON:
        return None
    if options.activities != COMMON and (missing := missing_registration(SEARCHES)):
        raise UsageError(f"activities is {options.activities!r}: {missing}")
    name = checked_one_of("activities", options.activities, [COMMON, *dict(registered_places(SEARCHES))])
    problems: list[str] = []
    for _, make in registered(SEARCHES, problems.append, name):
        extension: Extension = make(options, recorder)
        return extension
    raise UsageError(f"activities is {name!r}, which cannot be imported: {'; '.join(problems)}")
