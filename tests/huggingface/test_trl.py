"""The callbacks in TRL's trainers."""

from dataclasses import replace

import pytest
import torch
import transformers

from tests.huggingface.trainers import (
    losses_of,
    reports_to_tensorboard,
    tensorboard_tags,
    tiny_model,
    transformers_is_older_than,
)
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer
from zeus_core.optimizer.power_limit import Energy, EnergyWithin, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.testing import VirtualTime
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback

trl = pytest.importorskip("trl", reason="TRL needs Python 3.11", exc_type=ImportError)
peft = pytest.importorskip("peft", exc_type=ImportError)
datasets = pytest.importorskip("datasets", exc_type=ImportError)
tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError)


def tiny_tokenizer():
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "joule": 3, "watt": 4, "second": 5}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    inputs = ["input_ids", "attention_mask"]  # what GPT-2 takes
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **special)


FORWARD = Work(0.9, 484.9, 0.938, 0.744)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # TRL's own, of the newest transformers
    pytest.mark.filterwarnings("ignore::UserWarning:trl"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]


def settings(folder, **arguments):
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
        **arguments,
    }


def model():
    return tiny_model(vocabulary=8, positions=64)


@pytest.mark.long
def test_the_search_completes_in_an_sft_trainer(tmp_path, monitor, gpu):
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=1, profile_steps=10, search=GridSearch)
    trainer = trl.SFTTrainer(
        model=model(),
        args=trl.SFTConfig(**settings(tmp_path, max_steps=160, max_length=16)),
        train_dataset=datasets.Dataset.from_dict({"text": ["joule watt second"] * 40}),
        processing_class=tiny_tokenizer(),
        callbacks=[search],
    )
    SimulatedCompute(trainer.model, gpu, FORWARD)
    trainer.train()
    assert len(search.optimizer.trials) == 11
    assert search.optimizer.chosen_limit_watts == 250
    assert gpu.read_power_limit_watts() == 350


def test_an_sft_trainer_with_lora_logs_energy_per_token(tmp_path, monitor, gpu, monkeypatch):
    callback = ZeusTrainerCallback(monitor)
    trainer = trl.SFTTrainer(
        model=model(),
        args=trl.SFTConfig(
            **settings(
                tmp_path,
                max_steps=20,
                max_length=16,
                logging_steps=5,
                eval_strategy="steps",
                eval_steps=10,
                save_strategy="steps",
                save_steps=10,
                **reports_to_tensorboard(tmp_path / "runs", monkeypatch),
            )
        ),
        train_dataset=datasets.Dataset.from_dict({"text": ["joule watt second"] * 40}),
        eval_dataset=datasets.Dataset.from_dict({"text": ["joule watt"] * 16}),
        processing_class=tiny_tokenizer(),
        peft_config=peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        callbacks=[callback],
    )
    SimulatedCompute(trainer.model, gpu, FORWARD)
    begin = gpu.exact_energy_joules()
    metrics = trainer.train().metrics
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.01)
    first, second, third, _ = [entry for entry in trainer.state.log_history if "loss" in entry]
    tokens = (third["num_tokens"] - first["num_tokens"]) / 2
    assert tokens > 0
    for entry in (first, second, third):
        assert entry["energy_per_token_j"] == pytest.approx(entry["energy_j"] / tokens)
    evaluations = [entry["eval_energy_j"] for entry in trainer.state.log_history if "eval_energy_j" in entry]
    assert sum(evaluations) == pytest.approx(metrics["train_energy_evaluation_j"], rel=0.01)
    assert "train_energy_checkpoint_j" in metrics
    tags = tensorboard_tags(tmp_path / "runs")
    assert {"train/energy_j", "train/power_w", "train/energy_per_token_j", "eval/energy_j"} <= tags.keys()
    assert (tmp_path / "checkpoint-20" / "zeus_energy.json").exists()
    assert trainer.train(resume_from_checkpoint=True).metrics["train_energy_j"] >= metrics["train_energy_j"] - 1


