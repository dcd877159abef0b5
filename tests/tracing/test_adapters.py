"""The trace of trainings in frameworks: one argument in each adapter."""

from collections import Counter

import pytest

from zeus_core.monitor import ZeusMonitor
from zeus_core.tracing.trace_file import read_trace


def spans(path):
    """The spans of a trace by name, without those between activities."""
    trace = read_trace(path)
    names = Counter(event["name"] for event in trace.events if event["ph"] == "X")
    del names["idle"], names["steps"]
    return trace, dict(names)


def test_a_trainer(monitor, gpu, tmp_path):
    pytest.importorskip("transformers")
    from tests.huggingface.trainers import BACKWARD, FORWARD, make_trainer
    from zeus_core.pytorch import SimulatedCompute
    from zeus_huggingface import ZeusTrainerCallback

    callback = ZeusTrainerCallback(monitor, quiet=True, trace=True)
    trainer = make_trainer(tmp_path, [callback], max_steps=12, eval_strategy="steps", eval_steps=4)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    trace, names = spans(tmp_path / "zeus-energy" / "trace-0.json.gz")
    assert names == {"step": 12, "evaluation": 3}
    (facts,) = trace.ranks
    assert sum(phase.measured.energy_joules for phase in facts.phases.values()) == facts.total.measured.energy_joules
    assert trainer.state.log_history[-1]["train_energy_j"] == pytest.approx(facts.total.measured.energy_joules)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
def test_a_lightning_trainer(monitor, gpu, tmp_path):
    pytest.importorskip("lightning")
    from tests.lightning.trainers import loader, make_trainer, module_class
    from zeus_lightning import ZeusCallback

    callback = ZeusCallback(monitor, quiet=True, trace=str(tmp_path / "traces"))
    module = module_class(pytest.importorskip("lightning.pytorch"))(gpu)
    make_trainer(tmp_path, [callback], max_steps=6, val_check_interval=3).fit(module, loader(12), loader(2))
    trace, names = spans(tmp_path / "traces" / "trace-0.json.gz")
    assert names == {"step": 6, "evaluation": 2}
    assert trace.ranks[0].steps == 6


def test_a_loop_of_accelerate(gpu, time_source, tmp_path):
    pytest.importorskip("accelerate")
    from tests.accelerate.loop import Loop
    from zeus_huggingface.accelerate import ZeusAccelerate

    loop = Loop(tmp_path, gpu)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    with ZeusAccelerate(loop.accelerator, monitor, quiet=True, trace=True) as energy:
        loop.train_and_log(5)
        with energy.evaluation():
            gpu.synchronize()
            loop.evaluate(2)
        loop.accelerator.save_state(tmp_path / "checkpoint")
    _, names = spans(tmp_path / "zeus-energy" / "trace-0.json.gz")
    assert names["step"] == 5
    assert names["evaluation"] == 1
