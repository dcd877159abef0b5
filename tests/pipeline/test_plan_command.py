"""`zeus-core plan`."""

import csv
import json

import pytest

from tests.pipeline.planner.instances import SPLIT, smooth_profile, with_blocking
from tests.support.variants import long_but_first
from zeus_core.cli import main
from zeus_core.errors import UsageError
from zeus_core.installed import install_command
from zeus_core.pipeline import PipelineProfile
from zeus_core.pipeline.planner import loops
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.pipeline.planner.frontier import rounding
from zeus_core.pipeline.testing import simulate_pipeline


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
    long_but_first(
        [
            ["--straggler", "5"],
            ["--schedule", "gpipe", "--slowdown", "10%"],
            ["--schedule", "interleaved:4"],
            ["--switch-seconds", "0.005"],
        ]
    ),
)
def test_what_is_planned_can_be_chosen(profile, tmp_path, more):
    output = tmp_path / "out"
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--blocking-power", "80,80,80,80", *more]
    assert main(["plan", *arguments, "--output", str(output)]) == 0
    assert read_plan(output / "plan.json").switch_seconds in (0.0, 0.005)


def test_rows_of_blocking_make_ranks_wait_at_lower_clocks(profile, tmp_path, capsys):
    with_blocking(profile, {1410: 84.0, 850: 60.0}).to_csv(tmp_path / "profile.csv")
    arguments = ["plan", str(tmp_path / "profile.csv"), "--microbatches", "6", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--switch-seconds", "0.005"]) == 0
    clocks = read_plan(tmp_path / "out" / "plan.json").waiting_clocks_mhz
    assert 850 in {clock for rank in clocks for clock in rank}
    assert main([*arguments, "--blocking-power", "80"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_the_power_of_waiting_comes_from_a_file_of_lowtime(profile, tmp_path, capsys):
    waiting = tmp_path / "p2p.csv"
    waiting.write_text("freq,time_ms,energy_mj\n850,100,6000\n1410.0,50,4200.5\n")
    path = tmp_path / "profile.csv"
    found = PipelineProfile.from_csv(path, blocking_power_watts=waiting)
    for stage in range(4):
        options = found.get(stage, "blocking").options
        watts = {option.clock_mhz: option.energy_joules / option.time_seconds for option in options}
        assert watts == {1410: pytest.approx(84.01), 850: pytest.approx(60.0)}
    assert found.blocking_power_watts == (pytest.approx(60.0),) * 4
    options = ["--microbatches", "6", "--blocking-power", str(waiting)]
    arguments = ["plan", str(path), *options, "--switch-seconds", "0.005", "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert 850 in {clock for rank in read_plan(tmp_path / "out" / "plan.json").waiting_clocks_mhz for clock in rank}
    with_blocking(profile, {1410: 84.0, 850: 60.0}).to_csv(path)
    with pytest.raises(UsageError, match="leave one out"):
        PipelineProfile.from_csv(path, blocking_power_watts=str(waiting))
    profile.to_csv(path)
    waiting.write_text("freq,time_ms,energy_mj\n850,100,much\n")
    capsys.readouterr()
    assert main(arguments) == 2
    assert "p2p.csv, line 2: energy_mj is 'much'" in capsys.readouterr().err
    waiting.write_text("clock,time,energy\n850,1,1\n")
    assert main(arguments) == 2
    assert "the first line must be freq,time_ms,energy_mj" in capsys.readouterr().err


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv"])
def test_a_json_profile_holds_its_own_blocking_power(tmp_path, schedule):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(smooth_profile(4, clocks=4, kinds=SPLIT).to_json()))
    arguments = ["plan", str(path), "--microbatches", "4", "--schedule", schedule]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "give --blocking-power"),
        (["--schedule", "gpipe"], "without 'blocking' rows"),
        (["--blocking-power", "nan"], "is nan"),
        (["--blocking-power", "80", "--schedule", "interleaved:3"], "cannot divide"),
        (["--blocking-power", "80", "--schedule", "zb-h1"], "measure backward-input"),
    ],
)
def test_wrong_arguments_are_named(profile, tmp_path, capsys, more, message):
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--output", str(tmp_path / "out"), *more]
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_example_alone_prints_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "gpt3-like"]) == 0
    assert "frontier " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    (tmp_path / "profile.csv").touch()
    assert main(["plan", "profile.csv"]) == 2
    assert "--microbatches is missing" in capsys.readouterr().err