def test_an_sft_trainer_chooses_and_returns_the_same(tmp_path, monitor):
    """TRL logs metrics of its own in the dictionary that an evaluation returns, from release 1 on."""
    metric = "loss" if trl.__version__.startswith("0.") else "mean_token_accuracy"

    def outcome(folder, callbacks):
        trainer = trl.SFTTrainer(
            model=model(),
            args=trl.SFTConfig(
                **settings(
                    folder,
                    max_steps=20,
                    max_length=16,
                    logging_steps=5,
                    learning_rate=0.3,
                    eval_strategy="steps",
                    eval_steps=5,
                    save_strategy="steps",
                    save_steps=5,
                    load_best_model_at_end=True,
                    metric_for_best_model=metric,
                )
            ),
            train_dataset=datasets.Dataset.from_dict({"text": ["joule watt second"] * 40}),
            eval_dataset=datasets.Dataset.from_dict({"text": ["joule watt"] * 16}),
            processing_class=tiny_tokenizer(),
            callbacks=[*callbacks, transformers.EarlyStoppingCallback(2)],
        )
        trainer.train()
        state = trainer.state
        return (
            state.global_step,
            state.best_metric,
            state.best_model_checkpoint[-3:],
            losses_of(trainer),
            [*trainer.evaluate()],
        )

    assert outcome(tmp_path / "with", [ZeusTrainerCallback(monitor)]) == outcome(tmp_path / "without", [])


def test_the_reference_model_of_dpo_is_told_apart(tmp_path, monitor, gpu):
    callback = ZeusTrainerCallback(monitor)
    preferences = {"prompt": ["joule watt"] * 8, "chosen": ["second watt"] * 8, "rejected": ["joule joule"] * 8}
    trainer = trl.DPOTrainer(
        model=model(),
        ref_model=model(),
        args=trl.DPOConfig(**settings(tmp_path, max_steps=4, logging_steps=2)),
        train_dataset=datasets.Dataset.from_dict(preferences),
        processing_class=tiny_tokenizer(),
        callbacks=[callback],
    )
    SimulatedCompute(trainer.model, gpu, FORWARD)
    SimulatedCompute(trainer.ref_model, gpu, replace(FORWARD, seconds=1.8))
    metrics = trainer.train().metrics
    activities = callback.summary.account.activities
    assert activities[Activity.REFERENCE].seconds == pytest.approx(activities[Activity.STEPS].seconds * 2 / 3, rel=0.05)
    assert metrics["train_energy_reference_j"] == pytest.approx(metrics["train_energy_steps_j"] * 2 / 3, rel=0.05)
    logged = [entry["energy_j"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(logged) == pytest.approx(metrics["train_energy_j"], rel=0.02)


@pytest.mark.skipif(transformers_is_older_than("4.49"), reason="GRPO of TRL 0.16 asks for transformers 4.49")
def test_the_generation_of_grpo_is_told_apart_and_its_micro_batch_stays(tmp_path, monitor, gpu, caplog):
    callback = ZeusTrainerCallback(monitor, micro_batch="auto")
    trainer = trl.GRPOTrainer(
        model=model(),
        reward_funcs=lambda completions, **_: [float(len(completion)) for completion in completions],
        args=trl.GRPOConfig(
            **settings(tmp_path, max_steps=4, logging_steps=2, num_generations=2, max_completion_length=4)
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["joule watt"] * 8}),
        processing_class=tiny_tokenizer(),
        callbacks=[callback],
    )
    SimulatedCompute(trainer.model, gpu, FORWARD)
    begin = gpu.exact_energy_joules()
    metrics = trainer.train().metrics
    reason = 'GRPOTrainer generates within its steps; pass a size in place of "auto"'
    assert f"the micro-batch stays as it was: {reason}" in caplog.text
    assert callback.micro_batch.refused_because == reason
    assert metrics["train_energy_generation_j"] > 0
    assert metrics["train_energy_steps_j"] > 0
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.01)
    activities = callback.summary.account.activities
    assert activities[Activity.GENERATION].seconds > activities[Activity.STEPS].seconds / 3


