"""The code of docs/tracing.md."""

import time

import pytest

from tests.support.pages import blocks
from zeus_core.cli import main
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.tracing.trace_file import read_document, read_trace


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "V100")  # whose counter is updated every 20 ms
    plain, profiled = blocks("tracing.md")
    work = lambda *_: time.sleep(0.02)  # noqa: E731
    names = {"batches": range(15), "train": work, "evaluate": work, "forward": work, "backward": work}
    exec(plain, names)
    trace = read_trace(tmp_path / "output" / "zeus-energy" / "trace-0.json.gz")
    assert trace.ranks[0].steps == 15
    exec(profiled, names)
    energy, profile = "output/zeus-energy/trace-0.json.gz", "output/profile.json"
    assert main(["trace", "add", energy, profile, "-o", "with-joules.json.gz"]) == 0
    rows = read_document(tmp_path / "with-joules.json.gz")["zeus_core_ranges"]["rows"]
    assert {"forward", "backward"} <= {row["name"] for row in rows}
    assert main(["trace", "show", "output"]) == 0
    assert "steps" in capsys.readouterr().out
