"""The public names: listed with their signatures in one file, and in no other module than a public one."""

import difflib
import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "public_api.py"))


def test_the_list_is_that_of_the_packages():
    listed = TOOL["LIST"].read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(listed, TOOL["describe_api"]().splitlines(), "listed", "found", n=0))
    assert not difference, f"the public interface has changed; if that is intended: make public-api\n{difference}"


def test_a_module_without_an_underscore_has_public_names():
    """A module for us alone begins with an underscore; a package may be a room for such modules."""
    modules = [module for module in TOOL["public_modules"]() if not hasattr(module, "__path__")]
    assert [module.__name__ for module in modules if not getattr(module, "__all__", ())] == []
