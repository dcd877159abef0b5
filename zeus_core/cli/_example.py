"""`zeus-core example`: print a script to begin with, as in `zeus-core example huggingface > train.py`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from zeus_core.cli.text import complain, table, write
from zeus_core.errors import UsageError
from zeus_core.validate import shown

PLACE = "Before a run", 30
SUMMARY = "Print a training script to begin with, such as huggingface"
EXAMPLE = "zeus-core example huggingface > train.py && python train.py --simulate A100-SXM4-80GB"

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")  # of a wheel, and of a clone
_FIRST = {  # the one of each folder to begin with
    "huggingface": "train_causal_lm.py",
    "lightning": "fit.py",
    "accelerate": "train.py",
    "pytorch": "measure.py",
    "deepspeed": "train_gpt2_pipeline.py",
    "slurm": "train.sbatch",
    "kubernetes": "train.yaml",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", help="such as huggingface or pytorch/train.py; all are listed if left out")


def execute(arguments: argparse.Namespace) -> int:
    """Print the script, or the list of all; files that a script needs beside it are named on standard error."""
    folder = next((each for each in _FOLDERS if each.is_dir()), None)
    if folder is None:
        raise UsageError("the examples are not installed with this copy of zeus-core; they are in its repository")
    files = {str(file.relative_to(folder)): file for file in sorted(folder.glob("*/*.*"))}
    files = {f"{name}/{first}": files[f"{name}/{first}"] for name, first in _FIRST.items()} | files
    if arguments.name is None:
        rows = [(name, _opening(file)) for name, file in files.items()]
        write(table([("example", "what it shows"), *rows], "<<"), sys.stdout)
        return 0
    asked = arguments.name
    found = files.get(f"{asked}/{_FIRST.get(asked)}") or files.get(asked) or files.get(f"{asked}.py")
    if found is None:
        raise UsageError(f"there is no example {shown(asked)}; there are: {', '.join(_FIRST)}; all: zeus-core example")
    text = found.read_text(encoding="utf-8")
    write(text.rstrip("\n"), sys.stdout)
    for other, beside in files.items():
        is_named = beside.suffix != ".py" and beside != found and beside.name in text
        if beside.parent == found.parent and (
            is_named or re.search(rf"^from {beside.stem} import", text, re.MULTILINE)
        ):
            complain(f"zeus-core: this example needs: zeus-core example {other} > {beside.name}")
    return 0


def _opening(file: Path) -> str:
    """Return the first sentence of a file's first lines."""
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#!"))
    first = next(lines, "")
    return first.strip('"# ') if first.startswith(('"""', "# ")) else ""
