"""The callback in TRL's SFTTrainer."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from zeus_core.device import Work
from zeus_core.optimizer.power_limit import Energy
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import HFGlobalPowerLimitOptimizer

trl = pytest.importorskip("trl", reason="TRL needs Python 3.11", exc_type=ImportError)
datasets = pytest.importorskip("datasets", exc_type=ImportError)
tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError)


def tiny_tokenizer():
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "joule": 3, "watt": 4, "second": 5}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL's own, of the newest transformers
def test_the_search_completes_in_an_sft_trainer(tmp_path, monitor, gpu):
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=8, n_positions=16, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=1)
    )
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=1, profile_steps=10)
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            output_dir=str(tmp_path),
            max_steps=160,
            per_device_train_batch_size=2,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            dataloader_pin_memory=False,
            max_length=16,
        ),
        train_dataset=datasets.Dataset.from_dict({"text": ["joule watt second"] * 40}),
        processing_class=tiny_tokenizer(),
        callbacks=[search],
    )
    forward = Work(0.9, 484.9, 0.938, 0.744)
    SimulatedCompute(trainer.model, gpu, forward)
    trainer.train()
    assert len(search.optimizer.trials) == 11
    assert search.optimizer.chosen_limit_watts == 250
    assert gpu.read_power_limit_watts() == 350
    assert torch.isfinite(next(trainer.model.parameters())).all()
