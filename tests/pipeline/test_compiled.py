"""With and without numba the planner gives the same, and compiled code goes where it was told to."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zeus_core.pipeline
from tests.pipeline.instances import smooth_profile
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pipeline._compiled import cache_folder, has_numba


def test_without_numba_the_results_are_the_same(monkeypatch):
    pytest.importorskip("numba")

    def results(effort):
        frontier = Frontier.from_profile(smooth_profile(3, clocks=8), schedules.one_f_one_b(3, 5))
        seconds = frontier.highest_clock_point[0]
        plans = [
            make_plan(frontier, time_seconds=1.02 * seconds, effort=effort),
            make_plan(frontier, time_seconds=seconds, switch_seconds=0.005, dwell_seconds=0.2),
        ]
        return frontier.times_seconds, frontier.energies_joules, plans

    monkeypatch.delenv("ZEUS_WITHOUT_NUMBA", raising=False)
    compiled = results(0.002)
    monkeypatch.setenv("ZEUS_WITHOUT_NUMBA", "1")
    assert not has_numba()
    interpreted = results(0.04)  # a twentieth of the tries is made
    assert np.array_equal(compiled[0], interpreted[0])
    assert np.array_equal(compiled[1], interpreted[1])
    assert compiled[2] == interpreted[2]


def test_the_cache_is_in_one_folder_that_can_be_named(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "zeus-core" / "numba"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"


PROGRAM = """
from zeus_core.pipeline import InstructionProfile, MeasuredOption, PipelineProfile, Problem, schedules
options = (MeasuredOption(1410, 0.1, 40), MeasuredOption(1200, 0.12, 36))
profile = PipelineProfile([InstructionProfile(0, kind, options) for kind in ("forward", "backward")], 80)
print(round(1000 * Problem(profile, schedules.gpipe(1, 2)).shortest_seconds))  # compiles the smallest kernel
"""


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, is_writable):
    pytest.importorskip("numba")
    folder = tmp_path / "cache"
    if not is_writable:
        folder.write_text("a file where the folder should be")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip().isdecimal(), ended.stderr
    assert folder.is_dir() == is_writable
    assert list((Path(zeus_core.pipeline.__file__).parent / "__pycache__").glob("*.nb?")) == []
