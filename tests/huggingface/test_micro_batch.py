"""A Trainer with the micro-batch that takes the least joules: the same losses, steps, logs and checkpoints."""

import json
import os

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from tests.huggingface.trainers import needs_averages
from tests.support.ranks import run_ranks
from tests.support.variants import long_but_first
from zeus_core.batches import MicroBatchOptimizer
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.power_limit import Energy
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_huggingface import ZeusTrainerCallback
from zeus_huggingface.batches.trainer_micro_batch import MicroBatchTraining

FORWARD = Work(0.2, 350.0)
MODEL_GIB, SAMPLE_GIB = 16.0, 1.5  # 8 samples fit on a V100, 32 on an A100


def gpu_of(model):
    return SimulatedGpu(find_preset(model), time_source=VirtualTime())


def monitor_of(gpu):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)


class Collate:
    """Pads to the longest."""

    def __call__(self, samples):
        longest = max(len(sample) for sample in samples)
        tokens = torch.tensor([sample + [0] * (longest - len(sample)) for sample in samples])
        labels = torch.tensor([sample + [-100] * (longest - len(sample)) for sample in samples])
        return {"input_ids": tokens, "attention_mask": (labels != -100).long(), "labels": labels}


def texts(count, shortest=3):
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(shortest, 12, (count,), generator=draw).tolist()
    return [torch.randint(1, 32, (length,), generator=draw).tolist() for length in lengths]


def language_model(dropout=0.0):
    set_seed(0)
    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config)


def trainer_of(folder, callbacks=(), gpu=None, model=None, count=90, collate=None, samples=None, **arguments):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "max_steps": 100,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        **arguments,
    }
    trainer = Trainer(
        model=language_model() if model is None else model,
        args=TrainingArguments(**settings),
        train_dataset=texts(count) if samples is None else samples,
        data_collator=collate or Collate(),
        callbacks=list(callbacks),
    )
    if gpu is not None:
        SimulatedCompute(
            trainer.model,
            gpu,
            FORWARD,
            batches=SimulatedBatches(32, half_samples=6.0, model_gib=MODEL_GIB, sample_gib=SAMPLE_GIB),
        )
    return trainer


class Watch(TrainerCallback):
    """Notes the events and where they happen."""

    def __init__(self):
        self.events, self.sizes = [], set()

    def on_train_begin(self, args, state, control, **_):
        self.events.append(("begin", state.max_steps, state.num_train_epochs))

    def on_epoch_begin(self, args, state, control, **_):
        self.events.append(("epoch", state.global_step))

    def on_step_end(self, args, state, control, **_):
        self.sizes.add((args.per_device_train_batch_size, args.gradient_accumulation_steps))

    def on_save(self, args, state, control, **_):
        self.events.append(("save", state.global_step))

    def on_log(self, args, state, control, logs, **_):
        self.events.append(("log", state.global_step, logs.get("learning_rate")))


def trained(folder, callbacks=(), **arguments):
    watch = Watch()
    trainer = trainer_of(folder, [*callbacks, watch], **arguments)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return trainer, watch, losses, norms, weights


@pytest.fixture(scope="module")
def unoptimised(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("unoptimised"), save_steps=40, save_strategy="steps")


@pytest.mark.parametrize(
    ("model", "size"),
    [("A100-SXM4-80GB", 32), ("V100-PCIE-32GB", 8)],
)
@pytest.mark.long
@needs_averages
def test_the_best_micro_batch_that_fits_trains_the_same(tmp_path, unoptimised, model, size, caplog):
    gpu = gpu_of(model)
    callback = ZeusTrainerCallback(monitor_of(gpu), micro_batch="auto")
    trainer, watch, losses, norms, weights = trained(
        tmp_path, [callback], gpu=gpu, save_steps=40, save_strategy="steps"
    )
    assert watch.sizes == {(size, 32 // size)}
    assert callback.micro_batch.probes <= 6
    _, original, losses_before, norms_before, weights_before = unoptimised
    assert watch.events == original.events
    assert len(losses) == 100
    assert losses == pytest.approx(losses_before, rel=1e-5)
    assert norms == pytest.approx(norms_before, rel=1e-4)
    assert torch.allclose(weights, weights_before, atol=1e-5)
    assert trainer.args.per_device_train_batch_size == 4
    assert trainer.args.gradient_accumulation_steps == 8


@needs_averages
def test_the_best_by_chance_is_bit_identical_if_it_is_the_users(tmp_path):
    """The probes leave no trace: neither in random numbers (dropout), nor in the model."""
    arguments = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1, "max_steps": 6}
    *_, losses_before, _, weights_before = trained(tmp_path / "before", model=language_model(0.3), **arguments)
    callback = ZeusTrainerCallback(monitor_of(gpu := gpu_of("A100")), micro_batch="auto")
    _, watch, losses, _, weights = trained(
        tmp_path / "after", [callback], gpu=gpu, model=language_model(0.3), **arguments
    )
    assert callback.micro_batch.probes == 3
    assert watch.sizes == {(32, 1)}
    assert losses == losses_before
    assert torch.equal(weights, weights_before)


def test_a_number_is_bit_identical_to_the_same_in_the_arguments(tmp_path, monitor):
    own = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "max_steps": 6}
    *_, losses_before, _, weights_before = trained(tmp_path / "before", model=language_model(0.3), **own)
    callback = ZeusTrainerCallback(monitor, micro_batch=16)
    _, watch, losses, _, weights = trained(tmp_path / "after", [callback], model=language_model(0.3), max_steps=6)
    assert watch.sizes == {(16, 2)}
    assert losses == losses_before
    assert torch.equal(weights, weights_before)


