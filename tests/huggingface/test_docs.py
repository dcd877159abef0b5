"""The page on the Hugging Face Trainer: its code runs as it stands."""

import re

import pytest
from transformers import Trainer, TrainingArguments

from tests.huggingface.trainers import examples, tiny_model
from tests.support.pages import blocks


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Names that the page takes for granted."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:1")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=5, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    arguments.dataloader_pin_memory = False
    return {"model": tiny_model(), "arguments": arguments, "dataset": examples(8)}


def test_the_code_of_the_page_runs(names, capsys):
    measuring, searching = blocks("huggingface.md")
    exec(measuring, names)
    assert re.search(r"^ *total .* J ", capsys.readouterr().out, re.MULTILINE)
    exec(searching, names)
    assert names["callback"].optimizer.phase.value == "rest"


def test_the_page_on_recurring_jobs(names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trainer, measuring, by_hand, slices = blocks("recurring-jobs.md")
    names["arguments"].eval_strategy = "epoch"
    names["Trainer"] = Trainer
    exec(trainer, names)
    outcome, cost = capsys.readouterr().out.splitlines()[-1].split()
    assert outcome in {"reached", "stopped"}
    assert float(cost) > 0
    exec(measuring, names)
    assert names["run"].batch_size in {8, 32}, "the default is known already"
    seen = iter([(100.0, 0.7), (200.0, 0.85)])
    found = {"train_one_epoch": lambda batch_size, learning_rate: next(seen)}
    exec(by_hand, found)
    assert (found["run"].outcome, found["run"].batch_size) == ("reached", 128)
    exec(slices, found)
    assert len(found["slices"]) == 2
