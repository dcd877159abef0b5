"""Train a small language model with the Hugging Face Trainer, at the power limit that is found meanwhile.

With `--simulate` the model trains on the CPU while a simulated GPU sets the pace and burns the joules; without it, the
script needs a GPU that torch can use. Everything is written under `--output`. Exits with 1 if no limit was chosen.

    python examples/huggingface/train_causal_lm.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    Time,
    ZeusCost,
)
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback

SEQUENCE_BYTES = 64
TRAINING_BYTES = 2_000_000
EVALUATION_BYTES = 8_192

# A forward pass of GPT-3 XL as fitted to its published sweep on A100s, shortened to suit a demonstration.
FORWARD_WORK = Work(seconds=0.08, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)

SELECTORS = {  # beside "auto", the least energy within 10 % more time
    "slowdown": lambda factor: MaxSlowdownConstraint(factor),
    "energy-within": lambda factor: EnergyWithin(factor),
    "energy": lambda _: Energy(),
    "time": lambda _: Time(),
    "cost": lambda _: ZeusCost(eta_knob=0.5),
}


def bytes_of_python_sources(size: int) -> bytes:
    """Return the first `size` bytes of the standard library's own sources: real text that every machine has."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return bytes(text[:size])


def sequences(text: bytes) -> list[dict[str, torch.Tensor]]:
    """`text` cut into training examples; every byte is a token."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return [
        {"input_ids": sequence, "labels": sequence}
        for sequence in tokens.split(SEQUENCE_BYTES)
        if len(sequence) == SEQUENCE_BYTES
    ]


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU model to simulate, such as A100-SXM4-80GB")
    parser.add_argument("--output", type=Path, default=Path("zeus-demo"), help="folder for all files (%(default)s)")
    parser.add_argument("--selector", choices=["auto", *SELECTORS], default="auto", help="what is best (%(default)s)")
    parser.add_argument("--factor", type=float, default=1.1, help="slowdown bound of those that have one (%(default)s)")
    parser.add_argument("--steps", type=int, default=220, help="steps of the training (%(default)s)")
    return parser.parse_args()


def make_trainer(output: Path, steps: int, is_simulated: bool, callback: ZeusTrainerCallback) -> Trainer:
    text = bytes_of_python_sources(TRAINING_BYTES + EVALUATION_BYTES)
    config = GPT2Config(
        vocab_size=256, n_positions=SEQUENCE_BYTES, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        eval_strategy="steps",
        eval_steps=110,
        save_strategy="steps",
        save_steps=110,
        save_total_limit=1,
        logging_steps=55,
        report_to="none",
        disable_tqdm=True,
        use_cpu=is_simulated,
        seed=0,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=sequences(text[EVALUATION_BYTES:]),
        eval_dataset=sequences(text[:EVALUATION_BYTES]),
        callbacks=[callback],
    )


def main() -> int:
    arguments = parsed_arguments()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("zeus_core").setLevel(logging.INFO)  # says what the search does
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = arguments.simulate
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("torch sees no GPU here; simulate one: --simulate A100-SXM4-80GB", file=sys.stderr)
        return 1
    set_seed(0)
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        return train(arguments)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def train(arguments: argparse.Namespace) -> int:
    monitor = ZeusMonitor()
    if arguments.selector == "auto":
        callback = ZeusTrainerCallback(monitor, optimizer="auto")
    else:
        selector = SELECTORS[arguments.selector](arguments.factor)
        callback = ZeusTrainerCallback(optimizer=GlobalPowerLimitOptimizer(monitor, selector))
    trainer = make_trainer(arguments.output, arguments.steps, bool(arguments.simulate), callback)
    if arguments.simulate:
        SimulatedCompute(trainer.model, monitor.gpus[0], forward=FORWARD_WORK)
    print(f"{arguments.steps} steps of training, 4 samples each; the search tries limits meanwhile")
    trainer.train()
    print(f"\nWhere the energy of this run went\n{callback.summary}")
    return report(callback.optimizer, monitor.gpus[0].name, arguments)


def report(optimizer: GlobalPowerLimitOptimizer, gpu_name: str, arguments: argparse.Namespace) -> int:
    selector = optimizer.optimum_selector
    if optimizer.confirmation is None:
        print("no limit was chosen", file=sys.stderr)
        return 1
    comparison = optimizer.comparison
    points = {trial.setting: trial for trial in (*optimizer.trials, optimizer.confirmation)}
    if comparison is not None:  # all steps of the run at the original limit
        points[comparison.before.setting] = comparison.before
    print(f"\nPower limits tried on {gpu_name}, {selector}")
    for limit, point in sorted(points.items(), reverse=True):
        print(f"{limit:4d} W  {point.joules_per_step:.1f} J in {point.seconds_per_step:.3f} s a step")
    if comparison is not None:
        print(comparison)
    print(f"With intervals and a picture: zeus-core report {arguments.output}/checkpoints --output report.html")
    if comparison is None:  # it stayed at the original limit, or the choice came too late to be measured
        print(f"On {gpu_name}: {optimizer.result()['power limit']}.")
    else:
        limits = f"{optimizer.chosen_limit_watts} W in place of {comparison.before.setting} W"
        longer = f"{comparison.slowdown_factor - 1:+.1%}"
        print(f"On {gpu_name}: {limits}, for {longer} time. The saving is {comparison.saving_text}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