def test_dropout_is_named_as_it_draws_other_random_numbers(tmp_path, monitor, caplog):
    trained(tmp_path, [ZeusTrainerCallback(monitor, micro_batch=16)], model=language_model(0.3), max_steps=2)
    assert "the model has dropout, whose random numbers depend on the micro-batch" in caplog.text


class Classifier(torch.nn.Module):
    """A model of its own, whose loss is a mean over what `batch` says."""

    def __init__(self, norm=None, contrastive=False):
        super().__init__()
        set_seed(0)
        self.embed = torch.nn.Embedding(32, 8)
        self.norm = norm or torch.nn.Identity()
        self.contrastive = contrastive

    def forward(self, input_ids, labels, attention_mask=None):
        hidden = self.norm(self.embed(input_ids).mean(1))
        if self.contrastive:
            return {"loss": torch.nn.functional.cross_entropy(hidden @ hidden.T, torch.arange(len(hidden)))}
        return {"loss": hidden.square().mean()}


class PaddedMean(Classifier):
    """Takes the mean over all tokens of a micro-batch, which other micro-batches have in other numbers."""

    def forward(self, input_ids, labels, attention_mask=None):
        scores = self.embed(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten().clamp(max=7))}


@pytest.mark.parametrize(
    ("model", "reason"),
    long_but_first(
        [
            (PaddedMean, "the loss of a step depends on it"),
            (lambda: Classifier(contrastive=True), "the loss of a step depends on it"),
            (lambda: Classifier(torch.nn.BatchNorm1d(8)), "BatchNorm1d at norm normalizes over the micro-batch"),
        ]
    ),
)
def test_a_loss_that_depends_on_the_micro_batch_is_refused_by_name(tmp_path, model, reason, caplog):
    arguments = {"count": 64, "max_steps": 5}
    *_, losses_before, _, weights_before = trained(tmp_path / "before", model=model(), **arguments)
    callback = ZeusTrainerCallback(monitor_of(gpu := gpu_of("A100")), micro_batch="auto")
    _, watch, losses, _, weights = trained(tmp_path / "after", [callback], gpu=gpu, model=model(), **arguments)
    assert watch.sizes == {(4, 8)}
    assert f"the micro-batch stays as it was: {reason}" in caplog.text
    assert losses == losses_before
    assert torch.equal(weights, weights_before)


