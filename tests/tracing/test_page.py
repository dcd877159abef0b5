"""The code of docs/tracing.md."""

import time

from tests.support.pages import blocks
from zeus_core.cli import main
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.tracing.trace_file import read_trace


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "V100")  # whose counter is updated every 20 ms
    (block,) = blocks("tracing.md")
    work = lambda *_: time.sleep(0.02)  # noqa: E731
    exec(block, {"batches": range(15), "train": work, "evaluate": work})
    trace = read_trace(tmp_path / "output" / "zeus-energy" / "trace-0.json.gz")
    assert trace.ranks[0].steps == 15
    assert main(["trace", "show", "output"]) == 0
    assert "steps" in capsys.readouterr().out