@pytest.mark.long
@pytest.mark.skipif(transformers_is_older_than("4.49"), reason="GRPO of TRL 0.16 asks for transformers 4.49")
def test_grpo_generates_at_a_clock_of_its_own_and_learns_the_same(tmp_path):
    steps, rewards = 200, {}

    def train(name, make_callback):
        time_source = VirtualTime()
        gpu = SimulatedGpu(find_preset("H100"), time_source=time_source)
        callback = make_callback(ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source))

        def reward(completions, **_):
            rewards.setdefault(name, []).append([float(completion.count("joule")) for completion in completions])
            return rewards[name][-1]

        torch.manual_seed(0)
        arguments = {"max_steps": steps, "logging_steps": 10, "num_generations": 2, "max_completion_length": 8}
        trainer = trl.GRPOTrainer(
            model=model(),
            reward_funcs=reward,
            args=trl.GRPOConfig(
                **settings(tmp_path / name, seed=0, generation_kwargs={"min_new_tokens": 8}, **arguments)
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": ["joule watt"] * 8}),
            processing_class=tiny_tokenizer(),
            callbacks=[callback] if callback else [],
        )
        decoding = Work(0.4, 300.0, 1.0, 0.05)
        SimulatedCompute(trainer.model, gpu, Work(0.6, 620.0, 1.0, 0.85), decoding=decoding)
        trainer.train()
        assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
        norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        return gpu.exact_energy_joules(), time_source.now(), losses_of(trainer), norms

    within = EnergyWithin(1.02)
    own = {"activities": "each", "changes_per_hour": 10**6}
    untouched = train("untouched", lambda monitor: None)
    limit = train(
        "limit", lambda monitor: ZeusTrainerCallback(optimizer=GlobalPowerLimitOptimizer(monitor, within), quiet=True)
    )
    energy = train(
        "energy",
        lambda monitor: ZeusTrainerCallback(optimizer=GlobalClockOptimizer(monitor, within, **own), quiet=True),
    )
    assert 1 - energy[0] / untouched[0] >= 1.8 * (1 - limit[0] / untouched[0])
    assert energy[1] <= 1.025 * untouched[1]
    assert energy[2:] == untouched[2:]
    assert len(set(untouched[3])) > 1
    assert rewards["energy"] == rewards["untouched"]


@pytest.mark.long
@pytest.mark.parametrize(("gpu_model", "size"), [("A100-SXM4-80GB", 16), ("V100-PCIE-32GB", 8)])
def test_an_sft_trainer_trains_the_same_with_the_best_micro_batch(tmp_path, gpu_model, size):
    words = ["joule", "watt", "second", "joule watt second", "watt watt"]
    texts = [" ".join(words[index % 5] for index in range(1 + number % 9)) for number in range(60)]

    def train(folder, callbacks, gpu=None):
        trained = model()
        for module in trained.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer = trl.SFTTrainer(
            model=trained,
            args=trl.SFTConfig(
                **settings(folder, max_steps=100, max_length=32, logging_steps=1, gradient_accumulation_steps=8)
            ),
            train_dataset=datasets.Dataset.from_dict({"text": texts}),
            processing_class=tiny_tokenizer(),
            callbacks=callbacks,
        )
        if gpu is not None:
            filling = SimulatedBatches(32, half_samples=6.0, model_gib=16.0, sample_gib=1.5)
            SimulatedCompute(trainer.model, gpu, FORWARD, batches=filling)
        trainer.train()
        return [
            (entry["loss"], entry["num_tokens"], entry["mean_token_accuracy"], entry["learning_rate"])
            for entry in trainer.state.log_history
            if "loss" in entry
        ]

    gpu = SimulatedGpu(find_preset(gpu_model), time_source=VirtualTime())
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)
    callback = ZeusTrainerCallback(monitor, micro_batch="auto")
    after, before = train(tmp_path, [callback], gpu), train(tmp_path, [])
    assert callback.micro_batch.chosen == size
    assert callback.micro_batch.probes <= 6
    assert len(after) == len(before) == 100
    assert [row[0] for row in after] == pytest.approx([row[0] for row in before], rel=1e-4)
    assert [row[1] for row in after] == [row[1] for row in before]
    assert [row[3] for row in after] == [row[3] for row in before]
