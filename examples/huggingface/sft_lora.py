"""Fine-tune a small language model with TRL's SFTTrainer and LoRA, and see what each token costs.

With `--simulate` the model trains on the CPU while a simulated GPU sets the pace and burns the joules. Model, tokenizer
and data are made here; nothing is downloaded, and everything is written under `--output`.

    python examples/huggingface/sft_lora.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback

WORDS = ["<pad>", "<eos>", "<unk>", "one", "joule", "is", "watt", "second"]
TEXTS = ["one joule is one watt second", "one watt second is one joule"] * 64
FORWARD_WORK = Work(seconds=0.04, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    inputs = ["input_ids", "attention_mask"]  # what GPT-2 takes
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **special)


def make_model() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
    )
    return GPT2LMHeadModel(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU model to simulate, such as A100-SXM4-80GB")
    parser.add_argument("--output", type=Path, default=Path("zeus-demo"), help="folder for all files (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (%(default)s)")
    arguments = parser.parse_args()
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = arguments.simulate
        torch.set_num_threads(1)
    set_seed(0)

    monitor = ZeusMonitor()
    callback = ZeusTrainerCallback(monitor)
    trainer = SFTTrainer(
        model=make_model(),
        args=SFTConfig(
            output_dir=str(arguments.output / "sft"),
            max_steps=arguments.steps,
            per_device_train_batch_size=4,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=30,
            save_strategy="steps",
            save_steps=30,
            max_length=32,
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=bool(arguments.simulate),
            dataloader_pin_memory=not arguments.simulate,
        ),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        eval_dataset=Dataset.from_dict({"text": TEXTS[:16]}),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True),
        callbacks=[callback],
    )
    if arguments.simulate:
        SimulatedCompute(trainer.model, monitor.gpus[0], forward=FORWARD_WORK)
    print(f"{arguments.steps} steps of fine-tuning with LoRA, 4 texts each; a log each 10 steps")
    trainer.train()
    per_token = [entry["energy_per_token_j"] for entry in trainer.state.log_history if "energy_per_token_j" in entry]
    print(callback.summary)
    print(f"A token took {per_token[-1]:.3g} J on {monitor.gpus[0].name}.")


if __name__ == "__main__":
    main()
