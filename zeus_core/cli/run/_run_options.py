"""The options of `zeus-core run` beyond measuring: which trainings it finds, and what it sets."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from zeus_core._launch import CLOCK, LIMIT, OBSERVE, SAVE, TAGS, is_off, observes
from zeus_core.cli.text import complain
from zeus_core.errors import UsageError
from zeus_core.ports.site_defaults import site_words, with_site_defaults
from zeus_core.validate import checked_slowdown, shown

_T = TypeVar("_T")


@dataclass(frozen=True)
class Asked:
    """The options, and the variables that stand in for them.

    Attributes:
        finds_trainings: Whether to measure trainings in the command.
        save: The slowdown within which energy is saved, such as "10%"; None to save nothing.
        observes: Whether saving changes nothing.
        limit_watts: The power limit for the whole run; None for the present one.
        clock_mhz: The SM clock for the whole run; None for the present one.
        by_site: A sentence on the defaults of the site that count; None if there are none.
        must_find: Whether the user asked for trainings, not the site alone: that there are none is reported.
        clamped: The variables that ask for a setting: the nearest that the GPUs take is set, as no option asks for it.
    """

    finds_trainings: bool = False
    save: str | None = None
    observes: bool = False
    limit_watts: int | None = None
    clock_mhz: int | None = None
    by_site: str | None = None
    must_find: bool = True
    clamped: frozenset[str] = frozenset()

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command: its trainings save, and what lasts for the whole run is ours."""
        rest = {name: value for name, value in environment.items() if name not in {LIMIT, CLOCK, SAVE, OBSERVE}}
        if self.save is not None or SAVE in with_site_defaults(rest):
            rest[SAVE] = self.save or ""  # "" turns off what the site asks for
        return {**rest, OBSERVE: "1"} if self.observes else rest


def add_asked(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--trainer",
        action="store_true",
        help="measure each training in the command: Trainers of transformers, TRL and Lightning, Fabric, and any loop "
        "with a torch optimizer",
    )
    parser.add_argument(
        "--save",
        metavar="10%",
        help=f"in each training, find the power limit with the least energy within this slowdown ({SAVE})",
    )
    parser.add_argument(
        "--observe",
        action="store_true",
        help=f"change nothing, and predict what --save would save ({OBSERVE}=1)",
    )
    parser.add_argument("--limit", metavar="300W", help=f"power limit of the GPUs for the whole run ({LIMIT})")
    parser.add_argument("--clock", metavar="1200MHz", help=f"SM clock of the GPUs for the whole run ({CLOCK})")
    parser.add_argument("--tags", metavar="team=nlp,project=x", help=f"tags to record with the run ({TAGS})")


def asked_by(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Asked:
    """Return what options ask for, variables without options, and the site without either; ZEUS=off turns it off.

    A variable may be that of a site: one that is wrong, or that contradicts another, is ignored with a warning.

    Raises:
        UsageError: The value of an option is wrong; the message names it.
    """
    variables = {} if is_off(environment) else environment
    save = _asked("--save", arguments.save, SAVE, variables, _slowdown)
    limit_watts = _asked("--limit", arguments.limit, LIMIT, variables, partial(_number, unit="W", example="300W"))
    clock_mhz = _asked("--clock", arguments.clock, CLOCK, variables, partial(_number, unit="MHz", example="1200MHz"))
    if is_off(environment):
        return Asked()
    is_observing = arguments.observe or observes(variables)
    has_option = any((arguments.save, arguments.observe, arguments.limit, arguments.clock))
    known = {**environment, SAVE: ""} if has_option else environment
    by_site = with_site_defaults(known).get(SAVE)
    is_of_site = by_site != known.get(SAVE)
    if is_of_site:
        save = by_site
    if save is not None and not is_observing and (limit_watts is not None or clock_mhz is not None):
        fixed = arguments.limit or arguments.clock
        if arguments.save is not None and fixed is not None:
            name = "--limit" if arguments.limit else "--clock"
            raise UsageError(
                f"--save is {shown(save)} and {name} is {shown(fixed)}: a setting is searched or fixed, not both"
            )
        # An option counts more than a variable, and of two variables the one that fixes a setting.
        if arguments.save is not None:
            limit_watts = clock_mhz = None
        else:
            save = None
        ignored = f"{LIMIT} and {CLOCK} are" if save else f"{SAVE} is"
        complain(f"zeus-core: {ignored} ignored: a setting is searched or fixed, not both")
    return Asked(
        finds_trainings=arguments.trainer or save is not None or is_observing,
        save=save,
        observes=is_observing,
        limit_watts=limit_watts,
        clock_mhz=clock_mhz,
        by_site=site_words(known),
        must_find=arguments.trainer or is_observing or not is_of_site,
        clamped=frozenset({LIMIT if arguments.limit is None else "", CLOCK if arguments.clock is None else ""}),
    )


def checked_tags(text: str) -> str:
    """Return the tags of `--tags`; "none" records no tags, no user and no job.

    Raises:
        UsageError: One of them is not a name and a value.
    """
    if text != "none" and not all(re.fullmatch(r"[\w.-]+=.*", pair.strip(), re.ASCII) for pair in text.split(",")):
        raise UsageError(f"--tags is {shown(text)}; it must be names with values, such as team=nlp,project=x")
    return text


def _asked(
    option: str, value: str | None, variable: str, variables: Mapping[str, str], read: Callable[[str, str], _T]
) -> _T | None:
    """Return what an option asks for, or its variable without one. A variable that cannot be read asks for nothing."""
    if value is not None:
        return read(option, value)
    try:
        return read(variable, variables[variable]) if variables.get(variable) else None
    except UsageError as error:
        complain(f"zeus-core: ignored: {error}")
        return None


def _slowdown(name: str, text: str) -> str:
    checked_slowdown(name, text)
    return text


def _number(name: str, text: str, unit: str, example: str) -> int:
    match = re.fullmatch(rf"([1-9]\d{{0,5}}) ?(?:{unit})?", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise UsageError(f"{name} is {shown(text)}; it must be a whole number of {unit}, such as {example}")
    return int(match[1])
