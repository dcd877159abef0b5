"""`zeus-core plan`."""

import csv
import json

import pytest

from tests.pipeline.instances import SPLIT, smooth_profile
from zeus_core.cli import main
from zeus_core.pipeline import read_plan
from zeus_core.testing import simulate_pipeline

pytestmark = pytest.mark.usefixtures("loggers_of_others")


@pytest.fixture
def profile(tmp_path):
    found = smooth_profile(4, clocks=6)
    found.to_csv(tmp_path / "profile.csv")
    return found


def test_a_profile_becomes_a_frontier_a_plan_and_pictures(profile, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = [tmp_path / "profile.csv", "--microbatches", 6, "--blocking-power", 80, "--output", output]
    assert main(["plan", *map(str, arguments)]) == 0
    printed = capsys.readouterr().out
    assert "highest clocks" in printed
    assert "frontier" in printed
    plan = read_plan(output / "plan.json")
    assert simulate_pipeline(profile, plan).energy_joules == pytest.approx(plan.energy_joules, rel=1e-9)
    with (output / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["time_seconds"]) <= plan.time_seconds <= float(rows[-1]["time_seconds"])
    assert (output / "frontier.svg").read_text().startswith("<?xml")
    assert (output / "timeline.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    "more",
    [
        ["--schedule", "gpipe", "--slowdown", "1.1"],
        ["--schedule", "interleaved", "--time", "5"],
        ["--straggler", "5", "--pictures", "png"],
        ["--switch-seconds", "0.005", "--dwell-seconds", "0.1", "--pictures", "none"],
    ],
)
def test_what_is_planned_can_be_chosen(profile, tmp_path, more):
    output = tmp_path / "out"
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--blocking-power", "80,80,80,80", *more]
    assert main(["plan", *arguments, "--output", str(output)]) == 0
    assert read_plan(output / "plan.json").switch_seconds in (0.0, 0.005)
    assert (output / "timeline.png").exists() == ("png" in more)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv"])
def test_a_json_profile_holds_its_own_blocking_power(tmp_path, schedule):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(smooth_profile(4, clocks=4, kinds=SPLIT).to_json()))
    arguments = ["plan", str(path), "--microbatches", "4", "--schedule", schedule, "--pictures", "none"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "give --blocking-power"),
        (["--blocking-power", "nan"], "is nan"),
        (["--blocking-power", "80", "--time", "0.01"], "T_min"),
        (["--blocking-power", "80", "--schedule", "interleaved", "--stages-per-rank", "3"], "cannot divide"),
        (["--blocking-power", "80", "--schedule", "zb-h1"], "no 'backward-input' of stage 0"),
        (["--blocking-power", "80", "--device", "A100-SXM4-80GB"], "does not support"),
    ],
)
def test_wrong_arguments_are_named(profile, tmp_path, capsys, more, message):
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--output", str(tmp_path / "out"), *more]
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
