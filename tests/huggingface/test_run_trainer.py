"""`zeus-core run --trainer` around a script with a Trainer, alone and under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": (torch.arange(8) + i) % 50, "labels": (torch.arange(8) + i) % 50} for i in range(32)]
arguments = TrainingArguments(
    sys.argv[1], max_steps=4, logging_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[],
    disable_tqdm=True, save_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
if trainer.is_world_process_zero():
    import json
    Path("history.json").write_text(json.dumps(trainer.state.log_history))
if torch.distributed.is_initialized():
    import os, sys
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Some thread of gloo is at times still there when a rank ends, also without zeus-core, and makes it end by SIGABRT.
    sys.stdout.flush(), sys.stderr.flush(), os._exit(0)
"""


def history(folder, command, **variables):
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    paths = [ROOT, ROOT / "integrations" / "huggingface"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "ZEUS_SIMULATED_GPUS": "A40:2",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "history.json").read_text()), ended.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--nproc-per-node", "2"]])
def test_a_script_that_nobody_edits_logs_its_energy(tmp_path, launcher):
    command = [sys.executable, *launcher, "train.py", "output"]
    plain, _ = history(tmp_path / "plain", command)
    run = [sys.executable, "-m", "zeus_core", "run", "--trainer", "--"]
    measured, errors = history(tmp_path / "measured", [*run, *command])
    assert [entry.get("loss") for entry in measured] == [entry.get("loss") for entry in plain]
    assert not any("energy_j" in entry for entry in plain)
    assert all("total_energy_j" in entry for entry in measured[:-1])
    assert "train_energy_j" in measured[-1]
    assert errors.count("+- zeus-core -") == 1
