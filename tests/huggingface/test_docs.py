"""The page on the Hugging Face Trainer: its code runs as it stands."""

import re

import pytest
from transformers import TrainingArguments

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
    assert names["search"].optimizer.phase.value == "rest"
