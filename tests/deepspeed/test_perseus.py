"""Perseus on real engines, over gloo: its parts, checkpoints, events and obstacles."""

import csv
import logging
import os
import statistics

import pytest
import torch

from tests.deepspeed.engines import RecordingOptimizer, batches, make_engine, make_module, run_engines
from tests.nvml_driver import DeviceSpec
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.errors import UsageError, ZeusError
from zeus_core.pipeline.optimizer import PipelineFrequencySettings, PipelineRank
from zeus_core.training.record.run_file import read_run
from zeus_deepspeed._engine import release
from zeus_deepspeed._perseus import attach

ENABLED = {"enabled": True}


@pytest.fixture
def _simulated(monkeypatch):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A40:2")


class Messages(logging.Handler):
    """Collect the messages that this package logs from now on."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []
        logging.getLogger("zeus_deepspeed").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())

    def take(self):
        texts, self.texts = self.texts, []
        return texts


def attached_rank():
    engine = make_engine(make_module(2, 2), perseus={**ENABLED, "slowdown_factor": 1.1, "gpu_index": 1})
    found = set(vars(engine))
    handle = attach(engine, RecordingOptimizer)
    assert attach(engine, RecordingOptimizer) is engine.perseus is handle
    optimizer = handle.optimizer
    monitor, place, settings = optimizer.arguments
    identity, world = optimizer.options["identity"], optimizer.options["world"]
    engine.train_batch(batches())
    assert optimizer.take()[:2] == [
        "step begin",
        "forward begin" if engine.stage_id == 0 else "receive-activation begin",
    ]
    engine.destroy()
    assert optimizer.is_closed
    assert set(vars(engine)) & {"perseus", "train_batch", "save_checkpoint", "load_checkpoint", "destroy"} == set()
    assert {"perseus"} & found == set()
    return place, settings, identity, list(monitor.gpus), (world.rank, world.size), len(monitor.cpus)


@pytest.mark.usefixtures("_simulated")
def test_the_optimizer_is_given_what_the_engine_is():
    answers = run_engines(4, attached_rank)
    assert [place for place, *_ in answers] == [
        PipelineRank(stage, pipeline) for stage in (0, 1) for pipeline in (0, 1)
    ]
    for rank, (place, settings, identity, gpus, world, cpu_count) in enumerate(answers):
        assert settings == PipelineFrequencySettings(slowdown_factor=1.1)
        assert (gpus, world, cpu_count) == ([1], (rank, 4), 0)
        assert identity == {
            "deepspeed": release(),
            "torch": torch.__version__,
            "stages": 2,
            "stage": place.rank,
            "layers": ["0-2", "2-4"][place.rank],
            "parameters": 40,
            "dtype": "torch.float32",
            "micro_batch_size": 2,
            "activation_checkpoint_interval": 0,
            "zero_stage": 0,
        }


def client_state(engine, folder, tag):
    """Return the user's entries of a checkpoint, without those that DeepSpeed adds."""
    _, state = engine.load_checkpoint(folder, tag)
    return {key: value for key, value in state.items() if key in ("epoch", "perseus")}


class StatelessOptimizer(RecordingOptimizer):
    def state_dict(self):
        raise RuntimeError("no state")


