"""What trainers that generate text do beside training, each with an account of its own. vLLM is a stand-in here."""

import os
from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import pytest
import torch
import transformers
from transformers import GPT2Config, GPT2ForSequenceClassification, T5Config, T5ForConditionalGeneration

from tests.huggingface.test_trl import model, settings, tiny_tokenizer
from tests.huggingface.trainers import make_trainer, transformers_is_older_than
from tests.support.ranks import run_ranks
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import EnergyWithin, GlobalClockOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_huggingface import ZeusTrainerCallback

trl = pytest.importorskip("trl", reason="TRL needs Python 3.11", exc_type=ImportError)
datasets = pytest.importorskip("datasets", exc_type=ImportError)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:trl"),
    pytest.mark.skipif(transformers_is_older_than("4.49"), reason="GRPO of TRL 0.16 asks for transformers 4.49"),
]

FORWARD = Work(0.9, 484.9, 0.938, 0.744)
DECODING = Work(0.2, 150.0, 1.0, 0.05)


class StandInForVllm:
    """What `trl.generation.vllm_generation.VLLMGeneration` offers to a trainer. There is no vLLM in it."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.clocks_mhz = []

    def sync_weights(self):
        pass

    def generate(self, prompts, images=None, num_generations=1, profiler=None):
        self.clocks_mhz.append(self.gpu._locked_clock_mhz)
        self.gpu.execute(Work(4.0, 300.0, 1.0, 0.05))
        texts = [[3, 4, 5, 1][number % 2 :] for number in range(len(prompts))]
        return prompts, texts, [[[-1.0]] * len(text) for text in texts], None


class StandInForLlm:
    """What `vllm.LLM` offers to the trainers of older releases."""

    def __init__(self, gpu):
        self.gpu = gpu

    def generate(self, prompts):
        self.gpu.execute(DECODING)
        text = type("Text", (), {"token_ids": [3, 4, 1]})
        return [type("Request", (), {"outputs": [text]}) for _ in prompts]


def reward_model():
    transformers.set_seed(1)
    sizes = {"n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 1}
    config = GPT2Config(vocab_size=8, bos_token_id=0, eos_token_id=1, pad_token_id=0, num_labels=1, **sizes)
    return GPT2ForSequenceClassification(config)


def lengths(completions, **_):
    return [float(len(completion)) for completion in completions]


def online_trainer(folder, callbacks, kind="GRPO", rewards=(lengths,), **arguments):
    transformers.set_seed(0)
    options = {"max_steps": 4, "logging_steps": 1, "num_generations": 2, "max_completion_length": 4, "beta": 0.0}
    options |= arguments
    policy = model()
    policy.save_pretrained(folder / "policy")  # where the trainer finds the reference
    policy.config._name_or_path = str(folder / "policy")
    return getattr(trl, f"{kind}Trainer")(
        model=policy,
        reward_funcs=list(rewards),
        reward_processing_classes=[tiny_tokenizer() if isinstance(each, torch.nn.Module) else None for each in rewards],
        args=getattr(trl, f"{kind}Config")(**settings(folder, **options)),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["joule watt"] * 16}),
        processing_class=tiny_tokenizer(),
        callbacks=callbacks,
    )


def outcomes(trainer):
    """What was trained, and what was logged of it."""
    trainer.train()
    kept = ("loss", "reward", "rewards/", "completions/", "grad_norm", "kl")
    logs = [{name: each[name] for name in each if name.startswith(kept)} for each in trainer.state.log_history]
    return logs, [weight.tolist() for weight in trainer.model.parameters()]


@pytest.mark.parametrize("kind", long_but_first(["GRPO", "RLOO"]))
def test_online_training_has_same_losses_and_rewards_without_us(tmp_path, monitor, gpu, kind):
    def trained(folder, callbacks):
        trainer = online_trainer(folder, callbacks, kind, (lengths, judge := reward_model()), beta=0.04)
        if callbacks:
            SimulatedCompute(trainer.model, gpu, FORWARD, decoding=DECODING)
            SimulatedCompute(judge, gpu, replace(FORWARD, seconds=0.5))
            SimulatedCompute(trainer.ref_model, gpu, replace(FORWARD, seconds=0.6))
        return outcomes(trainer)

    callback = ZeusTrainerCallback(monitor)
    assert trained(tmp_path / "with", [callback]) == trained(tmp_path / "without", [])
    account = callback.summary.account
    visits = account.visits[Activity.GENERATION]
    assert account.visits == dict.fromkeys((Activity.GENERATION, Activity.REFERENCE, Activity.REWARD), visits)
    assert account.activities[Activity.REWARD].seconds > 0.5 * visits
    assert account.activities[Activity.REFERENCE].seconds > 0.6 * visits
    assert 0 < account.generated_tokens <= 4 * 2 * account.visits[Activity.GENERATION]
    passes = (
        account.generated_tokens / 2
    )  # two texts at once: the first by the prompt, the others by their latest token
    decoded = (passes - account.visits[Activity.GENERATION]) * 0.2
    prompts = account.visits[Activity.GENERATION] * 0.9
    assert account.activities[Activity.GENERATION].seconds == pytest.approx(decoded + prompts, rel=0.35)
    values = callback.summary.values()
    assert values["train_energy_per_generated_token_j"] > 0
    assert "train_energy_reward_j" in values
    assert sum(each.measured_joules for each in account.activities.values()) == account.total.measured_joules


def each_its_own(index=0):
    """A GPU of this test, and an optimizer with a clock for each activity."""
    gpu = SimulatedGpu(find_preset("H100"), index, time_source=(time_source := VirtualTime()))
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    own = {"activities": "each", "changes_per_hour": 10**6}
    return gpu, ZeusTrainerCallback(optimizer=GlobalClockOptimizer(monitor, EnergyWithin(1.05), **own), quiet=True)


@pytest.mark.parametrize(
    ("mode", "activity"), long_but_first([("colocate", Activity.GENERATION), ("server", Activity.WAITING)])
)
def test_a_vllm_of_trl_generates_at_its_own_clock_or_is_waiting(tmp_path, mode, activity):
    if not hasattr(trl.GRPOTrainer, "_generate_single_turn"):
        pytest.skip("a release of TRL without VLLMGeneration")
    gpu, callback = each_its_own()

    def trained(folder, callbacks):
        trainer = online_trainer(folder, callbacks, max_steps=60 if mode == "colocate" else 8)
        trainer.use_vllm, trainer.vllm_mode, trainer.vllm_generation = True, mode, StandInForVllm(gpu)
        trainer.vllm_importance_sampling_correction, trainer._last_loaded_step = False, -1
        original = trainer.vllm_generation.generate
        SimulatedCompute(trainer.model, gpu, FORWARD)
        found = outcomes(trainer)
        assert trainer.vllm_generation.generate == original
        return found, trainer.vllm_generation.clocks_mhz

    learnt, clocks_mhz = trained(tmp_path / "with", [callback])
    assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
    assert learnt == trained(tmp_path / "without", [])[0]
    account, rows = callback.summary.account, callback.optimizer.result()
    assert (Activity.GENERATION in account.activities) == (mode == "colocate")
    assert account.generated_tokens == (7 * account.visits[activity] if mode == "colocate" else 0)
    assert {entry["grad_norm"] for entry in learnt[0] if "grad_norm" in entry} != {0.0}
    if mode == "server":
        assert callback.optimizer._search.activities == ()
        return
    # Some visits are at the original clock until the end, so that a change of the work shows.
    assert median(clocks_mhz[-20:]) < 0.8 * callback.optimizer.chosen_clock_mhz
    assert "saves" in rows["during generation"]


def train_over_gloo(folder, is_ours):
    rank = int(os.environ["RANK"])
    gpu, callback = each_its_own(rank)

    def judge(completions, **_):
        with callback.energy.during("judge") if is_ours and rank == 1 else nullcontext():
            gpu.execute(replace(FORWARD, seconds=0.5))
        return lengths(completions)

    trainer = online_trainer(folder, [callback] if is_ours else [], "GRPO", [judge], max_steps=40, ddp_backend="gloo")
    SimulatedCompute(trainer.model, gpu, FORWARD, decoding=replace(DECODING, seconds=1.0, active_power_watts=300.0))
    found = outcomes(trainer)
    assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
    return found, callback.optimizer._search.order if is_ours else None


@pytest.mark.long
def test_ranks_of_gloo_agree_on_settings_and_learn_the_same(tmp_path):
    ours = run_ranks(2, train_over_gloo, tmp_path / "with", True)
    assert [rank[0] for rank in ours] == [
        rank[0] for rank in run_ranks(2, train_over_gloo, tmp_path / "without", False)
    ]
    assert ours[0][1] == ours[1][1]
    assert set(ours[0][1].settings) == {"generation", "reward", "judge"}


def test_the_vllm_of_older_trainers_is_seen_too(tmp_path, monitor, gpu):
    class OlderTrainer(transformers.Trainer):
        def training_step(self, *args, **kwargs):
            assert len(self.llm.generate(["joule", "watt"])) == 2
            self.vllm_client.generate(["joule"])
            return super().training_step(*args, **kwargs)

    callback = ZeusTrainerCallback(monitor)
    trainer = make_trainer(tmp_path, [callback], OlderTrainer, max_steps=3)
    trainer.llm, trainer.vllm_client = StandInForLlm(gpu), StandInForLlm(gpu)
    trainer.train()
    account = callback.summary.account
    assert account.generated_tokens == 3 * 2 * 3
    assert account.visits == {Activity.GENERATION: 3, Activity.WAITING: 3}


def test_a_generation_that_fails_ends_and_training_may_go_on(tmp_path, monitor, gpu):
    class BrokenOnce(StandInForLlm):
        def generate(self, prompts):
            super().generate(prompts)
            raise KeyError("vLLM")

    class OlderTrainer(transformers.Trainer):
        def training_step(self, *args, **kwargs):
            with pytest.raises(KeyError):
                self.llm.generate(["joule"])
            gpu.execute(FORWARD)
            return super().training_step(*args, **kwargs)

    callback = ZeusTrainerCallback(monitor)
    trainer = make_trainer(tmp_path, [callback], OlderTrainer, max_steps=3)
    trainer.llm = BrokenOnce(gpu)
    trainer.train()
    assert callback.summary.account.activities[Activity.GENERATION].seconds == pytest.approx(0.6, abs=0.01)


@pytest.mark.long
def test_seq2seq_evaluates_at_its_own_clock_with_its_generation(tmp_path):
    gpu, callback = each_its_own()

    def trained(folder, callbacks):
        class PredictAt(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if state.global_step == 2:
                    trainer.predict(rows[:2])

        transformers.set_seed(0)
        sizes = {"vocab_size": 8, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        config = T5Config(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **sizes)
        rows = [{"input_ids": [3, 4, 5], "labels": [4, 5, 1]}] * 8
        options = settings(folder, max_steps=40, eval_strategy="steps", eval_steps=1, logging_steps=1)
        trainer = transformers.Seq2SeqTrainer(
            model=T5ForConditionalGeneration(config),
            args=transformers.Seq2SeqTrainingArguments(predict_with_generate=True, generation_max_length=6, **options),
            data_collator=transformers.default_data_collator,
            train_dataset=rows,
            eval_dataset=rows[:2],
            callbacks=[*callbacks, PredictAt()],
        )
        SimulatedCompute(trainer.model, gpu, FORWARD, decoding=DECODING)
        found = outcomes(trainer)
        assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
        return found

    assert trained(tmp_path / "with", [callback]) == trained(tmp_path / "without", [])
    account, trials = callback.summary.account, callback.optimizer._search.trials_of("evaluation")
    assert account.visits == {Activity.PREDICTION: 1, Activity.EVALUATION: 40}
    assert callback.summary.values()["train_energy_prediction_j"] > 0
    assert account.generated_tokens == 0
    assert len({trial.setting for trial in trials}) > 1
    measured = sum(trial.measurement.time for trial in trials) / sum(trial.steps for trial in trials)
    assert measured == pytest.approx(account.activities[Activity.EVALUATION].seconds / 40, rel=0.05), "the whole of it"


def test_online_dpo_generates_and_rewards_within_its_steps(tmp_path, monitor, gpu):
    online_dpo = pytest.importorskip("trl.experimental.online_dpo", exc_type=ImportError)
    callback = ZeusTrainerCallback(monitor)
    trainer = online_dpo.OnlineDPOTrainer(
        model=model(),
        ref_model=model(),
        reward_funcs=[judge := reward_model()],
        reward_processing_classes=[tiny_tokenizer()],
        args=online_dpo.OnlineDPOConfig(**settings(tmp_path, max_steps=2, logging_steps=1, max_new_tokens=4)),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["joule watt"] * 16}),
        processing_class=tiny_tokenizer(),
        callbacks=[callback],
    )
    SimulatedCompute(trainer.model, gpu, FORWARD, decoding=DECODING)
    SimulatedCompute(judge, gpu, FORWARD)
    trainer.train()
    account = callback.summary.account
    assert account.visits.keys() == {Activity.GENERATION, Activity.REFERENCE, Activity.REWARD}
    assert account.generated_tokens > 0
    assert account.activities[Activity.REWARD].seconds >= 0.9
