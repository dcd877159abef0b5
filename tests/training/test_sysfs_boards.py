"""Trainings on trees of AMD and Intel, in virtual time: energies hold the truth, each board once over all ranks."""

import threading
from functools import partial

import pytest

from tests.support.fake_sysfs import FakeSysfs
from tests.support.sysfs_training import NO_CPUS, add, opened
from tests.support.variants import long_but_first
from zeus_core.device import discover_gpus
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import ThreadWorld
from zeus_core.training import TrainingEnergy

BOARDS = [("Intel", 4), ("AMD", 8), ("AMD", 4), ("Intel", 8)]
WATTS = 412.5
STEP_SECONDS = 0.5


@pytest.fixture
def tree(tmp_path, monkeypatch, time_source):
    """A tree whose boards draw power in virtual time; `joules` is what they have drawn."""
    tree = FakeSysfs(tmp_path)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    tree.joules = lambda: sum(board.joules for board in tree.boards)
    period = 0.1
    time_source.repeatedly(lambda: [board.advance(period, WATTS) for board in tree.boards if board.shows_power], period)
    return tree


def found(time_source):
    """The GPUs of this machine, in virtual time, those of one board as one object."""
    gpus = discover_gpus({})
    boards = {gpu.uuid: opened([gpu._card], time_source)[0] for gpu in gpus}
    for board in boards.values():  # the first look at a counter takes time, which threads cannot take at once
        board.read_energy_counter_joules()
        board.read_power_watts()
    return [boards[gpu.uuid] for gpu in gpus]


def monitor_of(gpus, time_source, indices=None):
    return ZeusMonitor(indices, gpus=gpus, cpus=NO_CPUS, time_source=time_source, synchronize=lambda indices: None)


def assert_holds(energy, truth):
    """The interval holds the truth, but for what is drawn between the edges of the fake and of the training."""
    assert energy.energy_joules == pytest.approx(truth, abs=energy.uncertainty_joules + 1e-6 * truth)
    assert energy.uncertainty_joules < 0.02 * truth


@pytest.mark.parametrize(("vendor", "count"), long_but_first(BOARDS))
def test_the_trainer(tree, time_source, tmp_path, vendor, count):
    transformers = pytest.importorskip("transformers")
    from tests.huggingface.trainers import make_trainer
    from zeus_huggingface import ZeusTrainerCallback

    class Step(transformers.TrainerCallback):
        def on_step_begin(self, *arguments, **named):
            time_source.advance(STEP_SECONDS)

    for _ in range(count):
        add(tree, vendor)
    callback = ZeusTrainerCallback(monitor_of(found(time_source), time_source))
    trainer = make_trainer(tmp_path, [callback, Step()], max_steps=40)
    before = tree.joules()
    trainer.train()
    assert_holds(callback.summary.account.total.measured, tree.joules() - before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("vendor", "count"), long_but_first(BOARDS))
def test_lightning(tree, time_source, tmp_path, vendor, count):
    pytest.importorskip("lightning")
    import lightning.pytorch

    from tests.lightning.trainers import loader, make_trainer, module_class
    from zeus_lightning import ZeusCallback

    class Step(lightning.pytorch.Callback):
        def on_train_batch_start(self, *arguments, **named):
            time_source.advance(STEP_SECONDS)

    for _ in range(count):
        add(tree, vendor)
    callback = ZeusCallback(monitor_of(found(time_source), time_source))
    trainer = make_trainer(tmp_path, [callback, Step()], max_steps=40)
    before = tree.joules()
    trainer.fit(module_class(lightning.pytorch)(), loader(40), loader(1))
    assert_holds(callback.summary.account.total.measured, tree.joules() - before)


def add_mi250(tree):
    for _ in range(4):
        tree.add("1.3", model="0x740c", name="AMD Instinct MI250X")
        tree.add_second_die()


def add_mi300x(tree):
    boards = [tree.add() for _ in range(2)]
    tree.add_topology(*(board for board in boards for _ in range(4)))


@pytest.mark.parametrize(("add_all", "boards"), [(add_mi250, 4), (add_mi300x, 2)])
def test_eight_ranks_count_each_board_once(tree, time_source, tmp_path, add_all, boards):
    add_all(tree)
    gpus = found(time_source)
    assert len(gpus) == 8
    barrier = threading.Barrier(8, action=partial(time_source.advance, STEP_SECONDS))

    def train(world):
        monitor = monitor_of(gpus, time_source, [world.rank])
        with TrainingEnergy(monitor, world=world, folder=tmp_path, quiet=True) as energy:
            for _ in range(40):
                with energy.step(samples=8):
                    barrier.wait(60.0)
        return energy.summary

    before = tree.joules()
    first, *_ = ThreadWorld.run(8, train, timeout_seconds=60.0)
    truth = tree.joules() - before
    assert truth == pytest.approx(boards * WATTS * 40 * STEP_SECONDS)
    assert_holds(first.account.total.measured, truth)
    assert first.account.total.lost_seconds == 0
