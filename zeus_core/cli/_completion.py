"""`zeus-core completion`: the completion of commands, options and choices by a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import chain

from zeus_core.cli.text import write

SUMMARY = "Print what makes a shell complete commands and options"

# For sh, bash and zsh. $1 is the number of the word to complete, from 0; $2 the command, $3 the word before.
_WORDS = """\
_zeus_core_words() {{
  if [ "$1" = 1 ]; then echo "{commands}"; return; fi
  case "$4 " in *" -- "*) return;; esac
  case "$2 $3" in
{choices}
    *) case "$2" in
{options}
    esac;;
  esac
}}"""
_SHELLS = {
    "bash": """{words}
_zeus_core() {{
  local line="${{COMP_WORDS[*]:0:COMP_CWORD}}"
  local words="$(_zeus_core_words "$COMP_CWORD" "${{COMP_WORDS[1]}}" "${{COMP_WORDS[COMP_CWORD-1]}}" "$line")"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _zeus_core zeus-core""",
    "zsh": """{words}
(( $+functions[compdef] )) || {{ autoload -U compinit; compinit -i; }}
_zeus_core() {{
  local line="${{words[1,CURRENT-1]}}"
  compadd -- ${{=$(_zeus_core_words $((CURRENT-1)) "${{words[2]}}" "${{words[CURRENT-1]}}" "$line")}} || _files
}}
compdef _zeus_core zeus-core""",
    "fish": """set -g _zeus_core_words '{words}
_zeus_core_words "$@"'
function _zeus_core
  set -l words (commandline -opc)
  string split " " -- (sh -c $_zeus_core_words sh (count $words) "$words[2]" "$words[-1]" "$words")
end
complete -c zeus-core -a "(_zeus_core)"
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        'Examples: eval "$(zeus-core completion bash)", as a line of ~/.bashrc (zsh: ~/.zshrc); '
        "zeus-core completion fish | source, as one of ~/.config/fish/config.fish"
    )
    parser.add_argument("shell", choices=tuple(_SHELLS), help="the shell")


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
    words = _WORDS.format(commands=" ".join(commands), choices="\n".join(choices), options="\n".join(options))
    write(_SHELLS[arguments.shell].format(words=words), sys.stdout)
    return 0


def _case(pattern: str, words: Iterable[object]) -> str:
    return f'      {pattern}) echo "{" ".join(map(str, words))}";;'


def _words(action: argparse.Action) -> Iterable[object]:
    """Return the words of an argument: its names, or the choices of one that has no name."""
    return action.option_strings or action.choices or ()
