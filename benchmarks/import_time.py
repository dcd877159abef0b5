"""How long importing the core takes, beside what it stands on: bare Python, and Python with numpy.

Prints the median of fresh processes and the ratio to `import numpy` in the same run. Modules are compiled before, as
pip does when it installs them. Then prints the modules of wings that a plain run with the Hugging Face Trainer imports.
Exits with 1 if the core adds more than 0.1 s, or the run imports such a module.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 15
LONGEST_ADDED_SECONDS = 0.1
STATEMENTS = {
    "bare Python": "pass",
    "import numpy": "import numpy",
    "import zeus_core": "import zeus_core",
    "ZeusMonitor": "from zeus_core.monitor import ZeusMonitor",
    "GlobalPowerLimitOptimizer": "from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer",
}

WINGS = ("activities", "batches", "carbon", "daemon", "jobs", "mixed", "pipeline", "runs", "selfcheck")
PLAIN_RUN = f"""
import sys, tempfile
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from zeus_huggingface import ZeusTrainerCallback

config = GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
samples = [{{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}}] * 8
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=4, use_cpu=True, save_strategy="no", report_to="none")
    callback = ZeusTrainerCallback(optimizer="auto", quiet=True)
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=samples, callbacks=[callback]).train()
parts = [(name, name.split(".")) for name in sys.modules]
print(*(name for name, (top, *rest) in parts
        if top == "zeus_core" and rest[:1] and rest[0] in {WINGS} or top == "zeus_huggingface" and "batches" in rest))
"""


def wings_imported(environment: dict[str, str]) -> list[str]:
    """Return the modules of wings that a training with the Trainer and a search of the power limit has imported."""
    simulated = {**environment, "ZEUS_SIMULATED_GPUS": "A100-SXM4-80GB:1"}
    command = [sys.executable, "-c", PLAIN_RUN]
    output = subprocess.run(command, check=True, env=simulated, stdout=subprocess.PIPE, text=True).stdout
    return sorted(output.splitlines()[-1].split())


def seconds(statement: str, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    return time.perf_counter() - begin


def main() -> int:
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for run in range(RUNS + 1):  # in turn, so that a change of the machine's speed meets all alike
            for name, statement in STATEMENTS.items():
                taken = seconds(statement, environment)
                if run > 0:  # the first run compiles
                    samples[name].append(taken)
        imported = wings_imported(environment)
    medians = {name: statistics.median(runs) for name, runs in samples.items()}
    numpy_seconds = medians["import numpy"]
    print(f"{'':26} {'median':>9} {'/ numpy':>8} {'added to numpy':>15}")
    for name, median in medians.items():
        print(
            f"{name:26} {median * 1e3:6.1f} ms {median / numpy_seconds:8.2f} {(median - numpy_seconds) * 1e3:12.1f} ms"
        )
    print(f"modules of wings that a plain run with the Trainer imports: {', '.join(imported) or 'none'}")
    return int(bool(imported) or max(medians.values()) - numpy_seconds > LONGEST_ADDED_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
