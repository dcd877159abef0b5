"""`zeus-core allocate`."""

import json

import pytest

from zeus_core.cli import main
from zeus_core.mixed._allocation_report import shares_table
from zeus_core.mixed.allocation import DeviceProfile, allocate
from zeus_core.mixed.allocation._fit import MeasuredBatch
from zeus_core.mixed.allocation.allocation_plan import read_plan


@pytest.fixture
def profiles(tmp_path):
    """Two GPU models in both kinds of files: one is a table, the other JSON."""
    rows = [
        (batch, limit, 0.004 + 0.001 * batch * (300 / limit) ** 0.6, 0.95 * limit)
        for batch in (16, 64, 128)
        for limit in (300, 225, 150)
    ]
    table = "\n".join(["batch_size,power_limit,seconds,watts", *(",".join(map(str, row)) for row in rows), ""])
    (tmp_path / "fast.csv").write_text(table)
    points = tuple(MeasuredBatch(limit, batch, 2 * seconds, watts) for batch, limit, seconds, watts in rows)
    (tmp_path / "slow.json").write_text(json.dumps(DeviceProfile("slow", points, 50.0).to_json()))
    return [str(tmp_path / "fast.csv"), str(tmp_path / "slow.json"), "--blocking-power", "70"]


def test_profiles_become_a_plan_a_comparison_and_a_picture(profiles, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["allocate", *profiles, "--global-batch", "160", "--output", str(output)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:4]] == ["even", "proportional", "allocation"]
    plan = read_plan(output / "plan.json")
    assert plan.global_batch == 160
    assert plan.batches[0] > plan.batches[1]
    assert plan.objective.startswith("ZeusCost")
    first = next(line.split() for line in printed if line.split()[:2] == ["0", "fast"])
    assert first[2:5] == [str(plan.batches[0]), str(plan.ranks[0].setting), "W"]
    assert (output / "allocation.svg").read_text().startswith("<?xml")


def test_waiting_is_drawn_as_such(profiles, capsys):
    assert main(["allocate", *profiles, "--global-batch", "128", "--level"]) == 0
    printed = capsys.readouterr().out
    fast = next(line for line in printed.splitlines() if " fast " in line)
    assert " 64 " in fast
    assert "150 W" in fast  # it would wait
    bar = fast.split()[-1]
    assert bar == "#" * bar.count("#") + "." * bar.count(".")
    assert len(bar) == 32
    assert "." in bar


@pytest.mark.parametrize("more", [["--slowdown", "10%", "--gpus", "3,5"], ["--level", "--budget-watts", "450"]])
def test_the_aim_can_be_chosen(profiles, tmp_path, more):
    arguments = ["allocate", *profiles, "--global-batch", "192", *more]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert read_plan(tmp_path / "out" / "plan.json").global_batch == 192


def test_many_alike_are_one_line(profiles, capsys):
    assert main(["allocate", *profiles, "--global-batch", "16000", "--gpus", "64,64"]) == 0
    assert capsys.readouterr().out.count("\n") < 60


def test_extrapolations_are_marked(tmp_path):
    rows = "".join(f"{batch},250,{0.01 + 0.001 * batch},200\n" for batch in (16, 64))
    (tmp_path / "table.csv").write_text(f"batch_size,power_limit,seconds,watts\n{rows}")
    device = DeviceProfile.from_csv(tmp_path / "table.csv", "V100", 50.0).options(max_batch=600)
    printed = shares_table(allocate([device, device], 400))
    assert " * \n" in printed.replace("*\n", " * \n")
    assert "the prediction is an extrapolation" in printed


def test_what_does_not_fit_is_not_compared(profiles, tmp_path, capsys):
    points = tuple(MeasuredBatch(limit, batch, 0.1 * batch, 200.0) for batch in (16, 60) for limit in (300, 150))
    (tmp_path / "small.json").write_text(json.dumps(DeviceProfile("small", points, 50.0).to_json()))
    given = [profiles[0], str(tmp_path / "small.json"), *profiles[2:]]
    assert main(["allocate", *given, "--global-batch", "160"]) == 0
    captured = capsys.readouterr()
    assert "not compared: rank 1 (small) has a batch of 80 in the even plan, but holds 60" in captured.err


def test_fits_that_are_far_off_are_said(tmp_path, capsys):
    rows = ["batch_size,power_limit,seconds,watts", "8,250,1,100", "16,250,3,200", "32,250,3,200", "64,250,12,200", ""]
    (tmp_path / "odd.csv").write_text("\n".join(rows))
    assert main(["allocate", str(tmp_path / "odd.csv"), "--blocking-power", "50", "--global-batch", "32"]) == 0
    assert "odd at 250: measured steps are off their fit by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget-watts", "400"], "--budget-watts needs --level"),
        (["--level", "--budget-watts", "100"], "the lowest settings together take 300 W"),
        (["--gpus", "1,2,3"], "--gpus has 3 values, but there are 2 profiles"),
        (["--output", "/dev/null/x"], "--output is '/dev/null/x', which cannot be written"),
    ],
)
def test_wrong_arguments_are_one_line(profiles, capsys, more, message):
    assert main(["allocate", *profiles, "--global-batch", "128", *more]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert message in printed[-1]
    assert all(line.startswith("zeus-core: ") for line in printed)


def test_a_table_needs_the_blocking_power(profiles, capsys):
    assert main(["allocate", profiles[0], "--global-batch", "64"]) == 2
    assert "give --blocking-power, such as 60" in capsys.readouterr().err
