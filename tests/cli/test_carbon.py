"""`zeus-core carbon`."""

import math
from datetime import datetime, timedelta

import pytest

from zeus_core.cli import main
from zeus_core.measurement import Measurement
from zeus_core.optimizer.trial_store import Conditions, JsonTrialStore
from zeus_core.search import Trial

POINTS = [(300, 1.0, 290.0), (250, 1.03, 240.0), (200, 1.12, 196.0)]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with points and twenty days of electricity that is cleanest at 18:00."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{setting},{seconds},{watts}\n" for setting, seconds, watts in POINTS)
    (tmp_path / "points.csv").write_text("setting,seconds_per_step,watts\n" + rows)
    times = [datetime(2026, 2, 1) + timedelta(hours=hour) for hour in range(24 * 20)]
    values = [400 + 200 * math.sin(math.tau * time.hour / 24) for time in times]
    lines = "".join(f"{time},{value:.1f}\n" for time, value in zip(times, values, strict=True))
    (tmp_path / "carbon.csv").write_text("timestamp,value\n" + lines)


def run(mode, *more, points="points.csv"):
    arguments = [mode, points, "--signal", "carbon.csv", "--zone", "UTC", "--hours", "10", "--slowdown", "2", *more]
    return main(["carbon", *arguments])


def amounts(capsys):
    """The grams of each way of running, as printed."""
    _, *rows, last = capsys.readouterr().out.splitlines()
    return {row[:20].strip(): float(row[20:].split()[0]) for row in rows}, last


BEGIN = ("--begin", "2026-02-16T00:00+00:00")


def test_one_begin_is_replayed_in_four_ways(capsys):
    assert run("replay", *BEGIN, "--idle-watts", "20") == 0
    grams, last = amounts(capsys)
    # By hand: at full power 290 W for ten hours, in hours of 400 + 200 sin(2 pi h / 24).
    assert grams["full power"] == pytest.approx(
        sum(0.29 * (400 + 200 * math.sin(math.tau * hour / 24)) for hour in range(10)), rel=1e-3
    )
    assert grams["with foresight"] <= 1.005 * grams["following it"]
    assert grams["following it"] < grams["best fixed settings"] < grams["full power"]
    assert last.startswith("Following the carbon intensity gains ")


def test_a_profile_of_a_search_holds_points_too(tmp_path, capsys):
    trials = [
        Trial(setting, 100, Measurement.from_energies(100 * seconds, {0: 100 * seconds * watts}))
        for setting, seconds, watts in POINTS
    ]
    JsonTrialStore(tmp_path / "profile.json").save(Conditions(("A100",)), trials)
    assert run("replay", *BEGIN) == 0
    from_csv = amounts(capsys)
    assert run("replay", *BEGIN, points="profile.json") == 0
    assert amounts(capsys) == from_csv


def test_a_file_that_states_unit_and_zone_needs_neither(tmp_path, capsys):
    rows = (tmp_path / "carbon.csv").read_text().splitlines()[1:]
    (tmp_path / "prices.csv").write_text(
        "Time (UTC);Day;Price (€/MWh)\n"
        + "".join(f"{time};x;{value.replace('.', ',')}\n" for time, value in (row.split(",") for row in rows))
    )
    arguments = ["carbon", "plan", "points.csv", "--signal", "prices.csv", "--hours", "10", "--column", "price"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split()[0] == "EUR"
    assert shown.err == "zeus-core: --signal is prices.csv (€/MWh, UTC)\n"


def test_a_plan_is_the_mean_over_many_begins(capsys):
    assert run("plan") == 0
    grams, last = amounts(capsys)
    assert grams["following it"] < grams["full power"]
    assert "(mean of 20 begins)" in last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay"], "--begin is missing; replay needs a time between 2026-02-01"),
        (["replay", "--begin", "noon"], "--begin is 'noon'; it must be a time between"),
        (["replay", "--begin", "2026-02-10"], "which has no offset; add one"),
        (["replay", "--begin", "2020-01-01T00:00+00:00"], "so that the record covers the training"),
        (["plan", "--hours", "1000"], "--signal has 20.0 days, and the training may take 83.3"),
        (["plan", "--slowdown", "0.5"], "--slowdown is 0.5; it must be at least 1"),
        (["plan", "--unit", "kg"], "unit is 'kg'"),
        (["plan", "--zone", "Mars"], "zone is 'Mars'"),
        (["plan", "--signal", "none.csv"], "none.csv"),
    ],
)
def test_wrong_arguments_get_one_line(arguments, said, capsys):
    assert run(*arguments) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "its first line must name the columns setting, seconds_per_step, watts"),
        ("setting,seconds_per_step,watts\n", "has no points"),
        ("setting,seconds_per_step,watts\n300,0,290\n", "line 2: seconds_per_step is '0'"),
        ("setting,seconds_per_step,watts\n300,1\n", "line 2: watts is None"),
        ("{", "cannot be read"),
        ('{"format": "zeus-core trials", "version": 2, "profiles": 3}', "they must be a list of objects"),
        ('{"format": "zeus-core trials", "version": 2, "profiles": []}', "has no points"),
    ],
)
def test_damaged_points_get_one_line(text, said, tmp_path, capsys):
    (tmp_path / "damaged").write_text(text)
    assert run("plan", points="damaged") == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.splitlines()) == 1
