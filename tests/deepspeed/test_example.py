"""The example behind `make demo-perseus`, as a user runs it.

It is in real time, so a busy machine has a say in how much is saved, and whether a plan saves at all: that is tested in
virtual time, elsewhere.
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
from zeus_core.cli import main
from zeus_core.pipeline import schedules, write_plan
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_deepspeed._config import read_perseus_block

EXAMPLE = ROOT / "examples" / "deepspeed" / "train_gpt2_pipeline.py"
CONFIG = EXAMPLE.parent / "ds_config.json"
SENTENCE = r"The plan saves (-?[\d.]+)% of the energy of an iteration, for ([+-][\d.]+)% time\."
SHORT = {"check_steps": 5, "tolerance_fraction": 0.5}


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
        timeout=560,
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


def check_end(finished):
    """See how a run has ended. Returns whether a plan was measured; if not, the reason is none of ours."""
    if finished.returncode == 1:
        assert "no plan was measured\n" in finished.stderr, finished.stderr
        assert re.search("planning anew|continues at the original clocks", finished.stderr), finished.stderr
        assert "is off for the rest of this run" not in finished.stderr, finished.stderr
        return False
    assert finished.returncode == 0, finished.stderr
    assert "clocks under load after training (MHz): 1410, 1410, 1410, 1410\n" in finished.stdout, finished.stdout
    return True


def check_claims(printed):
    """See that what is printed agrees with itself and with the simulated GPUs, and that the profile can be planned."""
    last = re.fullmatch(SENTENCE, printed.splitlines()[-1])
    saving, slowdown = float(last[1]) / 100, 1 + float(last[2]) / 100
    before, _, after = (cost(printed, name) for name in ("before", "predicted", "after"))
    assert saving == pytest.approx(1 - after[1] / before[1], abs=0.002)
    assert slowdown == pytest.approx(after[0] / before[0], abs=0.003)
    true_saving = re.search(r"^truth: .* of the simulated GPUs: saving (-?[\d.]+)%$", printed, re.MULTILINE)
    if "judging" not in printed:  # or it is compared with later steps
        assert saving == pytest.approx(float(true_saving[1]) / 100, abs=0.1)
    command = re.search(r"^pictures of its plans: zeus-core (plan .*) --output FOLDER$", printed, re.MULTILINE)[1]
    assert main(command.split()) == 0


def test_the_configuration_is_short_and_right():
    assert read_perseus_block(json.loads(CONFIG.read_text())).enabled


@pytest.mark.long
def test_a_wrong_key_is_a_sentence(tmp_path):
    finished = run(tmp_path, *short(tmp_path, slowdown_facter=1.1))
    assert finished.returncode == 2
    assert "perseus.slowdown_facter is not known; did you mean 'slowdown_factor'?" in finished.stderr.splitlines()


@pytest.mark.long
def test_the_launcher_of_deepspeed_deploys_a_plan_with_activation_checkpointing(tmp_path):
    schedule = schedules.one_f_one_b(4, json.loads(CONFIG.read_text())["gradient_accumulation_steps"])
    clocks_mhz = tuple((1200,) * len(order) for order in schedule.ranks)
    write_plan(Plan("slower", schedule, clocks_mhz, 0.01, 1.0, 0, 0.0, 0.0, ""), tmp_path / "plan.json")
    script = Path(sysconfig.get_path("scripts")) / "deepspeed"
    # Run by Python itself: the first line of the script names none where there is a space in the path.
    launcher = [sys.executable, script, "--num_accelerators", "4"]
    arguments = [*short(tmp_path, plan_path=str(tmp_path / "plan.json")), "--activation-checkpointing"]
    finished = run(tmp_path, *arguments, launcher=launcher)
    if check_end(finished):
        assert re.search(f"^{SENTENCE}$", finished.stdout, re.MULTILINE), finished.stdout  # the launcher speaks last
    assert "profiling" not in finished.stdout
    assert "replaying" in finished.stdout


@pytest.mark.long
def test_the_demonstration_keeps_its_claims_and_writes_only_into_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = run(tmp_path, "--output", "zeus-demo/perseus")
    if check_end(finished):
        check_claims(finished.stdout)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "zeus-demo"}
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
