"""The example behind `make demo-perseus`, as a user runs it.

It is in real time, so a busy machine has a say in how much is saved: that is tested in virtual time, elsewhere.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from zeus_core.pipeline import read_plan
from zeus_deepspeed._config import read_perseus_block

EXAMPLE = ROOT / "examples" / "deepspeed" / "train_gpt2_pipeline.py"
CONFIG = EXAMPLE.parent / "ds_config.json"
SENTENCE = r"The plan saves (-?[\d.]+)% of the energy of an iteration, for ([+-][\d.]+)% time\."
SHORT = {"max_clocks": 3, "check_steps": 5, "tolerance_fraction": 0.5}


def run(folder, *arguments, launcher=(sys.executable,)):
    home = folder / "home"
    home.mkdir(exist_ok=True)
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT), str(ROOT / "integrations" / "deepspeed")]
    return subprocess.run(
        [*launcher, EXAMPLE, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


def short(folder, **keys):
    """The arguments of a run of some 15 s."""
    config = json.loads(CONFIG.read_text())
    config["perseus"] |= {**SHORT, **keys}
    (folder / "short.json").write_text(json.dumps(config))
    return ["--config", "short.json", "--block-seconds", "0.005"]


def cost(printed, name):
    found = re.search(rf"^{name}: +([\d.]+) s and ([\d.]+) J per iteration$", printed, re.MULTILINE)
    return float(found[1]), float(found[2])


def check_claims(finished, folder):
    """See that what is printed agrees with itself, with the simulated GPUs, and with the files. Returns it."""
    assert finished.returncode == 0, finished.stderr
    printed = finished.stdout
    last = re.fullmatch(SENTENCE, printed.splitlines()[-1])
    saving, slowdown = float(last[1]) / 100, 1 + float(last[2]) / 100
    before, predicted, after = (cost(printed, name) for name in ("before", "predicted", "after"))
    assert predicted[1] == pytest.approx(after[1], rel=0.5)
    assert saving == pytest.approx(1 - after[1] / before[1], abs=0.002)
    assert slowdown == pytest.approx(after[0] / before[0], abs=0.003)
    true_saving = re.search(r"^truth: .* of the simulated GPUs: saving (-?[\d.]+)%$", printed, re.MULTILINE)
    assert saving == pytest.approx(float(true_saving[1]) / 100, abs=0.04)
    assert "clocks under load after training (MHz): 1410, 1410, 1410, 1410\n" in printed
    plan = read_plan(folder / "plan.json")
    assert len(plan.clocks_mhz) == 4
    assert min(min(clocks) for clocks in plan.clocks_mhz) < 1410
    assert (folder / "timeline.png").stat().st_size > 10_000
    return printed


def test_the_configuration_is_short_and_right():
    assert read_perseus_block(json.loads(CONFIG.read_text())).enabled


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """The folder of a short run, and what it printed."""
    folder = tmp_path_factory.mktemp("short")
    return folder, run(folder, *short(folder))


@pytest.mark.long
def test_a_short_run_keeps_its_claims_and_writes_only_into_its_folder(short_run):
    folder, finished = short_run
    check_claims(finished, folder / "zeus-deepspeed")
    assert sorted(path.name for path in folder.iterdir()) == ["home", "short.json", "zeus-deepspeed"]
    assert [path for path in (folder / "home").rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_a_wrong_key_is_a_sentence(tmp_path):
    finished = run(tmp_path, *short(tmp_path, slowdown_facter=1.1))
    assert finished.returncode == 2
    assert "perseus.slowdown_facter is not known; did you mean 'slowdown_factor'?" in finished.stderr.splitlines()


@pytest.mark.long
def test_the_launcher_of_deepspeed_deploys_the_plan_of_another_run(short_run, tmp_path):
    folder, _ = short_run
    script = Path(sysconfig.get_path("scripts")) / "deepspeed"
    # Run by Python itself: the first line of the script names none where there is a space in the path.
    launcher = [sys.executable, script, "--num_accelerators", "4"]
    arguments = short(tmp_path, plan_path=str(folder / "zeus-deepspeed" / "plan.json"))
    finished = run(tmp_path, *arguments, launcher=launcher)
    assert finished.returncode == 0, finished.stderr
    assert "profiling" not in finished.stdout
    assert "replaying" in finished.stdout
    assert re.fullmatch(SENTENCE, finished.stdout.splitlines()[-1])


@pytest.mark.long
def test_torchrun_with_activation_checkpointing(tmp_path):
    torchrun = [Path(sysconfig.get_path("scripts")) / "torchrun", "--nproc-per-node", "4"]
    arguments = [*short(tmp_path), "--activation-checkpointing"]
    finished = run(tmp_path, *arguments, launcher=torchrun)
    printed = check_claims(finished, tmp_path / "zeus-deepspeed")
    times = re.findall(r"^stage 0 (?:forward|backward) +1410 MHz +([\d.]+) ms", printed, re.MULTILINE)
    assert float(times[1]) > 2.2 * float(times[0])


@pytest.mark.long
def test_the_demonstration(tmp_path):
    finished = run(tmp_path, "--output", "zeus-demo/perseus")
    check_claims(finished, tmp_path / "zeus-demo" / "perseus")
