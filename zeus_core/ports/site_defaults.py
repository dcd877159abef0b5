"""Defaults of a site, by its administrator: what variables say where the user says nothing.

The file is JSON, such as {"save": "10%", "tags": {"cluster": "east"}, "catalogue": "/shared/zeus-core"}. Without one,
this takes a call of the kernel.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core._identity import job_id
from zeus_core.environment import CLOCK, LIMIT, OBSERVE, SAVE, TAGS, is_off, observes
from zeus_core.errors import DeviceError, UsageError
from zeus_core.files import write_atomically
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.validate import checked_slowdown

if TYPE_CHECKING:
    from zeus_core.process.parallel import ParallelCalls

DEFAULTS_VARIABLE = "ZEUS_DEFAULTS"
"""Environment variable: another file than `DEFAULTS_FILE`."""

DEFAULTS_FILE = "/etc/zeus-core/defaults.json"

_logger = logging.getLogger(__name__)

_MAX_BYTES = 65_536
_WORDS = {SAVE: "save", TAGS: "tags"}
_CATALOGUE = "catalogue"  # that runs are recorded for
_ELECTRICITY = {"intensity": "DE", "price": "0.31EUR/kWh", "pue": "1.2"}  # with examples; of sums of runs alone


def with_site_defaults(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment with the defaults of the site. All that the user says counts more; never raises.

    Tags are added up. The site's `save` does not count where the user has set a variable about settings, even to
    nothing, unless that is a slowdown that cannot be read.
    """
    site = _site(environment)
    if not site:
        return environment
    result = dict(environment)
    if SAVE in site and not _says_what_to_set(environment):
        result[SAVE] = site[SAVE]
    if TAGS in site:  # of two of a name, the last counts
        result[TAGS] = ",".join(filter(None, [site[TAGS], environment.get(TAGS)]))
    return result


def _says_what_to_set(environment: Mapping[str, str]) -> bool:
    """Return whether a user has set a variable about settings, even to nothing."""
    if any(name in environment for name in (OBSERVE, LIMIT, CLOCK)):
        return True
    try:
        return SAVE in environment and (not environment[SAVE] or checked_slowdown(SAVE, environment[SAVE]) >= 1)
    except UsageError:  # it asks for nothing
        return False


def site_words(environment: Mapping[str, str]) -> str | None:
    """Return a sentence on the defaults that count for an environment; None if there are none."""
    given = with_site_defaults(environment)
    words = [f"{word} {given[name]}" for name, word in _WORDS.items() if given.get(name) != environment.get(name)]
    if (catalogue := _site_catalogue(environment)) is not None:
        words.append(f"{_CATALOGUE} {catalogue}")
    return (
        f"defaults of this site ({_file(environment)}): {', '.join(words)}; ZEUS=off turns them off" if words else None
    )


def _site_catalogue(environment: Mapping[str, str]) -> str | None:
    """Return the folder of the site's catalogue; None if it has none, or all is turned off."""
    return _site(environment).get(_CATALOGUE)


def site_electricity(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the intensity, the price and the PUE of the site, as far as it has defaults for them, as text."""
    defaults = _site(environment)
    return {name: defaults[name] for name in _ELECTRICITY if name in defaults}


def site_saves(environment: Mapping[str, str]) -> bool:
    """Return whether trainings save, or observe, because the site has a default for it; as the user says, if he does.

    Trainers that the user has not asked to be measured are then measured too.
    """
    given = with_site_defaults(environment)
    return SAVE in _site(environment) and bool(given.get(SAVE) or observes(given))


def _site(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the defaults of the site as variables; none if all is turned off."""
    return {} if is_off(environment) else _read(_file(environment))


def _file(environment: Mapping[str, str]) -> str:
    return environment.get(DEFAULTS_VARIABLE) or DEFAULTS_FILE


@cache
def _read(path: str) -> Mapping[str, str]:
    """Return the defaults as variables; none, with one line in the log, from a file that cannot be trusted or read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return {}
    except OSError as error:
        _logger.warning("the defaults of this site are ignored: %s", error)
        return {}
    try:
        _check_trusted(path, os.fstat(descriptor))
        return _variables(os.read(descriptor, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        _logger.warning("the defaults of this site are ignored: %s: %s", path, error)
        return {}
    finally:
        os.close(descriptor)


def _check_trusted(path: str, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise PermissionError("it is no file")
    # One that a user names himself may be his own: he can set the variables as well.
    trusted = {0} if path == DEFAULTS_FILE or not hasattr(os, "geteuid") else {0, os.geteuid()}
    if state.st_uid not in trusted:
        raise PermissionError(f"it belongs to user {state.st_uid}, and must be root's")
    if state.st_mode & 0o022:
        raise PermissionError("others can change it: chmod go-w")


def _variables(data: bytes) -> dict[str, str]:
    document = json.loads(data)
    words = {**_WORDS, **{word: word for word in (_CATALOGUE, *_ELECTRICITY)}}
    if not isinstance(document, dict) or not document.keys() <= set(words.values()):
        raise ValueError(f"it must be an object of {', '.join(words.values())}")
    return {name: _text(word, document[word]) for name, word in words.items() if word in document}


def _text(word: str, value: Any) -> str:
    if word == "tags" and isinstance(value, dict) and all(type(each) is str for each in value.values()):
        return ",".join(f"{name}={each}" for name, each in value.items())
    if word == "save" and type(value) is str:
        checked_slowdown(word, value)
        return value
    if word == _CATALOGUE and type(value) is str and value.startswith("/") and "\0" not in value:
        return value
    if word in _ELECTRICITY and type(value) is (float if word == "pue" and type(value) is float else str):
        return f"{value}"
    example = {"save": '"10%"', "tags": '{"team": "nlp"}', "catalogue": '"/shared/zeus-core"', **_ELECTRICITY}[word]
    raise ValueError(f"{word} is {value!r:.80}; it must be such as {example}")


@cache
def _catalogue_calls() -> ParallelCalls:
    return ParallelCalls()


def for_catalogue(name: str, content: Callable[[], str], has_ended: bool = True) -> None:
    """Write the file of a run into the folder `new` of the site's catalogue, if it has one. Never raises.

    Whoever may write to the catalogue adds it from there (`zeus-core runs add`). A file system that does not answer is
    waited for as long as a driver is, at the end alone.

    Args:
        name: Distinguishes the run from others.
        content: Returns the document.
        has_ended: Whether the run has ended; one that goes on does not wait.
    """
    folder = _site_catalogue(os.environ)
    if not folder:
        return

    job = re.sub(r"[^A-Za-z0-9.]", "_", job_id())[:64] or "none"
    path = Path(folder, "new", f"{job}-{name}.json")
    try:
        text, calls = content(), _catalogue_calls()
        if has_ended:
            calls.call_one_within(CALL_SECONDS, 0, lambda: write_atomically(path, text, is_lasting=False))
        else:
            calls.put(0, lambda: write_atomically(path, text, is_lasting=False))
    except (OSError, ValueError, DeviceError) as error:
        _logger.warning("this run is not recorded for the catalogue %s: %s", folder, error)
