"""The words of docstrings, and the digits of numbers."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A reader expects a question; the thing itself says more ("the energy of a part", and not "what a part took").
OPENING = re.compile(r"(?:^|[.:] |\n *)(What|Of|Who|Whose|Whom) ")


def docstrings(path):
    """The strings that stand alone: of modules, classes and functions, and of attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_sentence_of_a_docstring_begins_like_a_question():
    paths = [path for folder in ("zeus_core", "integrations") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match.group().strip()}"
        for path in paths
        for line, text in docstrings(path)
        for match in OPENING.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_one_module_rounds_for_people():
    paths = [path for folder in ("zeus_core", "integrations") for path in (ROOT / folder).rglob("*.py")]
    rounding = [path for path in paths if re.search(r"[:%]\.\d+g", path.read_text(encoding="utf-8"))]
    assert [path.name for path in rounding] in ([], ["units.py"]), "use `number_text` of zeus_core.units"
