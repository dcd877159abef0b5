"""The ways in which an engine gets Perseus."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import deepspeed
import pytest
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine

import zeus_deepspeed
from tests.deepspeed.engines import batches, make_engine, make_module, run_engines
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.errors import UsageError

ROOT = Path(__file__).parents[2]
QUICK = {"enabled": True, "warmup_steps": 1, "profile_instructions": 1, "max_clocks": 2, "check_steps": 2}


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A40:2")


def trained(initialize, **blocks):
    engine = make_engine(make_module(2), initialize, **blocks)
    losses = [engine.train_batch(batches(step)).item() for step in range(8)]
    kind = type(vars(engine)["perseus"].optimizer).__name__ if "perseus" in vars(engine) else None
    engine.destroy()
    return kind, losses


def enabled_rank():
    plain = trained(deepspeed.initialize, perseus=QUICK)
    drop_in = trained(zeus_deepspeed.initialize, perseus=QUICK)
    switched_off = trained(zeus_deepspeed.initialize, perseus={**QUICK, "enabled": False})
    auto = importlib.import_module("zeus_deepspeed.auto")
    auto.enable()  # as importing it has done
    automatic = trained(deepspeed.initialize, perseus=QUICK)
    both = trained(zeus_deepspeed.initialize, perseus=QUICK)
    without = trained(deepspeed.initialize)
    with pytest.raises(UsageError, match=r"^perseus\.slowdown is not known"):
        make_engine(make_module(2), perseus={"slowdown": 1})
    auto.disable()
    disabled = trained(deepspeed.initialize, perseus=QUICK)
    assert {tuple(losses) for _, losses in (plain, drop_in, switched_off, automatic, both, without, disabled)} == {
        tuple(plain[1])
    }
    return [kind for kind, _ in (plain, drop_in, switched_off, automatic, both, without, disabled)]


def test_each_way_gives_an_engine_perseus_and_the_same_losses():
    ours = "PipelineFrequencyOptimizer"
    for kinds in run_engines(2, enabled_rank):
        assert kinds == [None, ours, None, ours, ours, None, None]


def test_disabling_leaves_the_constructors_as_they_were():
    found = PipelineEngine.__init__, DeepSpeedEngine.__init__
    auto = importlib.import_module("zeus_deepspeed.auto")
    auto.enable()
    assert PipelineEngine.__init__ is not found[0]
    auto.disable()
    auto.disable()
    assert (PipelineEngine.__init__, DeepSpeedEngine.__init__) == found


def run_python(*arguments, folder=None, **variables):
    ours = [str(ROOT), str(ROOT / "integrations" / "deepspeed")]
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), *ours]
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


SCRIPT = """
import sys
import deepspeed
import neighbour
from tests.deepspeed.engines import batches, make_engine, make_module

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
engine = make_engine(make_module(1), perseus={"enabled": True})
engine.train_batch(batches())
print("ran", __name__, sys.argv, type(engine.perseus.optimizer).__name__)
engine.destroy()
"""


@pytest.mark.long
def test_a_script_is_run_as_by_python_itself(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").touch()
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    script = str(tmp_path / "train.py")
    ended = run_python("-m", "zeus_deepspeed", "--local_rank=0", script, "--lr", "1", DS_ACCELERATOR="cpu", **alone)
    assert ended.returncode == 0, ended.stderr
    assert f"ran __main__ {[script, '--local_rank=0', '--lr', '1']} PipelineFrequencyOptimizer" in ended.stdout


def test_without_a_script_the_usage_is_said():
    ended = run_python("-m", "zeus_deepspeed")
    assert ended.returncode == 1
    assert ended.stderr == "usage: python -m zeus_deepspeed SCRIPT [ARGUMENT ...]\n"


def test_importing_takes_neither_deepspeed_nor_torch():
    program = "import sys, zeus_deepspeed; print({'deepspeed', 'torch'} & set(sys.modules))"
    assert run_python("-c", program).stdout == "set()\n"


@pytest.mark.parametrize(
    "use", ["zeus_deepspeed.initialize()", "zeus_deepspeed.attach(None)", "import zeus_deepspeed.auto"]
)
def test_without_deepspeed_the_pip_line_is_said(use):
    ended = run_python("-S", "-c", f"import zeus_deepspeed; {use}", PYTHONPATH=f"{ROOT}:{ROOT}/integrations/deepspeed")
    assert ended.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: deepspeed is not installed: pip install -e '{ROOT}[deepspeed]'"
    )
