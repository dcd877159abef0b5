"""The public names: listed with their signatures in one file, and offered where they are said to be."""

import difflib
import runpy
from pathlib import Path

import pytest

import zeus_core

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "public_api.py"))


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
