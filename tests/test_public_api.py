"""The public names: listed with their signatures in one file, and offered where they are said to be."""

import ast
import difflib
import json
import re
import runpy

import pytest

import zeus_core
from tests.support.pages import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "public_api.py"))


def test_the_list_is_that_of_the_packages():
    listed = TOOL["LIST"].read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(listed, TOOL["describe_api"]().splitlines(), "listed", "found", n=0))
    assert not difference, f"the public interface has changed; if that is intended: make public-api\n{difference}"


def test_the_names_that_most_people_need_are_those_of_their_modules():
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import power_limit

    assert zeus_core.ZeusMonitor is ZeusMonitor
    assert zeus_core.EnergyWithin is power_limit.EnergyWithin
    assert [name for name in zeus_core.__all__ if not hasattr(zeus_core, name)] == []
    assert set(zeus_core.__all__) <= set(dir(zeus_core)), "so that they are completed"
    with pytest.raises(AttributeError, match="has no attribute 'ZeusMonitr'"):
        zeus_core.ZeusMonitr  # noqa: B018


def imported_names(program):
    """Yield the module and the name of each import of ours."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in TOOL["PACKAGES"]:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] in TOOL["PACKAGES"])


def programs():
    """Yield each block of Python of the pages, and each example."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if re.search(r"^(from|import) ", block, re.MULTILINE):
                yield page.name, block
    for example in sorted((ROOT / "examples").rglob("*.py")):
        yield str(example.relative_to(ROOT)), example.read_text(encoding="utf-8")
    for notebook in sorted((ROOT / "examples").rglob("*.ipynb")):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield notebook.name, "".join(cell["source"])


def test_pages_and_examples_import_public_names_alone():
    public = {module.__name__: {"", *getattr(module, "__all__", ())} for module in TOOL["public_modules"]()}
    for place, program in programs():
        for module, name in imported_names(program):
            is_module = f"{module}.{name}" in public
            assert is_module or name in public.get(module, ()), f"{place} imports {name or module} of {module}"
