"""`zeus-core carbon`."""

import math
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from zeus_core.carbon.carbon_command import best_start_lines
from zeus_core.cli import main
from zeus_core.electricity import RecordedSignal
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.optimizer.trial_store import Conditions, JsonTrialStore
from zeus_core.search import Trial

POINTS = [(300, 1.0, 290.0), (250, 1.03, 240.0), (200, 1.12, 196.0)]
NOW = datetime(2026, 3, 1, 12, 10, tzinfo=UTC)


def write_carbon(path, begin, hours):
    """Write hours of electricity that is cleanest at 18:00."""
    times = [begin + timedelta(hours=hour) for hour in range(hours)]
    values = [400 + 200 * math.sin(math.tau * time.hour / 24) for time in times]
    lines = "".join(f"{time},{value:.1f}\n" for time, value in zip(times, values, strict=True))
    path.write_text("timestamp,value\n" + lines)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with the profile of a search, and twenty days of electricity."""
    monkeypatch.chdir(tmp_path)
    trials = [
        Trial(setting, 100, Measurement.from_energies(100 * seconds, {0: 100 * seconds * watts}))
        for setting, seconds, watts in POINTS
    ]
    JsonTrialStore(tmp_path / "profile.json").save(Conditions(("A100",)), trials)
    write_carbon(tmp_path / "carbon.csv", datetime(2026, 2, 1), 24 * 20)


def run(*more, signal="carbon.csv,g/kWh,UTC", points="profile.json"):
    return main(["carbon", signal, "--points", points, "--duration", "10h", "--deadline", "20h", *more])


def amounts(capsys):
    """The grams of each way of running, as printed."""
    _, *rows, last = capsys.readouterr().out.splitlines()
    return {row[:20].strip(): float(row[20:].split()[0]) for row in rows}, last


def test_one_begin_is_replayed_in_four_ways(tmp_path, capsys):
    write_carbon(tmp_path / "one.csv", datetime(2026, 2, 16), 21)
    assert run("--idle-watts", "20", signal="one.csv,g/kWh,UTC") == 0
    grams, last = amounts(capsys)
    # By hand: at full power 290 W for ten hours, in hours of 400 + 200 sin(2 pi h / 24).
    assert grams["full power"] == pytest.approx(
        sum(0.29 * (400 + 200 * math.sin(math.tau * hour / 24)) for hour in range(10)), rel=1e-3
    )
    assert grams["with foresight"] <= 1.005 * grams["following it"]
    assert grams["following it"] <= grams["best fixed settings"] < grams["full power"]
    assert last.startswith("Following the carbon intensity gains ")


def test_a_file_that_states_unit_and_zone_needs_neither(tmp_path, capsys):
    rows = (tmp_path / "carbon.csv").read_text().splitlines()[1:]
    (tmp_path / "prices.csv").write_text(
        "Time (UTC);Day;Price (€/MWh)\n"
        + "".join(f"{time};x;{value.replace('.', ',')}\n" for time, value in (row.split(",") for row in rows))
    )
    assert run(signal="prices.csv") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split()[0] == "EUR"
    assert shown.err == "zeus-core: the signal is prices.csv (€/MWh, UTC)\n"


def test_the_gain_is_the_mean_over_many_begins(capsys):
    assert run() == 0
    grams, last = amounts(capsys)
    assert grams["following it"] < grams["full power"]
    assert "(mean of 20 begins)" in last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--deadline", "1000h"], "the signal has 20.0 days, and the run may take 41.7"),
        (["--deadline", "5h"], "--deadline is 5h, and the run takes 10 h; give more"),
        (["--deadline", "soon"], "--deadline is 'soon'; it must be a time such as 2026-12-01T08:00"),
        (["--duration", "long"], "'long' is not a duration such as 3h, 90m or 1h30m"),
        (["--signal", "carbon.csv"], "there is no option '--signal'; zeus-core carbon FILE,UNIT,ZONE"),
        (["--zone", "UTC"], "zeus-core carbon FILE,UNIT,ZONE"),
        (["--column", "life"], "keep one column of values, and the rows of one area"),
    ],
)
def test_wrong_arguments_get_one_line(arguments, said, capsys):
    try:
        code = run(*arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.replace("zeus-core: the signal is carbon.csv (g/kWh, UTC)\n", "").splitlines()) == 1


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        ("carbon.csv,kg,UTC", "unit is 'kg'"),
        ("carbon.csv,g/kWh,Mars", "zone is 'Mars'"),
        ("carbon.csv", "the unit of 'value' is not known; give it, such as g/kWh or EUR/MWh"),
        ("carbon.csv,g/kWh", "names no time zone; give it, such as UTC"),
        ("none.csv", "there is no file 'none.csv'"),
    ],
)
def test_wrong_signals_get_one_line(signal, said, capsys):
    assert run(signal=signal) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ('{"format": "zeus-core trials", "version": 2, "profiles": 3}', "it must be an array"),
        ('{"format": "zeus-core trials", "version": 2, "profiles": []}', "has no trials of a search"),
    ],
)
def test_damaged_points_get_one_line(text, said, tmp_path, capsys):
    (tmp_path / "damaged").write_text(text)
    assert run(points="damaged") == 2
    errors = capsys.readouterr().err.splitlines()[1:]
    assert said in errors[0]
    assert len(errors) == 1


def prices(tmp_path):
    """Hourly prices until the next noon, the lowest from 03:00 to 05:00."""
    begin = NOW.replace(minute=0) - timedelta(hours=4)
    hours = [begin + timedelta(hours=hour) for hour in range(29)]
    rows = "".join(f"{hour.isoformat()},{40 if hour.hour in (3, 4) else 100}\n" for hour in hours)
    (tmp_path / "prices.csv").write_text("Begin,Price (EUR/MWh)\n" + rows)
    return RecordedSignal.from_csv(tmp_path / "prices.csv")


def test_the_cheapest_start_is_printed_for_sbatch_and_at(tmp_path):
    now = NOW.timestamp()
    reason, commands = best_start_lines(prices(tmp_path), now, now + 19 * 3600 + 50 * 60, 2 * 3600)
    begin = datetime(2026, 3, 2, 3, tzinfo=UTC).astimezone()
    assert commands == [f"sbatch --begin={begin:%Y-%m-%dT%H:%M:%S}", f"at -t {begin:%Y%m%d%H%M}"]
    assert "in 14 h 50 min: 0.04 EUR/kWh are expected over 2 h, and 0.1 now, -60%" in reason
    assert "(100% of the time until the deadline is in the file)" in reason


@pytest.mark.parametrize(
    ("later_hours", "deadline_hours", "hours", "said"),
    [
        (0, 9, 2, "start at once: 0.1 EUR/kWh are expected over 2 h, and no less later"),
        (0, 1, 1.5, "cannot be kept, the end is 30 min after it"),
        (0, -500, 1.5, "start at once: the deadline 2026-02-"),
        (365 * 24, 19, 2, "too old for a forecast"),
    ],
)
def test_a_run_starts_at_once_where_waiting_gains_nothing(tmp_path, later_hours, deadline_hours, hours, said):
    now = NOW.timestamp() + 3600 * later_hours
    reason, commands = best_start_lines(prices(tmp_path), now, now + 3600 * deadline_hours, 3600 * hours)
    assert said in reason
    assert commands == ["sbatch --begin=now", "at now"]


def test_a_deadline_that_nobody_can_foresee_is_refused(tmp_path):
    with pytest.raises(UsageError, match="within 31 days"):
        best_start_lines(prices(tmp_path), NOW.timestamp(), NOW.timestamp() + 40 * 86_400, 3600)


def test_a_shell_takes_the_first_line_as_a_command(tmp_path):
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = "".join(f"{(begin + timedelta(hours=hour)).isoformat()},{500 - 10 * hour}\n" for hour in range(30))
    (tmp_path / "falling.csv").write_text("Begin,gCO2/kWh\n" + rows)
    program = f"{shlex.quote(sys.executable)} -m zeus_core carbon falling.csv --duration 1h --deadline 24h"
    shell = f"sbatch() {{ echo submitted $1 $2; }}; $({program} | head -1) train.sh"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=240)
    assert ended.stdout.startswith("submitted --begin=20"), ended.stderr
    assert ended.stdout.endswith(":00 train.sh\n")
    assert "zeus-core: start at 20" in ended.stderr
