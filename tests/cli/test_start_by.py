"""`zeus-core run --start-by`: the wait, in virtual time, and its end by a signal."""

import argparse
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from zeus_core.cli.run._start_by import add_start_by, wait_for_start
from zeus_core.errors import UsageError
from zeus_core.testing import VirtualTime

NOW = datetime(2026, 3, 1, 12, 10, tzinfo=UTC)


@pytest.fixture
def prices(tmp_path):
    """A file of hourly prices until the next noon, the lowest from 03:00 to 05:00."""
    begin = NOW.replace(minute=0) - timedelta(hours=4)
    hours = [begin + timedelta(hours=hour) for hour in range(29)]
    path = tmp_path / "prices.csv"
    rows = "".join(f"{hour.isoformat()},{40 if hour.hour in (3, 4) else 100}\n" for hour in hours)
    path.write_text("Begin,Price (EUR/MWh)\n" + rows)
    return path


@pytest.fixture
def clock():
    clock = VirtualTime()
    clock.set_clock(NOW.timestamp())
    return clock


def wait(clock, *options, sleep=None):
    parser = argparse.ArgumentParser()
    add_start_by(parser)
    arguments = parser.parse_args(list(map(str, options)))
    arguments.column, arguments.where = [], []
    return wait_for_start(arguments, clock.clock_seconds, sleep or clock.advance)


@pytest.mark.parametrize("deadline", ["2026-03-02T09:00+01:00", "19h50m"])
def test_it_waits_for_the_cheapest_hours_and_says_why(prices, clock, capsys, deadline):
    assert wait(clock, "--start-by", prices, "--deadline", deadline, "--duration", "2h") is None
    assert clock.clock_seconds() == datetime(2026, 3, 2, 3, tzinfo=UTC).timestamp()
    (said,) = capsys.readouterr().err.splitlines()
    assert "in 14 h 50 min: 0.04 EUR/kWh are expected then over 2 h, and 0.1 now, -60%" in said
    assert "(100% of the time until the deadline is in prices.csv (EUR/MWh))" in said


@pytest.mark.parametrize(
    ("deadline", "duration", "said"),
    [
        ("9h", "2h", "starts at once: 0.1 EUR/kWh are expected meanwhile, and no less later"),
        ("1h", "90m", "cannot be kept, the end is 30 min after it"),
        ("2026-02-01T00:00Z", "1h30m", "starts at once: the deadline 2026-02-01"),
    ],
)
def test_it_starts_at_once_where_waiting_gains_nothing(prices, clock, capsys, deadline, duration, said):
    assert wait(clock, "--start-by", prices, "--deadline", deadline, "--duration", duration) is None
    assert clock.clock_seconds() == NOW.timestamp()
    assert said in capsys.readouterr().err


def test_a_record_of_last_year_foresees_nothing(prices, clock, capsys):
    clock.set_clock(NOW.timestamp() + 365 * 86_400)
    assert wait(clock, "--start-by", prices, "--deadline", "19h", "--duration", "2h") is None
    assert "too old to foresee any" in capsys.readouterr().err


def test_a_clock_that_is_set_forward_ends_the_wait(prices, clock):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        clock.advance(seconds)
        if len(slept) == 3:
            clock.set_clock(NOW.timestamp() + 86_400)

    assert wait(clock, "--start-by", prices, "--deadline", "19h", "--duration", "2h", sleep=sleep) is None
    assert len(slept) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_cleanly(prices, clock, capsys, number):
    before = signal.getsignal(number)

    def sleep(seconds):
        os.kill(os.getpid(), number)

    code = wait(clock, "--start-by", prices, "--deadline", "19h", "--duration", "2h", sleep=sleep)
    assert code == 128 + number
    assert f"{number.name} ends the wait; the command was not started" in capsys.readouterr().err
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_program_ends_and_the_command_is_not_started(on_nothing, tmp_path, name):
    path = tmp_path / "prices.csv"
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    hours = [begin + timedelta(hours=hour) for hour in range(30)]
    path.write_text(
        "Begin,gCO2/kWh\n" + "".join(f"{hour.isoformat()},{500 - 10 * i}\n" for i, hour in enumerate(hours))
    )
    options = ["--start-by", path, "--deadline", "24h", "--duration", "1h"]
    program = on_nothing.start("run", *options, "--", "touch", tmp_path / "started")
    assert "starts at" in program.stderr.readline()
    program.send_signal(getattr(signal, name))
    _, said = program.communicate(timeout=240)
    assert program.returncode == 128 + getattr(signal, name)
    assert said == f"zeus-core: {name} ends the wait; the command was not started\n"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--deadline", "3h"], "--deadline is for --start-by"),
        (["--start-by", "prices.csv", "--deadline", "3h"], "needs --deadline and --duration"),
        (["--start-by", "prices.csv", "--deadline", "soon", "--duration", "1h"], "--deadline is 'soon'"),
        (["--start-by", "prices.csv", "--deadline", "40d", "--duration", "1h"], "within 31 days"),
        (["--start-by", "no.csv", "--deadline", "4h", "--duration", "1h"], "there is no file 'no.csv'"),
    ],
)
def test_wrong_arguments(clock, options, said):
    with pytest.raises(UsageError, match=said):
        wait(clock, *options)
