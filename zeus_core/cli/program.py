"""The program: parses arguments, executes a command, returns an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TextIO, runtime_checkable

from zeus_core import __version__
from zeus_core.cli.moved import COMMANDS as MOVED_COMMANDS
from zeus_core.cli.moved import OPTIONS as MOVED_OPTIONS
from zeus_core.cli.text import complain, show_warnings
from zeus_core.errors import UsageError, ZeusError
from zeus_core.installed import COMMANDS, imported, missing_registration, registered, registered_places
from zeus_core.validate import shown

_FAILED, _WRONG_USE, _CTRL_C, _BROKEN_PIPE = 1, 2, 130, 141


@runtime_checkable
class Command(Protocol):
    """The interface of a command: of its module, or of its class where several share a module."""

    PLACE: tuple[str, int]
    """The title of its group in the help, and its number there: groups, and commands in them, are in this order."""
    SUMMARY: str
    EXAMPLE: str
    """A command line for the end of the help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def execute(self, arguments: argparse.Namespace) -> int:
        """Execute the command, and return the exit code."""
        ...


# The commands of the core, each imported alone: to import all takes longer than most commands. The others are entry
# points, which take 20 ms to look up.
_CORE = {
    "run": "zeus_core.cli.run._run",
    "power": "zeus_core.cli.watch:Power",
    "energy": "zeus_core.cli.watch:EnergyWatch",
    "top": "zeus_core.cli.watch:Top",
    "doctor": "zeus_core.cli.doctor._doctor",
    "report": "zeus_core.cli._report",
    "trace": "zeus_core.cli._trace",
    "example": "zeus_core.cli._example",
    "predict": "zeus_core.cli._predict",
    "exporter": "zeus_core.cli._exporter",
    "restore": "zeus_core.cli._restore",
}


def find_command(name: str) -> Command | None:
    """Import the command of a name, of the core or registered; None if there is none that can be used."""
    if name in _CORE:
        command: Command = imported(_CORE[name])
        return command
    return next((command for _, command in _registered(name)), None)


def all_commands() -> dict[str, Command]:
    """Import all commands, of the core and registered ones, in the order of the help."""
    found = dict(_registered()) | {name: imported(place) for name, place in _CORE.items()}
    return dict(sorted(found.items(), key=lambda command: command[1].PLACE[1]))


def _registered(name: str | None = None) -> Iterator[tuple[str, Command]]:
    """Import the commands that are registered, or those of a name; a line says why one cannot be used."""
    for each, command in registered(COMMANDS, _left_out, name):
        if isinstance(command, Command) and _is_place(command.PLACE):
            yield each, command
        else:
            lacking = "PLACE (a group and a number), SUMMARY, EXAMPLE, add_arguments and execute"
            _left_out(f"the command {shown(each)} lacks one of {lacking}")


def _is_place(place: object) -> bool:
    return isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and isinstance(place[1], int)


