"""Write docs/evidence.md: for each benchmark what it shows, its command, and the table that it printed last.

python tools/evidence.py                                    # the descriptions again; tables stay as they are
python tools/evidence.py window_overhead [ARGUMENTS ...]    # also runs this benchmark, and keeps what it prints
python tools/evidence.py --from-file OUTPUT attribution --seeds 24    # keeps the output of an earlier run
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence.md"
INTRODUCTION = """# Evidence

For each benchmark: its command, and its table or the page that shows the results. `python
tools/evidence.py NAME` runs one again and puts its table here. A FOLDER holds published measurements (the Zeus and
Perseus artifacts, ml-energy/zeus), which are not part of this repository. Times are those of
the machine that the table names, with its load at the end; `make benchmarks` prints them for yours, each beside
something measured in the same run.

## On real hardware

**Not yet.** No table on this page, and no number in this documentation, was measured on a real GPU. All come from
simulated GPUs, from a driver in C that stands for NVIDIA's, or from measurements that others have published. Not seen
on hardware are therefore: the period and jitter of real counters, the time of driver calls, how soon limits and clocks
take effect, the power of a GPU that waits in a collective, marks beside CUDA events, and any saving in a real training.
[`zeus-core doctor --measure`](selfcheck.md) measures them on any machine with a GPU; its tables belong here, with the
device's name and the date.
"""


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-file", type=Path, metavar="OUTPUT")
    parser.add_argument("name", nargs="?", choices=[path.stem for path in benchmarks()])
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sections = kept_sections(PAGE.read_text(encoding="utf-8") if PAGE.exists() else "")
    if options.name is not None:
        sections[options.name] = result_of(options.name, options.arguments, options.from_file)
    PAGE.write_text(page_text(sections), encoding="utf-8")
    return 0


def benchmarks() -> list[Path]:
    """Return the scripts."""
    return sorted(path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_"))


def page_text(results: dict[str, str]) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for path in benchmarks():
        shown = ", ".join(f"[{page.name}]({page.name})" for page in pages_with(path.name))
        results_are = f"Results are in {shown}." if shown else "No table is kept."
        usual = f"{results_are} This prints them: `python benchmarks/{path.name}`\n"
        result = results.get(path.stem, usual)
        parts.append(f"{heading_of(path)}\n{result}")
    return "\n".join(parts)


def heading_of(path: Path) -> str:
    """Return the heading of a benchmark, with the first paragraph of its docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return f"## {path.stem}\n\n{docstring.partition(chr(10) * 2)[0]}\n"


def pages_with(script: str) -> list[Path]:
    """Return the other pages that tell what a benchmark has shown."""
    pages = sorted(PAGE.parent.glob("*.md"))
    return [page for page in pages if page != PAGE and f"benchmarks/{script}" in page.read_text(encoding="utf-8")]


def kept_sections(page: str) -> dict[str, str]:
    """Return the results that a page holds, by benchmark: from the line of the command on."""
    sections = (part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    found = {name: re.search(r"^`python benchmarks/.*", text, re.MULTILINE | re.DOTALL) for name, _, text in sections}
    return {name: match[0].rstrip("\n") + "\n" for name, match in found.items() if match}


def result_of(name: str, arguments: list[str], output: Path | None) -> str:
    """Run a benchmark, or read what it printed, and return its section from the command on."""
    load = ""
    if output is None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment).stdout
        load = f", load {os.getloadavg()[0]:.0f}"
    else:
        text = output.read_text(encoding="utf-8")
    shown = ["FOLDER" if "/" in argument else argument for argument in arguments]
    cores, date = os.cpu_count(), datetime.now(UTC).strftime("%Y-%m-%d")
    command_line = " ".join(["python", f"benchmarks/{name}.py", *shown])
    return (
        f"`{command_line}`, {date}, {platform.machine()} with {cores} cores{load}:\n\n```text\n{text.rstrip()}\n```\n"
    )


if __name__ == "__main__":
    sys.exit(main())
