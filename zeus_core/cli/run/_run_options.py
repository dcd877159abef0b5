"""The options of `zeus-core run` beyond measuring: which trainings it finds, and what it sets."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from zeus_core.cli.text import complain
from zeus_core.environment import CLOCK, LIMIT, OBSERVE, SAVE, TAGS, is_off, observes
from zeus_core.errors import UsageError
from zeus_core.ports.site_defaults import site_words, with_site_defaults
from zeus_core.validate import checked_slowdown, shown

_T = TypeVar("_T")


class Setting(NamedTuple):
    """A setting for the whole run, as it was asked for.

    Attributes:
        words: "power limit" or "SM clock".
        value: In watts or MHz.
        unit: The unit.
        source: The option or the variable that asks for it.
    """

    words: str
    value: int
    unit: str
    source: str

    @property
    def text(self) -> str:
        """The value with its unit."""
        return f"{self.value} {self.unit}"


@dataclass(frozen=True)
class Asked:
    """The options, and the variables that stand in for them.

    Attributes:
        finds_trainings: Whether to measure trainings in the command.
        save: The slowdown within which energy is saved, such as "10%"; None to save nothing.
        observes: Whether saving changes nothing.
        settings: The settings for the whole run.
        by_site: A sentence on the defaults of the site that count; None if there are none.
        must_find: Whether the user asked for trainings, not the site alone: that there are none is reported.
    """

    finds_trainings: bool = False
    save: str | None = None
    observes: bool = False
    settings: tuple[Setting, ...] = ()
    by_site: str | None = None
    must_find: bool = True

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
        "--observe",
        action="store_true",
        help=f"change nothing, and predict what --save would save ({OBSERVE}=1)",
    )
    for option, example, words, variable in (
        ("--save", "10%", "in each training, find the power limit with the least energy within this slowdown", SAVE),
        ("--limit", "300W", "power limit of the GPUs for the whole run", LIMIT),
        ("--clock", "1200MHz", "SM clock of the GPUs for the whole run", CLOCK),
        ("--tags", "team=nlp,project=x", "tags to record with the run", TAGS),
    ):
        parser.add_argument(option, metavar=example, help=f"{words} ({variable})")


def asked_by(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Asked:
    """Return what options ask for, variables without options, and the site without either; ZEUS=off turns it off.

    A variable may be that of a site: one that is wrong, or that contradicts another, is ignored with a warning.

    Raises:
        UsageError: The value of an option is wrong; the message names it.
    """
    variables = {} if is_off(environment) else environment
    save = _asked("--save", arguments.save, SAVE, variables, _slowdown)
    limit = _asked("--limit", arguments.limit, LIMIT, variables, partial(_setting, "power limit", "W", "300W"))
    clock = _asked("--clock", arguments.clock, CLOCK, variables, partial(_setting, "SM clock", "MHz", "1200MHz"))
    if is_off(environment):
        return Asked()
    settings = tuple(filter(None, (limit, clock)))
    is_observing = arguments.observe or observes(variables)
    has_option = any((arguments.save, arguments.observe, arguments.limit, arguments.clock))
    said = {**environment, SAVE: ""} if has_option else environment
    by_site = with_site_defaults(said).get(SAVE)
    is_of_site = by_site != said.get(SAVE)
    if is_of_site:
        save = by_site
    if save is not None and settings and not is_observing:
        fixed = arguments.limit or arguments.clock
        if arguments.save is not None and fixed is not None:
            name = "--limit" if arguments.limit else "--clock"
            raise UsageError(
                f"--save is {shown(save)} and {name} is {shown(fixed)}: a setting is searched or fixed, not both"
            )
        # An option counts more than a variable, and of two variables the one that fixes a setting.
        if arguments.save is not None:
            settings, ignored = (), f"{LIMIT} and {CLOCK} are"
        else:
            save, ignored = None, f"{SAVE} is"
        complain(f"zeus-core: {ignored} ignored: a setting is searched or fixed, not both")
    return Asked(
        finds_trainings=arguments.trainer or save is not None or is_observing,
        save=save,
        observes=is_observing,
        settings=settings,
        by_site=site_words(said),
        must_find=arguments.trainer or is_observing or not is_of_site,
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


def _slowdown(source: str, text: str) -> str:
    checked_slowdown(source, text)
    return text


def _setting(words: str, unit: str, example: str, source: str, text: str) -> Setting:
    match = re.fullmatch(rf"([1-9]\d{{0,5}}) ?(?:{unit})?", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise UsageError(f"{source} is {shown(text)}; it must be a whole number of {unit}, such as {example}")
    return Setting(words, int(match[1]), unit, source)
