"""Every command has a summary and an example that can be typed, and nobody adds an option unseen."""

import ast
import shlex

import pytest

from tests.support.pages import ROOT
from zeus_core.cli import moved
from zeus_core.cli.program import _parse, all_commands, make_parser

MOST_COMMANDS, MOST_OPTIONS, MOST_OF_RUN = 17, 80, 12


COMMANDS = all_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_mode_has_an_example_that_parses(name):
    summary = COMMANDS[name].SUMMARY
    assert summary[0].isupper()
    assert not summary.endswith(".")
    (made,) = make_parser({name: COMMANDS[name]})._subparsers._group_actions
    for parser in (made.choices[name], *(mode for mode in modes_of(made.choices[name]) if mode.epilog)):
        example = parser.epilog.partition("\n")[0].removeprefix("Example: ")
        assert f"\nExample: {example}\n" in parser.format_help(), "a line that can be copied"
        lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = [*lexer, ">"]
        words = [word for word in words[: min(map(words.index, {">", "|", "&&"} & set(words)))] if word != "sudo"]
        assert " ".join(words).startswith(parser.prog)
        assert _parse(words[1:]).command_name == name


def modes_of(parser):
    """The parsers of the modes of a command, such as `zeus-core runs sum`."""
    return [mode for action in parser._actions if hasattr(action.choices, "values") for mode in action.choices.values()]


def declarations(folder):
    """The calls of `add_argument` below a folder: each is one more thing that a person may have to know."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                yield path


def test_commands_and_their_options_stay_few():
    assert len(COMMANDS) <= MOST_COMMANDS
    found = [path for folder in ("zeus_core", "integrations") for path in declarations(ROOT / folder)]
    assert len(found) <= MOST_OPTIONS, {str(path.relative_to(ROOT)): found.count(path) for path in found}


def options_of(parser):
    """The options of a command or of a mode, without --help."""
    return [action.option_strings[-1] for action in parser._actions if action.option_strings and action.dest != "help"]


def test_run_has_options_that_a_person_can_hold():
    assert len(options_of(*modes_of(make_parser({"run": COMMANDS["run"]})))) <= MOST_OF_RUN


def test_what_moved_is_not_there_any_more():
    assert not moved.COMMANDS.keys() & COMMANDS.keys()
    parsers = {parser.prog.partition(" ")[2]: parser for parser in modes_of(make_parser())}
    parsers |= {mode.prog.partition(" ")[2]: mode for parser in parsers.values() for mode in modes_of(parser)}
    for name, option in moved.OPTIONS:
        assert name not in parsers or option not in options_of(parsers[name]), f"{name} {option}"
