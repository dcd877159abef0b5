"""The program: parses arguments, executes a command, returns an exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol, TextIO

from zeus_core import __version__
from zeus_core.cli.moved import COMMANDS as MOVED_COMMANDS
from zeus_core.cli.moved import OPTIONS as MOVED_OPTIONS
from zeus_core.cli.text import complain, show_warnings
from zeus_core.errors import UsageError, ZeusError
from zeus_core.validate import shown

_FAILED, _WRONG_USE, _CTRL_C, _BROKEN_PIPE = 1, 2, 130, 141


class Command(Protocol):
    """The interface of a command: of its module, or of its class where several share a module."""

    SUMMARY: str
    EXAMPLE: str
    """A command line for the end of the help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def execute(self, arguments: argparse.Namespace) -> int:
        """Execute the command, and return the exit code."""
        ...


# Where each command is, as "module" or "module:class", in the groups and the order of the help. Commands of a wing lie
# in its folder.
_GROUPS = {
    "Measure and save": {
        "run": "zeus_core.cli.run._run",
        "power": "zeus_core.cli.watch:Power",
        "energy": "zeus_core.cli.watch:Energy",
        "top": "zeus_core.cli.watch:Top",
        "doctor": "zeus_core.cli.doctor._doctor",
    },
    "See what a run took": {
        "report": "zeus_core.cli._report",
        "runs": "zeus_core.runs._runs_command",
        "trace": "zeus_core.cli._trace",
    },
    "Before a run": {
        "example": "zeus_core.cli._example",
        "predict": "zeus_core.cli._predict",
        "carbon": "zeus_core.cli._carbon",
        "plan": "zeus_core.pipeline.plan_command",
        "allocate": "zeus_core.mixed._allocate_command",
        "jobs": "zeus_core.jobs._jobs_command",
    },
    "For a machine or a cluster": {
        "exporter": "zeus_core.cli._exporter",
        "daemon": "zeus_core.daemon._daemon_command",
        "restore": "zeus_core.cli._restore",
    },
}
_COMMANDS = {name: module for group in _GROUPS.values() for name, module in group.items()}


def _command(name: str) -> Command:
    module, _, class_name = _COMMANDS[name].partition(":")
    command: Any = importlib.import_module(module)
    found: Command = getattr(command, class_name) if class_name else command
    return found


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
        return _command(parsed.command_name).execute(parsed)
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
    named = [name for name in own[:1] if name in _COMMANDS]  # to import all modules takes longer than most commands
    parser = make_parser(named or _COMMANDS)
    if not own:
        parser.print_help()
        parser.exit()
    if not named and not own[0].startswith("-"):
        place = f"it is now: {MOVED_COMMANDS[own[0]]}" if own[0] in MOVED_COMMANDS else None
        parser.error(f"there is no command {shown(own[0])}{_instead(own[0], place, _COMMANDS)}")
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


def _instead(word: str, place: str | None, words: Iterable[str]) -> str:
    """Return the end of a complaint about a word: what took its place, or else the word spelt alike."""
    if place is not None:
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
        for title, names in _GROUPS.items():
            lines += ["", f"{title}:", *(f"  {name:<11}{_command(name).SUMMARY}" for name in names)]
        return "\n".join([*lines, "", f"{self.prog} COMMAND --help describes each, with an example.", ""])


def make_parser(commands: Iterable[str] = tuple(_COMMANDS)) -> argparse.ArgumentParser:
    """Make the parser of the program with some of the commands, and import their modules."""
    parser = _Program(
        "zeus-core",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Measure the energy of GPUs and CPUs, and save some of it.",
    )
    parser.add_argument("--version", action="version", version=f"zeus-core {__version__}")
    parsers = parser.add_subparsers(dest="command_name", required=True, prog=parser.prog, parser_class=_Parser)
    for name in commands:
        module = _command(name)
        # Shells complete commands that have a help, by shtab.
        made = parsers.add_parser(
            name,
            description=f"{module.SUMMARY}.",
            help=module.SUMMARY,
            epilog=f"Example: {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is not wrapped, so that it can be copied
        )
        module.add_arguments(made)
    return parser
