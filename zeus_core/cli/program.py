"""The program: parses arguments, executes a command, returns an exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TextIO

from zeus_core import __version__
from zeus_core._identity import printable
from zeus_core.cli import moved
from zeus_core.cli.text import complain
from zeus_core.errors import UsageError, ZeusError
from zeus_core.validate import checked_list, checked_text, shown

_FAILED, _WRONG_USE, _CTRL_C, _BROKEN_PIPE = 1, 2, 130, 141


class Command(Protocol):
    """The interface of a command: of its module, or of its class where several share a module."""

    SUMMARY: str
    EXAMPLE: str
    """A command that works as it is, for the end of the help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def execute(self, arguments: argparse.Namespace) -> int:
        """Execute the command, and return the exit code."""
        ...


# Where each command is, as "module" or "module:class", in the groups and the order of the help. Commands of a wing lie
# in its folder.
_GROUPS = {
    "Measure": {
        "run": "zeus_core.cli.run._run",
        "power": "zeus_core.cli.watch:Power",
        "energy": "zeus_core.cli.watch:Energy",
        "top": "zeus_core.cli.watch:Top",
        "exporter": "zeus_core.cli._exporter",
    },
    "Know your machine": {
        "doctor": "zeus_core.cli.doctor._doctor",
    },
    "Report": {
        "report": "zeus_core.cli._report",
        "runs": "zeus_core.runs._runs_command",
        "trace": "zeus_core.cli._trace",
    },
    "Plan": {
        "predict": "zeus_core.cli._predict",
        "plan": "zeus_core.pipeline.plan_command",
        "allocate": "zeus_core.mixed._allocate_command",
        "carbon": "zeus_core.cli._carbon",
        "jobs": "zeus_core.jobs._jobs_command",
        "replay": "zeus_core.jobs.replay._replay_command",
    },
    "Administer": {
        "restore": "zeus_core.cli._restore",
        "daemon": "zeus_core.daemon._daemon_command",
    },
    "Begin": {
        "example": "zeus_core.cli._example",
        "completion": "zeus_core.cli._completion",
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
        arguments: The arguments after the program's name; those of this process if None.

    Returns:
        The exit code: 0; 1 if a device could not do it, or the output could not be written; 2 for wrong arguments.
        `run` returns that of its command.

    Raises:
        SystemExit: With the code 2 for arguments that cannot be parsed, 0 after `--help` and `--version`.
    """
    return run_program(sys.argv[1:] if arguments is None else arguments, "zeus-core", _COMMANDS)


def run_program(arguments: Sequence[str], name: str, commands: Iterable[str]) -> int:
    """Run a program with some of the commands; see `main`."""
    try:
        return _execute(arguments, name, commands)
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


def _execute(arguments: Sequence[str], name: str, commands: Iterable[str]) -> int:
    try:
        texts = checked_list("arguments", arguments, checked_text, 'a list of texts, such as ["power"]')
        parsed = _parse(texts, name, commands)
        _show_warnings()
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


def _parse(arguments: Sequence[str], name: str, commands: Iterable[str]) -> argparse.Namespace:
    # argparse does not see the command after `--`: its treatment of one differs between versions of Python.
    own, is_split, command = _split(list(arguments))
    named = [each for each in commands if own[:1] == [each]]  # the modules of all take longer than many a command
    parser = make_parser(name, named or commands)
    if not own:
        parser.print_help()
        parser.exit()
    if not named and not own[0].startswith("-"):
        instead = f"; it is now: {moved.COMMANDS[own[0]]}" if own[0] in moved.COMMANDS else _nearest(own[0], commands)
        parser.error(f"there is no command {shown(own[0])}{instead}")
    parsed, unknown = parser.parse_known_args(own)
    parser.prog = " ".join([name, *named])
    if unknown and named == ["run"] and not is_split and not unknown[0].startswith("-"):
        begin = own.index(unknown[0])
        example = shlex.join([name, *own[:begin], "--", *own[begin:]])
        parser.error(f"the command to run is written after --, so that its options are its own: {example}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    parsed.command = command if is_split else None
    return parsed


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    if arguments[:1] != ["run"] or "--" not in arguments:
        return arguments, False, []
    position = arguments.index("--")
    return arguments[:position], True, arguments[position + 1 :]


def _nearest(word: str, words: Iterable[str]) -> str:
    return "".join(f" (did you mean {each}?)" for each in difflib.get_close_matches(word, words, n=1))


class _Parser(argparse.ArgumentParser):
    """Complains in one line: the usage, up to nine lines, would hide it. Misspelt options come first."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and exit if there is an option that is none."""
        self._given = list(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        self._check_options(unknown[:1])
        last = [action for action in self._actions if not action.option_strings][-1:]
        if last and last[0].nargs == "*" and not any(each.startswith("-") for each in unknown):
            getattr(parsed, last[0].dest).extend(unknown)  # argparse leaves over what follows an option
            unknown = []
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Name the argument, its value and what to give, and exit."""
        if message.startswith("the following arguments are required"):
            self._check_options(self._given)
        self._exit(message)

    def _check_options(self, arguments: Iterable[str]) -> None:
        known = [option for action in self._actions for option in action.option_strings]
        for name in (each.partition("=")[0] for each in arguments if each.startswith("--")):
            if not any(option.startswith(name) for option in known):
                instead = moved.OPTIONS.get((self.prog.rpartition(" ")[2], name))
                self._exit(f"there is no option {shown(name)}{f'; {instead}' if instead else _nearest(name, known)}")

    def _exit(self, message: str) -> NoReturn:
        self.exit(_WRONG_USE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def make_parser(name: str = "zeus-core", commands: Iterable[str] = tuple(_COMMANDS)) -> argparse.ArgumentParser:
    """Make the parser of a program with some of the commands, and import their modules."""
    modules = {each: _command(each) for each in commands}
    summaries = {each: module.SUMMARY for each, module in modules.items()}
    parser = _Parser(
        name,
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Measure the energy of GPUs and CPUs, and save some of it.",
        epilog=_listing(summaries) + f"\n\n{name} COMMAND --help describes each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zeus-core {__version__}")
    parsers = parser.add_subparsers(dest="command_name", required=True, help=argparse.SUPPRESS, prog=name)
    for each, module in modules.items():
        example = f"Example: {module.EXAMPLE}" if hasattr(module, "EXAMPLE") else None
        module.add_arguments(parsers.add_parser(each, description=f"{module.SUMMARY}.", epilog=example))
    return parser


def _listing(summaries: Mapping[str, str]) -> str:
    """Return the commands in their groups, one a line."""
    groups = {title: [each for each in group if each in summaries] for title, group in _GROUPS.items()}
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {each:<11}{summaries[each]}" for each in names)])
        for title, names in groups.items()
        if names
    )


class _Words(logging.Formatter):
    """Messages as `write` writes them: they may hold texts of others."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(super().format(record), besides="\n\t")


def _show_warnings() -> None:
    """Print the package's warnings, such as that GPUs are simulated, in the form of this program's messages."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Words("zeus-core: %(message)s"))
    logger = logging.getLogger("zeus_core")
    logger.handlers = [handler]
    logger.propagate = False
    # The monitor warns of lost energies; the commands show these themselves, in place of the energy.
    logging.getLogger("zeus_core.monitor").setLevel(logging.ERROR)