def checkpointing_rank(folder):
    engine = make_engine(make_module(2, 2), perseus=ENABLED)
    optimizer, messages = attach(engine, RecordingOptimizer).optimizer, Messages()
    rank = engine.global_rank
    optimizer.state = {"found": rank}
    users = {"epoch": 3}
    engine.save_checkpoint(folder, "users", users)
    assert users == {"epoch": 3}
    engine.save_checkpoint(folder, tag="none", client_state=None)
    engine.save_checkpoint(folder, "default")
    assert optimizer.take() == 3 * ["checkpoint begin", "resume"]
    loaded = [client_state(engine, folder, tag) for tag in ("users", "none", "default")]
    assert loaded == [{"epoch": 3}, {}, {}]
    assert optimizer.loaded == 3 * [engine.stage_id * 2], "that of the first pipeline's rank"
    assert messages.take() == []

    engine.save_checkpoint(folder, "own", {"perseus": "mine"})
    assert client_state(engine, folder, "own") == {"perseus": "mine"}
    assert messages.take() == ["the Perseus state is not saved: client_state already has a key 'perseus'"]
    optimizer.state = {}
    engine.save_checkpoint(folder, "damaged")
    assert client_state(engine, folder, "damaged") == {}
    assert messages.take() == ["the Perseus state in this checkpoint is unusable; starting over: KeyError('found')"]
    assert engine.load_checkpoint(folder + "/nowhere") == (None, None)
    engine.perseus.detach()
    attach(engine, StatelessOptimizer)
    engine.save_checkpoint(folder, "stateless", users)
    assert messages.take() == ["the Perseus state is not saved in this checkpoint: RuntimeError('no state')"]
    engine.perseus.detach()
    assert client_state(engine, folder, "stateless") == {"epoch": 3}


@pytest.mark.usefixtures("_simulated")
def test_checkpoints_keep_what_was_found_out_and_what_the_user_gave(tmp_path):
    run_engines(4, checkpointing_rank, str(tmp_path))


def monitored_rank(folder, monitor_events):
    csv_monitor = {"enabled": True, "output_path": folder, "job_name": "job"}
    perseus = {**ENABLED, "check_steps": 2, "monitor_events": monitor_events, "folder": folder}
    engine = make_engine(make_module(2), csv_monitor=csv_monitor, perseus=perseus)
    attach(engine, RecordingOptimizer)
    for _ in range(5):
        engine.train_batch(batches())
    has_events = engine.perseus.monitor_events is not None
    engine.perseus.detach()
    return has_events


def written(folder, name):
    with (folder / "job" / f"Train_Samples_{name}.csv").open() as file:
        (_, header), *rows = csv.reader(file)
    assert header == name
    return {int(samples): float(value) for samples, value in rows}


@pytest.mark.parametrize(("gpu_count", "power_watts"), [(1, 400.0), (2, 700.0)])
def test_the_energy_of_the_steps_is_written_with_each_gpu_counted_once(make_driver, tmp_path, gpu_count, power_watts):
    driver = make_driver(*[DeviceSpec(counter_period_seconds=0.0) for _ in range(gpu_count)])
    for device, load_watts in zip(driver, (400.0, 300.0), strict=False):
        device.set_load([(1.0, load_watts)], repeat=True)
    assert run_engines(2, monitored_rank, str(tmp_path), True) == [True, True]
    powers, energies = written(tmp_path, "power_w"), written(tmp_path, "energy_j")
    assert list(powers) == list(energies) == [6, 12, 18, 24], "of four steps, as two are added up at a time"
    assert statistics.median(powers.values()) == pytest.approx(power_watts, rel=0.2)
    assert all(joules > 0 for joules in energies.values())
    losses = read_run(tmp_path).losses["train_loss"]
    assert [point.value for point in losses] == pytest.approx(list(written(tmp_path, "train_loss").values()))
    assert losses[-1].joules > 0


@pytest.mark.usefixtures("_simulated")
def test_no_energy_is_written_where_the_block_says_so(tmp_path):
    assert run_engines(2, monitored_rank, str(tmp_path), False) == [False, False]
    assert not (tmp_path / "job" / "Train_Samples_energy_j.csv").exists()


class MadeOptimizers:
    """Makes optimizers on all ranks but one."""

    def __init__(self, failing_rank):
        self.failing_rank = failing_rank
        self.made = []

    def __call__(self, *arguments, world, **options):
        if world.rank == self.failing_rank:
            raise OSError("no such plan")
        self.made.append(RecordingOptimizer())
        return self.made[-1]


