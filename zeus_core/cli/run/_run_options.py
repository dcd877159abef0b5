"""The options of `zeus-core run` beyond measuring: which trainings it finds, what it counts as a step, what it sets."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeus_core._launch import CLOCK, LIMIT, OBSERVE, SAVE, is_off, observes
from zeus_core.errors import UsageError
from zeus_core.ports.site_defaults import site_words, with_site_defaults
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import GlobalPowerLimitOptimizer


@dataclass(frozen=True)
class Asked:
    """The options, and the variables that stand in for them.

    Attributes:
        finds_trainings: Whether to measure trainings in the command.
        save: The slowdown within which energy is saved, as text; None to save nothing.
        observes: Whether saving changes nothing.
        limit_watts: The power limit for the whole run; None for the present one.
        clock_mhz: The SM clock for the whole run; None for the present one.
        step_pattern: The output of each step; None if steps are not counted in the output.
        by_site: A sentence on the defaults of the site that count; None if there are none.
        must_find: Whether the user asked for trainings, not the site alone: that there are none is reported.
    """

    finds_trainings: bool = False
    save: str | None = None
    observes: bool = False
    limit_watts: int | None = None
    clock_mhz: int | None = None
    step_pattern: re.Pattern[bytes] | None = None
    by_site: str | None = None
    must_find: bool = True

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command: its trainings save, unless we do that by its output or ourselves."""
        rest = {name: value for name, value in environment.items() if name not in {LIMIT, CLOCK, SAVE, OBSERVE}}
        if SAVE in with_site_defaults(rest):
            rest[SAVE] = ""  # what the site asks for is decided here
        return rest if self.step_pattern is not None else {**rest, **self._variables}

    @property
    def _variables(self) -> dict[str, str]:
        saves = {} if self.save is None else {SAVE: self.save}
        return {**saves, **({OBSERVE: "1"} if self.observes else {})}

    def make_optimizer(self, monitor: ZeusMonitor) -> GlobalPowerLimitOptimizer | None:
        """Make the search of steps that are counted in the output, if there is to be one."""
        from zeus_core.optimizer.asked import asked_optimizer

        return asked_optimizer(monitor, self._variables)


def add_asked(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--trainer",
        action="store_true",
        help="in the command, measure each training: of Trainers of transformers, TRL and Lightning, of Fabric, and of "
        "any loop by the steps of its torch optimizer",
    )
    parser.add_argument(
        "--save",
        metavar="10%",
        help="in these trainings, find the power limit that takes the least energy within a slowdown, and restore the "
        f"original at the end ({SAVE})",
    )
    parser.add_argument(
        "--observe",
        action="store_true",
        help=f"change nothing, and predict what --save would save ({OBSERVE}=1)",
    )
    parser.add_argument("--limit", metavar="300W", help=f"power limit of the GPUs for the whole run ({LIMIT})")
    parser.add_argument("--clock", metavar="1200MHz", help=f"SM clock of the GPUs for the whole run ({CLOCK})")
    parser.add_argument(
        "--step-pattern",
        metavar="REGEX",
        help="count steps in the output, which stays as it is: a step for each line that matches, or the number in "
        r"parentheses: 'step (\d+)'",
    )


def asked_by(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Asked:
    """Return what options ask for, variables without options, and the site without either; ZEUS=off turns it off.

    Raises:
        UsageError: A value is wrong; the message names the option or the variable.
    """
    has_no_say = is_off(environment)
    says = any((arguments.save, arguments.observe, arguments.limit, arguments.clock))
    known = {**environment, SAVE: environment.get(SAVE, "")} if says else environment
    variables = {} if has_no_say else with_site_defaults(known)
    pattern = None if arguments.step_pattern is None else _pattern(arguments.step_pattern)
    save_name, save = _named("--save", arguments.save, SAVE, variables)
    is_observing = arguments.observe or observes(variables)
    limit_name, limit = _named("--limit", arguments.limit, LIMIT, variables)
    clock_name, clock = _named("--clock", arguments.clock, CLOCK, variables)
    if save is not None:
        from zeus_core.optimizer.asked import checked_slowdown

        checked_slowdown(save_name, save)
    limit_watts = None if limit is None else _number(limit_name, limit, "W", "300W")
    clock_mhz = None if clock is None else _number(clock_name, clock, "MHz", "1200MHz")
    is_saving = save is not None or is_observing
    if save is not None and not is_observing and not has_no_say and (limit is not None or clock is not None):
        name, value = (clock_name, clock) if limit is None else (limit_name, limit)
        raise UsageError(f"{save_name} is {shown(save)} and {name} is {shown(value)}: a setting is searched or fixed")
    if has_no_say:
        return Asked(step_pattern=pattern)
    finds_trainings = arguments.trainer or (is_saving and pattern is None)
    must_find = arguments.trainer or is_observing or save == environment.get(SAVE) or arguments.save is not None
    return Asked(finds_trainings, save, is_observing, limit_watts, clock_mhz, pattern, site_words(known), must_find)


def _named(option: str, value: str | None, variable: str, variables: Mapping[str, str]) -> tuple[str, str | None]:
    return (option, value) if value is not None else (variable, variables.get(variable) or None)


def _number(name: str, text: str, unit: str, example: str) -> int:
    match = re.fullmatch(rf"([1-9]\d{{0,5}}) ?(?:{unit})?", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise UsageError(f"{name} is {shown(text)}; it must be a whole number of {unit}, such as {example}")
    return int(match[1])


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        pattern = re.compile(os.fsencode(text))
    except re.error as error:
        raise UsageError(f"--step-pattern is {shown(text)}: {error}; give one such as 'step (\\d+)'") from error
    if pattern.groups > 1 or pattern.search(b""):
        raise UsageError(
            f"--step-pattern is {shown(text)}; it must match some lines alone, and have at most one pair of "
            r"parentheses, around the number of the step: 'step (\d+)'"
        )
    return pattern
