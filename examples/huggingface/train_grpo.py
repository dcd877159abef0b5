"""Train a tiny language model with TRL's GRPO, and show where its joules go: generation, rewards, training steps.

With `--simulate` the model trains on the CPU while a simulated GPU sets the pace and burns the joules; memory bounds
its generation, as on real GPUs. The model is made from a configuration: nothing is downloaded.

    python examples/huggingface/train_grpo.py --simulate H100
    python examples/huggingface/train_grpo.py --simulate H100 --slowdown 1.05 --steps 200

The second one gives generation and steps a clock each, so that all of it takes at most 1.05 times as long.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import EnergyWithin, GlobalClockOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback

WORDS = ["<pad>", "<eos>", "<unk>", "joule", "watt", "second", "save", "spend"]

# Of an H100: training takes what the limit allows, a token of each text 275 W, and hardly depends on the clock.
FORWARD_WORK = Work(seconds=0.02, active_power_watts=650.0, active_fraction=0.95, compute_bound_fraction=0.75)
DECODING_WORK = Work(seconds=0.02, active_power_watts=275.0, compute_bound_fraction=0.05)


def thrift(completions: list[str], **_: Any) -> list[float]:
    """Reward texts that save more than they spend."""
    return [float(text.count("save") - text.count("spend")) for text in completions]


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU model to simulate, such as H100")
    parser.add_argument("--output", type=Path, default=Path("zeus-grpo"), help="folder for all files (%(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="steps of the training (%(default)s)")
    parser.add_argument("--slowdown", type=float, metavar="FACTOR", help="have a clock each, within so much more time")
    return parser.parse_args()


def make_trainer(output: Path, steps: int, is_simulated: bool, callback: ZeusTrainerCallback) -> GRPOTrainer:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GRPOTrainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), bos_token_id=0, eos_token_id=1, **sizes)),
        reward_funcs=thrift,
        args=GRPOConfig(
            output_dir=str(output),
            max_steps=steps,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=16,
            learning_rate=1e-3,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=is_simulated,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["joule watt second"] * 64}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_input_names=["input_ids", "attention_mask"],
            pad_token="<pad>",
            eos_token="<eos>",
            unk_token="<unk>",
        ),
        callbacks=[callback],
    )


def main() -> int:
    arguments = parsed_arguments()
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = arguments.simulate
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("torch sees no GPU here; simulate one: --simulate H100", file=sys.stderr)
        return 1
    set_seed(0)
    monitor = ZeusMonitor()
    if arguments.slowdown is None:
        callback = ZeusTrainerCallback(monitor)
    else:  # these cycles last half a second, and need more changes of the clock than usual ones
        within = EnergyWithin(arguments.slowdown)
        optimizer = GlobalClockOptimizer(monitor, within, activities="each", changes_per_hour=36_000)
        callback = ZeusTrainerCallback(optimizer=optimizer)
    trainer = make_trainer(arguments.output, arguments.steps, bool(arguments.simulate), callback)
    if arguments.simulate:
        SimulatedCompute(trainer.model, monitor.gpus[0], forward=FORWARD_WORK, decoding=DECODING_WORK)
    print(f"{arguments.steps} steps of GRPO, 4 texts each; a log each 10 steps", flush=True)
    trainer.train()
    print(f"\nWhere the energy of this run went\n{callback.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