def test_the_example_is_planned_with_baselines_and_reports_its_actions_at_once(tmp_path, capsys):
    arguments = ["plan", "gpt3-like", "--microbatches", "16", "--output", str(tmp_path)]
    assert main([*arguments, "--schedule", "interleaved", "--gpus", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("zeus-core: planning the example gpt3-like\n")
    assert "interleaved-1f1b: 8 stages on 4 ranks, 256 instructions an iteration; finding the front" in captured.err
    for name in ("highest clocks", "one clock", "one clock per stage", "frontier"):
        assert name in captured.out


def test_what_takes_longer_without_a_compiler_is_said(profile, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loops, "has_compiler", lambda: False)
    monkeypatch.setattr(rounding, "_VISITS", 1000)
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "2", "--output", str(tmp_path / "out")]
    assert main(["plan", *arguments, "--blocking-power", "80"]) == 0
    assert install_command("pipeline") in capsys.readouterr().err


def test_waiting_that_seems_dearer_than_work_is_a_warning(profile, tmp_path, capsys):
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--output", str(tmp_path / "out")]
    assert main(["plan", *arguments, "--blocking-power", "300"]) == 0
    assert "warning: the blocking power, 300 W, is above the power of the work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("0,forward,1410,", "0,forward,1410,1e308,9\n0,forward,1400,", 1), "time is 1e+308"),
        (lambda text: text.replace("0,forward,1410,", "0,forward,1410,inf,9\n0,forward,1400,", 1), "time is inf"),
        (lambda text: text.replace("0,forward,1410,", "0,forward,1410,nan,9\n0,forward,1400,", 1), "time is nan"),
        (lambda text: text + f"{2**70},forward,1410,1,9\n", "stage"),
    ],
)
def test_a_csv_with_impossible_numbers_is_one_line(profile, tmp_path, capsys, change, message):
    path = tmp_path / "profile.csv"
    path.write_text(change(path.read_text()))
    arguments = [str(path), "--microbatches", "4", "--blocking-power", "80", "--output", str(tmp_path / "out")]
    assert main(["plan", *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--gpus", "1,2"], "gpus has 2 values, but the profile has 4 stages"),
        (["--blocking-power", "80,80"], "blocking_power_watts has 2 values"),
    ],
)
def test_lists_of_the_wrong_length_are_named(profile, tmp_path, capsys, more, message):
    arguments = [str(tmp_path / "profile.csv"), "--microbatches", "4", "--output", str(tmp_path / "out")]
    assert main(["plan", *arguments, *([] if "--blocking-power" in more else ["--blocking-power", "80"]), *more]) == 2
    assert message in capsys.readouterr().err


def test_deep_json_is_one_line(tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text("[" * 100_000)
    assert main(["plan", str(path), "--microbatches", "4", "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "more",
    [
        ["--microbatches", str(2**70)],
        ["--microbatches", "-3"],
        ["--schedule", "interleaved:0"],
        ["--gpus", str(2**70)],
        ["--slowdown", "1.1"],
        ["--slowdown", "nan"],
        ["--switch-seconds", "inf"],
        ["--schedule", "2f2b"],
        ["--microbatches"],
        ["--speed"],
    ],
)
def test_an_argument_that_cannot_be_parsed_is_one_line(tmp_path, capsys, more):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "gpt3-like", "--microbatches", "4", "--output", str(tmp_path / "out"), *more])
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert more[0] in printed
    assert more[-1] in printed