def _left_out(problem: str) -> None:
    complain(f"zeus-core: left out: {problem}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `zeus-core`.

    Args:
        arguments: The arguments after the program's name; if None, the arguments of this process.

    Returns:
        The exit code: 0; 1 if a device could not do it, or the output could not be written; 2 for wrong arguments.
        `run` returns the exit code of its command.

    Raises:
        SystemExit: With the code 2 for arguments that cannot be parsed, 0 after `--help` and `--version`.
    """
    try:
        return _execute(list(sys.argv[1:] if arguments is None else arguments))
    except ZeusError as error:
        complain(f"zeus-core: {error}")
        return _WRONG_USE if isinstance(error, UsageError) else _FAILED
    except KeyboardInterrupt:
        return _CTRL_C
    except ImportError as error:
        if (error.name or "zeus_core").startswith("zeus_core"):  # a fault of this package
            raise
        complain(f"zeus-core: {error}")
        return _WRONG_USE
    except BrokenPipeError:  # the reader has seen enough, as in `zeus-core power | head`
        return _BROKEN_PIPE
    except OSError as error:
        complain(f"zeus-core: the output could not be written: {error}")
        return _FAILED
    finally:
        for stream in (sys.stdout, sys.stderr):
            _drop_unwritten_output(stream)


def _execute(arguments: list[str]) -> int:
    try:
        parsed = _parse(arguments)
        show_warnings()
        return int(parsed.execute(parsed))
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # what argparse has printed


def _drop_unwritten_output(stream: TextIO | None) -> None:
    """Drop output that cannot be written: Python would try again at its end, and exit with 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):  # or it was closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parse(arguments: list[str]) -> argparse.Namespace:
    # argparse does not see the command after `--`: its treatment of one differs between versions of Python.
    is_split = arguments[:1] == ["run"] and "--" in arguments
    end = arguments.index("--") if is_split else len(arguments)
    own = arguments[:end]
    named = [word for word in own[:1] if not word.startswith("-")]
    commands = {word: command for word in named if (command := find_command(word)) is not None}
    parser = make_parser(commands)
    if not own:
        parser.print_help()
        parser.exit()
    if named and not commands:
        _refuse(parser, own[0])
    parsed, unknown = parser.parse_known_args(own)
    parser.prog = " ".join([parser.prog, *named])
    if unknown and named == ["run"] and not is_split and not unknown[0].startswith("-"):
        begin = own.index(unknown[0])
        example = shlex.join(["zeus-core", *own[:begin], "--", *own[begin:]])
        parser.error(f"the command to run is written after --, so that its options are its own: {example}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    parsed.command = arguments[end + 1 :] if is_split else None
    return parsed


def _refuse(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    """Complain about a word that is not a command."""
    place = f"it is now: {MOVED_COMMANDS[word]}" if word in MOVED_COMMANDS else missing_registration(COMMANDS)
    known = [*_CORE, *dict(registered_places(COMMANDS))]
    parser.error(f"there is no command {shown(word)}{_instead(word, place, known)}")


def _instead(word: str, place: str | None, words: Iterable[str]) -> str:
    """Return the end of a complaint about a word: what took its place, or else the word spelt alike."""
    if place:
        return f"; {place}"
    return "".join(f" (did you mean {each}?)" for each in difflib.get_close_matches(word, words, n=1))


class _Parser(argparse.ArgumentParser):
    """Complains in one line: the usage, up to nine lines, would hide it. Misspelt options come first."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and exit if an option does not exist."""
        self._given = list(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        self._check_options(unknown[:1])
        last = [action for action in self._actions if not action.option_strings][-1:]
        if last and last[0].nargs in ("*", "+") and not any(each.startswith("-") for each in unknown):
            convert: Any = last[0].type or str
            getattr(parsed, last[0].dest).extend(map(convert, unknown))  # argparse leaves over what follows an option
            unknown = []
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Name the argument, its value and what to give, and exit."""
        if message.startswith("the following arguments are required"):
            self._check_options(self._given)
        self.exit(_WRONG_USE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def _check_options(self, arguments: Iterable[str]) -> None:
        known = [option for action in self._actions for option in action.option_strings]
        for name in (each.partition("=")[0] for each in arguments if each.startswith("--")):
            if not any(option.startswith(name) for option in known):
                command = self.prog.partition(" ")[2]  # with its mode, if it has some
                place = MOVED_OPTIONS.get((command, name)) or MOVED_OPTIONS.get((command.partition(" ")[0], name))
                self.error(f"there is no option {shown(name)}{_instead(name, place, known)}")


class _Program(_Parser):
    """The parser of the program: its help lists the commands in their groups."""

    def format_help(self) -> str:
        """Return the help."""
        lines = [self.format_usage(), f"{self.description}"]
        groups: dict[str, list[str]] = {}
        for name, command in all_commands().items():
            groups.setdefault(command.PLACE[0], []).append(f"  {name:<11}{command.SUMMARY}")
        for title, commands in groups.items():
            lines += ["", f"{title}:", *commands]
        return "\n".join([*lines, "", f"{self.prog} COMMAND --help describes each, with an example.", ""])


def make_parser(commands: Mapping[str, Command] | None = None) -> argparse.ArgumentParser:
    """Make the parser of the program, with some commands; with all of them if None."""
    parser = _Program(
        "zeus-core",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Measure the energy of GPUs and CPUs, and save some of it.",
    )
    parser.add_argument("--version", action="version", version=f"zeus-core {__version__}")
    parsers = parser.add_subparsers(dest="command_name", required=True, prog=parser.prog, parser_class=_Parser)
    for name, command in (all_commands() if commands is None else commands).items():
        # Shells complete commands that have a help, by shtab.
        made = parsers.add_parser(
            name,
            description=f"{command.SUMMARY}.",
            help=command.SUMMARY,
            epilog=f"Example: {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is not wrapped, so that it can be copied
        )
        command.add_arguments(made)
        made.set_defaults(execute=command.execute)
    return parser
