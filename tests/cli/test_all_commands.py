"""Every command has a summary and an example that can be typed, and nobody adds an option unseen."""

import ast
import shlex

import pytest

from tests.support.pages import ROOT
from zeus_core.cli import moved
from zeus_core.cli.program import _COMMANDS, _command, _parse, make_parser

# While commands are merged; then 17, 80, 12 and none.
MOST_COMMANDS, MOST_OPTIONS, MOST_OF_RUN = 21, 110, 18
WITHOUT_EXAMPLE = {
    *("run", "power", "energy", "top", "devices", "leases", "doctor", "selfcheck", "report", "statement", "trace"),
    *("carbon", "exporter"),
}


@pytest.mark.parametrize("name", [name for name in _COMMANDS if name not in WITHOUT_EXAMPLE])
def test_every_command_has_a_summary_and_an_example_that_parses(name, capsys):
    command = _command(name)
    assert command.SUMMARY[0].isupper()
    assert not command.SUMMARY.endswith(".")
    lexer = shlex.shlex(command.EXAMPLE, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    end = next((place for place, word in enumerate(words) if word in {">", "|", "&&"}), len(words))
    program, *arguments = (word for word in words[:end] if word != "sudo")
    assert (program, arguments[0]) == ("zeus-core", name)
    assert _parse(arguments).command_name == name
    with pytest.raises(SystemExit, match="0"):
        _parse([name, "--help"])
    assert f"\nExample: {command.EXAMPLE}" in capsys.readouterr().out


def declarations(folder):
    """The calls of `add_argument` below a folder: each is one more thing that a person may have to know."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                yield path


def test_commands_and_their_options_stay_few():
    assert len(_COMMANDS) <= MOST_COMMANDS
    found = [path for folder in ("zeus_core", "integrations") for path in declarations(ROOT / folder)]
    assert len(found) <= MOST_OPTIONS, {str(path.relative_to(ROOT)): found.count(path) for path in found}


def options_of(parser):
    """The options of a command and of its modes, without --help."""
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            yield from action.option_strings[-1:]
        if action.choices and hasattr(action.choices, "values"):
            for mode in action.choices.values():
                yield from options_of(mode)


def test_run_has_options_that_a_person_can_hold():
    (parser,) = make_parser(["run"])._subparsers._group_actions[0].choices.values()
    assert len(list(options_of(parser))) <= MOST_OF_RUN


def test_what_moved_is_not_there_any_more():
    assert not moved.COMMANDS.keys() & _COMMANDS.keys()
    (commands,) = make_parser()._subparsers._group_actions
    for name, option in moved.OPTIONS:
        command, _, mode = name.partition(" ")
        parser = commands.choices.get(command)
        if mode:
            parser = parser._subparsers._group_actions[0].choices[mode]
        assert parser is None or option not in set(options_of(parser)), f"{name} {option}"
