"""What users see stays as it is while the house is cut: boxes, logs, run files and reports of some programs.

The files beside this one hold what each program gave at the commit that froze it. Words are compared exactly and
numbers within 5 %, or half of the last digit that is shown. After a change that is meant:

    python tests/golden/test_golden.py [PROGRAM ...]    writes the files anew, to be reviewed as a diff
"""

import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.programs import PROGRAMS

FOLDER = Path(__file__).parent
QUICK = ("own_loop", "accelerate")  # the others train with a framework for 10 s each, in virtual time
TOLERANCE = 0.05
ENDS = 4  # of a list of readings in the run file, so many are kept at each end
NUMBER = re.compile(r"(?<![\w.])[-+±]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Of this machine, of this process, or of the real clock.
VOLATILE = re.compile(
    r"^/run/run$|/parts/\d/name$|/(versions|identity|host|overhead)(/|$)|overhead_s|runtime|per_second|logged/time$"
)
NAMES = ((r"Energy of [\w./-]+", "Energy of FOLDER"), (r"GPU-[0-9a-f-]{36}", "UUID"))


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of a document, each with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}/{key}")
    elif isinstance(value, list) and path.startswith("/run/") and len(value) > 2 * ENDS:
        for index in (*range(ENDS), *range(-ENDS, 0)):
            yield from flat(value[index], f"{path}/{index}")
    elif isinstance(value, list):
        yield f"{path}/length", len(value)
        for index, inner in enumerate(value):
            yield from flat(inner, f"{path}/{index}")
    else:
        yield path, value


def output(name: str, folder: Path) -> dict[str, Any]:
    """Run a program, and return what is compared."""
    text = json.dumps(PROGRAMS[name](folder), ensure_ascii=False)
    for pattern, word in (*NAMES, (rf"\b{re.escape(socket.gethostname())}\b", "MACHINE")):
        text = re.sub(pattern, word, text)
    return {path: value for path, value in flat(json.loads(text)) if not VOLATILE.search(path)}


def is_near(found: float, expected: float, unit: float = 0.0) -> bool:
    """Whether two numbers are equal but for 5 %, or half of a unit of the last digit."""
    return abs(found - expected) <= max(TOLERANCE * abs(expected), unit, 1e-3)


def is_same(found: Any, expected: Any) -> bool:
    """Whether two values say the same."""
    if isinstance(expected, str) and isinstance(found, str):
        if NUMBER.sub("#", found).split() != NUMBER.sub("#", expected).split():
            return False
        pairs = zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True)
        return all(is_near(_value(one), _value(other), 10.0 ** -len(other.partition(".")[2])) for one, other in pairs)
    if isinstance(expected, bool) or not isinstance(expected, (int, float)) or not isinstance(found, (int, float)):
        return bool(found == expected)
    return is_near(found, expected)


def _value(text: str) -> float:
    return float(text.lstrip("±"))


@pytest.mark.filterwarnings("ignore:::lightning", "ignore:`isinstance:FutureWarning")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS]
)
def test_what_users_see_is_what_was_frozen(name, tmp_path):
    expected = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    found = output(name, tmp_path)
    assert list(found) == list(expected), "other rows, keys or lines"
    differing = {path: (found[path], value) for path, value in expected.items() if not is_same(found[path], value)}
    assert not differing, "found, and expected"


if __name__ == "__main__":
    for each in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            lines = json.dumps(output(each, Path(folder)), indent=0, ensure_ascii=False)
        (FOLDER / f"{each}.json").write_text(lines + "\n", encoding="utf-8")
