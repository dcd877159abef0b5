"""`zeus-core completion`: the completion of commands, options and choices by a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import chain

from zeus_core.cli.text import write

SUMMARY = "Print what makes a shell complete commands and options"

_SCRIPT = """\
_zeus_core() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" = 1 ]; then words="{commands}"; else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{choices}
      *) case "${{COMP_WORDS[1]}}" in
{options}
      esac;;
    esac
  fi
  case " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in *" -- "*) words=;; esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _zeus_core zeus-core"""
_PREPARATION = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = 'Example, as a line of ~/.bashrc: eval "$(zeus-core completion bash)"'
    parser.add_argument("shell", choices=tuple(_PREPARATION), help="the shell")


def execute(arguments: argparse.Namespace) -> int:
    """Print the script, made from the parser of this version."""
    from zeus_core.cli.program import make_parser

    (parsers,) = (action for action in make_parser()._actions if action.dest == "command_name")
    commands = {name: parser._actions for name, parser in dict(parsers.choices or {}).items()}
    choices = [
        _case("|".join(f'"{name} {option}"' for option in action.option_strings), action.choices)
        for name, actions in commands.items()
        for action in actions
        if action.choices and action.option_strings
    ]
    options = [_case(name, chain.from_iterable(map(_words, actions))) for name, actions in commands.items()]
    script = _SCRIPT.format(commands=" ".join(commands), choices="\n".join(choices), options="\n".join(options))
    write(_PREPARATION[arguments.shell] + script, sys.stdout)
    return 0


def _case(pattern: str, words: Iterable[object]) -> str:
    return f'      {pattern}) words="{" ".join(map(str, words))}";;'


def _words(action: argparse.Action) -> Iterable[object]:
    """Return the words of an argument: its names, or the choices of one that has no name."""
    return action.option_strings or action.choices or ()
