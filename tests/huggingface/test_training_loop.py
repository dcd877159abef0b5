"""The loop of a Trainer, by the contract of all loops."""

from contextlib import suppress

from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.support.training_loop_contract import ACCUMULATION, BATCH, Indexed, Network, Stop, TrainingLoopContract
from zeus_huggingface.batches import UnevenBatches
from zeus_huggingface.batches.trainer_loop import TrainerLoop
from zeus_huggingface.batches.trainer_micro_batch import MicroBatchTraining


class CheckFirst(TrainerCallback):
    def __init__(self, check):
        self.check = check

    def on_train_begin(self, args, state, control, **kwargs):
        self.check(TrainerLoop(self.trainer))
        raise Stop


class StopAfterSaving(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        raise Stop


class TestTrainerLoop(TrainingLoopContract):
    def with_loop(self, folder, check):
        callback = CheckFirst(check)
        callback.trainer = self._trainer(folder, [callback])
        callback.trainer.train()

    def trained(self, folder, *, micro_batch=None, uneven=False):
        trainer = self._trainer(folder)
        if uneven:
            UnevenBatches(trainer, [BATCH])
        if micro_batch is None:
            trainer.train()
        else:
            loop = type(trainer)._inner_training_loop
            trainer._inner_training_loop = lambda *args, **kwargs: MicroBatchTraining(trainer, micro_batch).run(
                loop, *args, **kwargs
            )
            trainer.train()
        return trainer.model

    def resumed(self, folder):
        first = self._trainer(folder, [StopAfterSaving()], save_strategy="steps", save_steps=4)
        UnevenBatches(first, [BATCH])
        with suppress(Stop):
            first.train()
        rest = self._trainer(folder)
        UnevenBatches(rest, [BATCH])
        rest.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        return first.model, rest.model

    def _trainer(self, folder, callbacks=(), **arguments):
        settings = {
            "output_dir": str(folder),
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": ACCUMULATION,
            "num_train_epochs": 2,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "dataloader_pin_memory": False,
            "remove_unused_columns": False,
            "learning_rate": 0.01,
            **arguments,
        }
        arguments = TrainingArguments(**settings)
        return Trainer(model=Network(), args=arguments, train_dataset=Indexed(), callbacks=list(callbacks))
