"""The code on the pages of the documentation."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of code on a page of the documentation."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def is_of(block: str, script: Path) -> bool:
    """Return whether each paragraph of a block of code is a run of lines of a script, apart from indentation."""
    lines = script.read_text().splitlines()
    return all(_is_region(paragraph.splitlines(), lines) for paragraph in block.strip("\n").split("\n\n"))


def _is_region(paragraph: list[str], lines: list[str]) -> bool:
    size = len(paragraph)
    regions = (textwrap.dedent("\n".join(lines[i : i + size])) for i in range(len(lines) - size + 1))
    return textwrap.dedent("\n".join(paragraph)) in regions