def hindered_rank():
    messages, told = Messages(), {}
    plain = make_engine(torch.nn.Linear(1, 1), perseus=ENABLED)  # the first, as DeepSpeed makes none after a pipeline
    assert attach(plain, RecordingOptimizer) is None
    told["no pipeline"] = messages.take()
    engine = make_engine(make_module(2), perseus=ENABLED)
    found = set(vars(engine))
    make_optimizer = MadeOptimizers(failing_rank=1)
    assert attach(engine, make_optimizer) is None
    assert all(optimizer.is_closed for optimizer in make_optimizer.made)
    told["one rank"] = messages.take()
    engine._config._param_dict["perseus"]["gpu_index"] = 7
    assert attach(engine, RecordingOptimizer) is None
    told["no such GPU"] = messages.take()
    engine._config._param_dict["perseus"]["strict"] = True
    with pytest.raises(ZeusError, match="there is no GPU 7"):
        attach(engine, RecordingOptimizer)
    del engine._config._param_dict["perseus"]["gpu_index"]
    os.environ.pop(SIMULATED_GPUS_VARIABLE)
    with pytest.raises(ZeusError, match="NVIDIA"):
        attach(engine, RecordingOptimizer)
    engine._config._param_dict["perseus"]["strict"] = False
    assert attach(engine, RecordingOptimizer) is None
    told["no GPU"] = messages.take()
    assert set(vars(engine)) == found
    engine._config._param_dict["perseus"]["enabled"] = False
    assert attach(engine, RecordingOptimizer) is None
    del engine._config._param_dict["perseus"]
    assert attach(engine, RecordingOptimizer) is None
    told["nothing asked for"] = messages.take()
    with pytest.raises(UsageError, match=r"^perseus.enable is not known; did you mean 'enabled'\?$"):
        attach(make_engine(make_module(2), perseus={"enable": True}))
    return told


@pytest.mark.usefixtures("_simulated")
def test_an_obstacle_on_one_rank_is_reported_by_the_first_without_harm():
    first, second = run_engines(2, hindered_rank)
    begin = "Perseus is off; training continues: "
    assert first["one rank"] == [begin + "rank 1: OSError('no such plan')"]
    assert first["no such GPU"] == [begin + "gpu_indices is [7], but there is no GPU 7; there are: 0, 1"]
    (no_gpu,) = first["no GPU"]
    assert no_gpu.startswith(begin)
    assert "ZEUS_SIMULATED_GPUS=" in no_gpu
    assert first["nothing asked for"] == []
    (no_pipeline,) = first["no pipeline"]
    assert no_pipeline.startswith(begin + "Perseus needs a PipelineEngine; this engine is a DeepSpeedEngine: pass ")
    assert not any(second.values())


def differing_rank(blocks):
    messages = Messages()
    block = blocks[int(os.environ["RANK"])]
    engine = make_engine(make_module(2), **({} if block is None else {"perseus": block}))
    first = attach(engine, RecordingOptimizer)
    engine.train_batch(batches())
    told = messages.take()
    if block is not None:
        engine._config._param_dict["perseus"] = {**block, "strict": True}
    try:
        attach(engine, RecordingOptimizer)
        raised = ""
    except UsageError as error:
        raised = str(error)
    engine._config._param_dict["perseus"] = ENABLED
    assert attach(engine, RecordingOptimizer) is not None, "ranks that agree at last"
    return first, told, raised


@pytest.mark.parametrize(
    ("blocks", "enabled"),
    [
        (({"enabled": True}, {"enabled": False}), 0),
        (({"enabled": False}, {"enabled": True}), 1),
        (({"enabled": True}, None), 0),
    ],
)
@pytest.mark.usefixtures("_simulated")
def test_ranks_that_differ_in_enabled_train_on_at_once_with_the_reason(blocks, enabled):
    answers = run_engines(2, differing_rank, blocks)
    other = "false" if blocks[1 - enabled] else "missing"
    reason = (
        f'perseus.enabled is true on rank {enabled} and {other} on rank {1 - enabled}; use the same "perseus" block'
    )
    (attached, (message,), raised), quiet = answers[enabled], answers[1 - enabled]
    assert attached is None
    assert message.startswith(f"Perseus is off; training continues: {reason}")
    assert raised.startswith(reason)
    assert quiet == (None, [], "")
