"""An observer of a user's, made from public names alone, receives each event of a loop once, in any framework."""

import pytest

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.events import (
    Activity,
    EpochBegin,
    EpochEnd,
    Event,
    Interference,
    Observer,
    PassBegin,
    PassEnd,
    Pause,
    Resume,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

STEP = [StepBegin(), StepEnd()]
EVALUATION = [Pause(Activity.EVALUATION), Resume()]
WORK = Work(0.5, 300.0)


class Events:
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[Event] = []

    def receive(self, event: Event) -> None:
        self.received.append(event)


class Broken:
    __slots__ = ()  # nothing can be noted on it

    def receive(self, event: Event) -> None:
        raise KeyError("a fault of the user's")


@pytest.fixture
def seen() -> Events:
    return Events()


def test_a_loop_of_ones_own(monitor, gpu, seen):
    observer: Observer = seen
    energy = TrainingEnergy(monitor, quiet=True)
    energy.add_observer(observer)
    with energy:
        energy.on_epoch_begin()
        for _ in range(2):
            with energy.step():
                energy.on_pass_begin(Activity.GENERATION)
                gpu.execute(WORK)
                energy.on_pass_end()
        with energy.during(Activity.EVALUATION):
            gpu.execute(WORK)
        energy.on_interference()
        energy.on_epoch_end()
    energy.on_train_end()
    step = [StepBegin(), PassBegin(Activity.GENERATION), PassEnd(), StepEnd()]
    within = [*step, *step, *EVALUATION, Interference()]
    assert seen.received == [TrainBegin(), EpochBegin(), *within, EpochEnd(), TrainEnd()]


class Verdicts(Events):
    """Keeps the verdicts on the gaps before steps."""

    def receive(self, event: Event) -> None:
        if isinstance(event, StepBegin):
            self.received.append(event.gap_seconds)


def test_a_step_begins_with_the_verdict_on_time_since_the_last(monitor, gpu):
    verdicts = Verdicts()
    energy = TrainingEnergy(monitor, quiet=True)
    energy.add_observer(verdicts)
    with energy:
        for number in range(1, 41):
            with energy.step():
                gpu.execute(WORK)
            if number % 20 == 0:
                gpu.execute(Work(2.0, 300.0))
                energy.log()
                gpu.execute(Work(3.0, 300.0))
        energy.on_step_begin()
        energy.on_step_begin()
    assert verdicts.received == pytest.approx([0.0] * 20 + [5.0] + [0.0] * 19 + [5.0, 0.0])


def test_a_fault_of_the_account_keeps_no_step_from_the_others(gpu, time_source, seen):
    def fail(_: object) -> None:
        if seen.received:
            raise RuntimeError("CUDA error")

    energy = TrainingEnergy(ZeusMonitor(gpus=[gpu], time_source=time_source, synchronize=fail), quiet=True)
    energy.add_observer(seen)
    energy.on_train_begin()
    energy.on_step_begin()
    energy.on_step_end()
    assert seen.received == [TrainBegin(), *STEP]


def test_an_observer_that_is_added_during_training_receives_its_beginning_first(monitor, seen):
    energy = TrainingEnergy(monitor, quiet=True)
    energy.on_train_begin(3, max_steps=5)
    energy.add_observer(seen)
    energy.on_train_end()
    assert seen.received == [TrainBegin(max_steps=5, step=3), TrainEnd()]
    assert seen.received[0].steps_left == 2


def test_an_observers_fault_costs_others_nothing_and_is_logged_once(monitor, gpu, seen, caplog):
    optimizer = GlobalPowerLimitOptimizer(monitor, wait_steps=0, warmup_steps=0, profile_steps=4)
    energy = TrainingEnergy(optimizer=optimizer, quiet=True)
    energy.add_observer(Broken())
    energy.add_observer(seen)
    with energy:
        for _ in range(20):
            with energy.step():
                gpu.execute(WORK)
    assert seen.received == [TrainBegin(), *STEP * 20, TrainEnd()]
    assert energy.summary.steps == 20
    assert optimizer.trials
    assert [record.getMessage() for record in caplog.records if record.name == "zeus_core.training._observers"] == [
        'Broken.receive failed; training continues: "a fault of the user\'s"'
    ]
    with pytest.raises(UsageError, match="observer is 3"):
        energy.add_observer(3)


def test_the_trainer(tmp_path, monitor, seen):
    from tests.huggingface.trainers import make_trainer
    from zeus_huggingface import ZeusTrainerCallback

    callback = ZeusTrainerCallback(monitor, quiet=True)
    callback.energy.add_observer(seen)
    make_trainer(tmp_path, [callback], max_steps=4, eval_strategy="steps", eval_steps=2).train()
    events = [event for event in seen.received if event != Interference()]  # each batch of a loop's own evaluation
    pause = Pause(Activity.EVALUATION, on_all_ranks=True)
    half = [*STEP * 2, pause, pause, Resume(), Resume()]  # of `_evaluate`, and of `evaluate` within it
    assert events == [TrainBegin(max_steps=4), EpochBegin(), *half, *half, EpochEnd(), TrainEnd()]


def test_accelerate(tmp_path, seen):
    from tests.accelerate.loop import Loop
    from zeus_huggingface.accelerate import ZeusAccelerate

    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=(time_source := VirtualTime()))
    loop = Loop(tmp_path, gpu)
    with ZeusAccelerate(loop.accelerator, ZeusMonitor(gpus=[gpu], time_source=time_source), quiet=True) as energy:
        energy.energy.add_observer(seen)
        list(loop.train(2))
        with energy.evaluation():
            loop.evaluate()
        list(loop.train(1))
        loop.evaluate()  # which nobody announces
    assert seen.received == [TrainBegin(), *STEP * 2, *EVALUATION, *STEP, *EVALUATION, TrainEnd()]


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
def test_lightning(tmp_path, monitor, gpu, seen):
    lightning = pytest.importorskip("lightning.pytorch")
    from tests.lightning.trainers import loader, make_trainer, module_class
    from zeus_lightning import ZeusCallback

    zeus = ZeusCallback(monitor, quiet=True)

    class Adds(lightning.Callback):
        def on_fit_start(self, trainer, pl_module):
            zeus.energy.add_observer(seen)

    trainer = make_trainer(tmp_path, [zeus, Adds()], max_steps=4, val_check_interval=2)
    trainer.fit(module_class(lightning)(gpu), loader(4), loader(1))
    half = [*STEP * 2, Pause(Activity.EVALUATION, on_all_ranks=True), Resume()]
    assert seen.received == [TrainBegin(max_steps=4), EpochBegin(), *half, *half, EpochEnd(), TrainEnd()]
