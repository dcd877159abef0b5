"""The tracker "zeus"."""

import json

import pytest
import torch
from accelerate import Accelerator, tracking

from zeus_huggingface.accelerate import ZeusTracker

registered = pytest.mark.skipif(
    not hasattr(tracking, "register_tracker_class"), reason="this accelerate knows only its own trackers by name"
)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@registered
def test_it_writes_what_is_logged_into_one_file_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    accelerator = Accelerator(cpu=True, log_with="zeus", project_dir="output")
    accelerator.init_trackers("an/experiment", config={"lr": 0.1})
    accelerator.log({"loss": torch.tensor(0.5), "note": "hot", "shape": (1, 2), "device": torch.device("cpu")}, step=3)
    accelerator.log({"loss": 0.25})
    accelerator.end_training()
    path = accelerator.get_tracker("zeus", unwrap=True)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path.absolute()]
    configuration, first, second = lines_of(path)
    assert configuration["config"] == {"lr": 0.1}
    assert {**first, "time": 0} == {"time": 0, "step": 3, "loss": 0.5, "note": "hot", "shape": [1, 2], "device": "cpu"}
    assert (second["step"], second["loss"]) == (None, 0.25)
    assert configuration["time"] <= first["time"] <= second["time"]


def test_a_resumed_run_appends(tmp_path):
    for step in (1, 2):
        ZeusTracker("run", tmp_path).log({"loss": 1.0}, step=step)
    assert [line["step"] for line in lines_of(tmp_path / "run.jsonl")] == [1, 2]


def test_it_can_be_given_as_an_object(tmp_path):
    accelerator = Accelerator(cpu=True, log_with=ZeusTracker("run", tmp_path))
    accelerator.init_trackers("whatever")
    accelerator.log({"loss": 1.0})
    assert len(lines_of(tmp_path / "run.jsonl")) == 1


@registered
def test_without_a_folder_accelerate_says_so():
    with pytest.raises(ValueError, match="requires a `logging_dir`"):
        Accelerator(cpu=True, log_with="zeus")