@pytest.mark.long
@pytest.mark.parametrize(("count", "steps", "size"), [(64, 5, 32), (40, 1, 32), (40, 6, 8), (37, 4, 4)])
@needs_averages
def test_only_sizes_that_do_not_change_an_epochs_last_step_are_probed(tmp_path, count, steps, size):
    """A mean of means over 40 samples in steps of 32: a micro-batch of 16 would weight the last 8 as it weights 16."""
    arguments = {"samples": texts(count, shortest=11), "max_steps": steps}
    callback = ZeusTrainerCallback(monitor_of(gpu := gpu_of("A100")), micro_batch="auto")
    _, watch, losses, *_ = trained(tmp_path / "after", [callback], gpu=gpu, model=Classifier(), **arguments)
    *_, losses_before, _, _ = trained(tmp_path / "before", model=Classifier(), **arguments)
    assert watch.sizes == {(size, 32 // size)}
    assert losses == pytest.approx(losses_before, rel=1e-5)


def test_a_stream_is_not_probed(tmp_path, monitor, caplog):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts(90))

    _, watch, *_ = trained(tmp_path, [ZeusTrainerCallback(monitor, micro_batch="auto")], samples=Stream(), max_steps=2)
    assert watch.sizes == {(4, 8)}
    assert "the training data are a stream" in caplog.text


def test_a_number_that_does_not_divide_the_batch_leaves_the_arguments(tmp_path, monitor, caplog):
    _, watch, *_ = trained(tmp_path, [ZeusTrainerCallback(monitor, micro_batch=5)], max_steps=2)
    assert watch.sizes == {(4, 8)}
    assert "5 does not divide the 32 samples of a step on one rank; try 1, 2, 4, 8, 16, 32" in caplog.text


@pytest.mark.parametrize("wrong", ["Auto", 0, 2.5, [8], True, Energy])
def test_other_arguments_are_refused(monitor, wrong):
    with pytest.raises(UsageError, match=r'micro_batch is .*; it must be "auto", a number of samples'):
        ZeusTrainerCallback(monitor, micro_batch=wrong)


@pytest.mark.long
@needs_averages
def test_first_the_batch_then_the_power_limit_both_kept_in_one_profile(tmp_path):
    gpu, path = gpu_of("A100"), tmp_path / "profile.json"

    def train(folder, seed):
        limits = GlobalPowerLimitOptimizer(monitor_of(gpu), profile_path=path, warmup_steps=1, profile_steps=4)
        callback = ZeusTrainerCallback(optimizer=limits, micro_batch="auto")
        trained(tmp_path / folder, [callback], gpu=gpu, max_steps=60)
        return callback

    first = train("first", 0)
    assert first.micro_batch.chosen == 32
    assert first.optimizer.chosen_limit_watts is not None
    assert gpu.read_power_limit_watts() == 400
    knobs = [profile["conditions"]["knob"] for profile in json.loads(path.read_text())["profiles"]]
    assert sorted(knobs) == ["micro-batch", "power limit"]
    again = train("again", 1)
    assert (again.micro_batch.chosen, again.micro_batch.probes) == (32, 0)
    assert again.optimizer.trials == first.optimizer.trials  # none is measured again
    # The choice goes on to be measured, and may move by a step or two of 5 W.
    assert again.optimizer.chosen_limit_watts == pytest.approx(first.optimizer.chosen_limit_watts, abs=10)


@pytest.mark.long
@needs_averages
def test_training_resumes_with_the_micro_batch(tmp_path):
    _, _, losses_before, *_ = trained(tmp_path / "before", max_steps=20)
    gpu = gpu_of("A100")
    callback = ZeusTrainerCallback(monitor_of(gpu), micro_batch="auto")
    trained(tmp_path / "after", [callback], gpu=gpu, max_steps=20, save_strategy="steps", save_steps=10)
    resumed = trainer_of(tmp_path / "after", [callback], gpu, max_steps=20)
    resumed.train(resume_from_checkpoint=str(tmp_path / "after" / "checkpoint-10"))
    assert callback.micro_batch.probes == 0
    losses = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
    assert losses == pytest.approx(losses_before, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [True, False])
@needs_averages
def test_a_step_out_of_memory_runs_again_in_parts(tmp_path, weighted, caplog):
    """Longer texts may come long after the probes; what was configured would have had room for them."""
    arguments = {"samples": texts(96, shortest=11), "max_steps": 20}
    make = language_model if weighted else Classifier
    _, _, losses_before, norms_before, _ = trained(tmp_path / "before", model=make(), **arguments)

    def grow(module, inputs, keywords):
        if trainer.state.global_step >= 7 and len(keywords["input_ids"]) > 8:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    callback = ZeusTrainerCallback(monitor_of(gpu := gpu_of("A100")), micro_batch="auto")
    trainer = trainer_of(tmp_path / "after", [callback], gpu, make(), **arguments)
    trainer.model.register_forward_pre_hook(grow, with_kwargs=True)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert losses == pytest.approx(losses_before, rel=1e-5)
    assert norms == pytest.approx(norms_before, rel=1e-4)
    assert "training goes on with parts of 4 samples" in caplog.text
    assert callback.micro_batch.out_of_memory == {32}


def train_rank(folder, optimised):
    """One of two ranks: the second one has the smaller board."""
    rank = int(os.environ["RANK"])
    gpu = SimulatedGpu(find_preset(("A100-SXM4-80GB", "V100-PCIE-32GB")[rank]), index=rank, time_source=VirtualTime())
    callback = ZeusTrainerCallback(monitor_of(gpu), micro_batch="auto")
    settings = {"count": 100, "max_steps": 12, "ddp_backend": "gloo"}
    if not optimised:
        _, watch, losses, _, weights = trained(folder, **settings)
        return sorted(watch.sizes), losses, weights.tolist(), None, None
    _, watch, losses, _, weights = trained(folder, [callback], gpu=gpu, **settings)
    chosen = callback.micro_batch
    return sorted(watch.sizes), losses, weights.tolist(), chosen.probes, sorted(chosen.out_of_memory)


def test_one_rank_out_of_memory_ends_training_and_explains_the_next_step(tmp_path, caplog):
    """The others wait for its gradients, so that it cannot run the step again."""
    trainer = trainer_of(tmp_path, [])
    micro_batch = MicroBatchOptimizer()
    training = MicroBatchTraining(trainer, micro_batch)

    def out_of_memory(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trainer.args), "world_size", property(lambda _: 2))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            training._run_with(16, out_of_memory)
    assert micro_batch.out_of_memory == {16}
    assert "a micro-batch of 16 samples is out of memory, and the other ranks wait for this one" in caplog.text


@pytest.mark.long
@needs_averages
def test_ranks_agree_on_what_fits_the_smallest_board(tmp_path):
    before, _ = run_ranks(2, train_rank, tmp_path / "before", False)
    first, second = run_ranks(2, train_rank, tmp_path / "after", True)
    assert first[0] == second[0] == [(8, 4)]
    assert first[3:] == second[3:]
    assert first[1] == pytest.approx(before[1], rel=1e-5)
    assert first[2] == pytest.approx(before[2], abs=1e-5)
