"""Signals: what they say at any time, and what they refuse."""

from __future__ import annotations

import logging
import math
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.signal import SignalContract
from zeus_core.electricity import ConstantSignal, RecordedSignal, Signal, WeeklyTariff
from zeus_core.electricity.signal import Basis
from zeus_core.errors import UsageError

BERLIN = ZoneInfo("Europe/Berlin")
MARCH = 1_772_323_200.0  # 2026-03-01 00:00 UTC
HOUR = 3600.0
NIGHTS_AND_DAYS = {"Mon-Fri 07:00-22:00": 0.32, "Mon-Fri 22:00-07:00": 0.22, "Sat,Sun 00:00-24:00": 0.20}


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def value_at(signal: Signal, seconds: float) -> float:
    (part,) = signal.parts(seconds, seconds)
    return part.value


def hours(*values: float) -> RecordedSignal:
    return RecordedSignal([MARCH + HOUR * hour for hour in range(len(values))], values, "g/kWh")


class TestContractOfConstantSignal(SignalContract):
    def make_signal(self) -> Signal:
        return ConstantSignal(380, "g/kWh")


class TestContractOfRecordedSignal(SignalContract):
    def make_signal(self) -> Signal:
        return hours(*(300.0 + 50 * math.sin(hour / 4) for hour in range(20)))


class TestContractOfRecordedSignalWithGaps(SignalContract):
    def make_signal(self) -> Signal:
        times = [MARCH + HOUR * hour for hour in (0, 1, 2, 7, 8, 9.5)]
        return RecordedSignal(times, [1, 2, 2, 3, -4, 5], "EUR/MWh", average=2.5)


class TestContractOfWeeklyTariff(SignalContract):
    def make_signal(self) -> Signal:
        return WeeklyTariff(NIGHTS_AND_DAYS, "EUR/kWh", "Europe/Berlin", holidays=["2026-03-02"])


class TestRecorded:
    def test_a_value_holds_until_the_next_one(self) -> None:
        assert [
            (part.value, part.seconds) for part in hours(100, 200, 300).parts(MARCH + 1800, MARCH + 2.5 * HOUR)
        ] == [
            (100, 1800),
            (200, HOUR),
            (300, 1800),
        ]

    def test_a_missing_row_is_bridged_and_after_two_the_average_holds(self) -> None:
        times = [MARCH + HOUR * hour for hour in (0, 1, 3, 10, 11, 12)]
        signal = RecordedSignal(times, [100, 200, 300, 400, 500, 500], "g/kWh", average=250)
        parts = signal.parts(MARCH, MARCH + 14 * HOUR)
        assert [(part.value, part.seconds / HOUR, part.is_stale) for part in parts] == [
            (100, 1, False),
            (200, 2, False),
            (300, 2, False),
            (250, 5, True),
            (400, 1, False),
            (500, 3, False),
        ]
        assert signal.parts(MARCH + 14 * HOUR, MARCH + 16 * HOUR)[0].is_stale

    def test_the_average_is_the_mean_over_the_known_time(self) -> None:
        times = [MARCH + HOUR * hour for hour in (0, 1, 2, 3, 40)]
        assert RecordedSignal(times, [100, 200, 300, 400, 9], "g/kWh").facts.average == pytest.approx(280)

    @given(st.lists(st.floats(0, 1000), min_size=3, max_size=20), st.floats(-5, 25), st.floats(0, 30))
    def test_parts_of_a_period_are_those_of_its_halves(self, values: list[float], begin: float, length: float) -> None:
        signal = hours(*values)
        first, last = MARCH + begin * HOUR, MARCH + (begin + length) * HOUR
        middle = (first + last) / 2
        whole = sum(part.value * part.seconds for part in signal.parts(first, last))
        halves = [*signal.parts(first, middle), *signal.parts(middle, last)]
        assert whole == pytest.approx(sum(part.value * part.seconds for part in halves), abs=1e-3)

    @pytest.mark.parametrize(
        ("times", "values", "unit", "message"),
        [
            ([0.0, 1.0], [1.0], "g/kWh", "2 times for 1 values"),
            ([], [], "g/kWh", "times_seconds is"),
            ([1.0, 0.0], [1.0, 2.0], "g/kWh", "must increase"),
            ([0.0, 1.0], [1.0, -2.0], "g/kWh", "at least 0"),
            ([0.0, 1.0], [1.0, math.nan], "EUR/kWh", "nan"),
            ([0.0, 1.0], [1.0, 2.0], "kWh", "g/kWh"),
            ([0.0, math.inf], [1.0, 2.0], "g/kWh", "1970"),
            ([0.0], [1.0], "g/kWh", "max_age_seconds"),
        ],
    )
    def test_bad_input(self, times: list[float], values: list[float], unit: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            RecordedSignal(times, values, unit)


class TestCsv:
    def read(self, folder: Path, text: str, unit: str = "g/kWh", zone: str = "Europe/Berlin") -> RecordedSignal:
        path = folder / "signal.csv"
        path.write_text(text, encoding="utf-8")
        return RecordedSignal.from_csv(path, unit=unit, zone=zone)

    def test_local_times_with_gaps(self, tmp_path: Path) -> None:
        signal = self.read(
            tmp_path, "zone,timestamp,value\nDE,2026-03-02 00:00,310\nDE,2026-03-02 01:00,\nDE,2026-03-02 02:00,290\n"
        )
        assert value_at(signal, at("2026-03-02 01:30")) == 310
        assert value_at(signal, at("2026-03-02 02:30")) == 290
        assert signal.facts.source == "signal.csv (g/kWh, Europe/Berlin)"

    @pytest.mark.parametrize("text", ["2026-03-01T23:00:00Z", "2026-03-02T00:00+01:00", "1772406000"])
    def test_times_that_name_their_zone(self, tmp_path: Path, text: str) -> None:
        signal = self.read(tmp_path, f"timestamp,value\n{text},310\n2026-03-02T02:00+01:00,1\n")
        assert value_at(signal, at("2026-03-02 00:00")) == 310

    def test_the_hour_that_is_repeated(self, tmp_path: Path) -> None:
        rows = ["01:00", "02:00", "02:00", "03:00"]
        signal = self.read(
            tmp_path, "timestamp,value\n" + "".join(f"2026-10-25 {row},{at}\n" for at, row in enumerate(rows))
        )
        assert value_at(signal, at("2026-10-25 02:30", fold=0)) == 1
        assert value_at(signal, at("2026-10-25 02:30", fold=1)) == 2
        assert value_at(signal, at("2026-10-25 03:30")) == 3

    def test_the_repeated_hour_in_quarters(self, tmp_path: Path) -> None:
        quarters = [f"02:{minute:02}" for minute in (0, 15, 30, 45)] * 2
        signal = self.read(
            tmp_path, "timestamp,value\n" + "".join(f"2026-10-25 {row},{at}\n" for at, row in enumerate(quarters))
        )
        assert [value_at(signal, at("2026-10-25 02:00") + 900 * number) for number in range(8)] == [*range(8)]

    def test_an_hour_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"line 3: there is no 2026-03-29 02:30 in Europe/Berlin"):
            self.read(tmp_path, "timestamp,value\n2026-03-29 01:30,5\n2026-03-29 02:30,5\n")

    def test_repeated_rows(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            signal = self.read(
                tmp_path,
                "timestamp,value\n2026-03-02 00:00,1\n2026-03-02 00:00,1\n2026-03-02 01:00,2\n2026-03-02 01:00,3\n",
            )
        assert value_at(signal, at("2026-03-02 01:30")) == 3
        assert "1 rows repeat a time with another value (line 5 first)" in caplog.text

    def test_a_price_may_be_negative_and_per_megawatt_hour(self, tmp_path: Path) -> None:
        signal = self.read(tmp_path, "timestamp,value\n2026-03-02 00:00,-40\n2026-03-02 01:00,80\n", "EUR/MWh")
        assert value_at(signal, at("2026-03-02 00:30")) == pytest.approx(-0.04)
        assert signal.facts.unit == "EUR/kWh"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("when,value\n1,2\n", "no column timestamp"),
            ("time,value\n1,2\n", "line 2: '1' is no time"),
            ("", "no column"),
            ("timestamp,value\n", "no row"),
            ("timestamp,value\n2026-03-02 01,1\n2026-03-02 00,1\n2026-03-02 02,1\n", "line 3: it is earlier .* sort"),
            ("timestamp,value\n2026-03-02 01:00,-3\n", "line 2: value is -3"),
            ("timestamp,value\n2026-03-02 01:00,much\n", "line 2: value is 'much'"),
            ("timestamp,value\nyesterday,3\n", "line 2: 'yesterday' is no time"),
            ("timestamp,value\n1e300,3\n", "line 2.*1970"),
            ("timestamp,value\n2026-03-02 01:00,inf\n", "line 2: value"),
            ("timestamp,value\n2026-03-02 01:00\n", "no row"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            self.read(tmp_path, text)

    @pytest.mark.parametrize(
        ("unit", "zone", "message"),
        [("", "UTC", "unit is ''"), ("g/kWh", "", "zone is ''"), ("g/kWh", "Mars/Olympus", "zone is 'Mars/Olympus'")],
    )
    def test_unit_and_zone_are_needed(self, tmp_path: Path, unit: str, zone: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            self.read(tmp_path, "timestamp,value\n2026-03-02 01:00,1\n", unit, zone)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            RecordedSignal.from_csv(tmp_path / "missing.csv", unit="g/kWh", zone="UTC")
        (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00timestamp")
        with pytest.raises(UsageError, match=r"binary\.csv"):
            RecordedSignal.from_csv(tmp_path / "binary.csv", unit="g/kWh", zone="UTC")


class TestTariff:
    def tariff(self, **changes: object) -> WeeklyTariff:
        return WeeklyTariff(NIGHTS_AND_DAYS, "EUR/kWh", "Europe/Berlin", **changes)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("time", "price"),
        [
            ("2026-03-02 06:59", 0.22),  # a Monday
            ("2026-03-02 07:00", 0.32),
            ("2026-03-02 21:59", 0.32),
            ("2026-03-06 22:00", 0.22),
            ("2026-03-07 00:00", 0.20),
            ("2026-03-08 23:59", 0.20),
        ],
    )
    def test_prices(self, time: str, price: float) -> None:
        assert value_at(self.tariff(), at(time)) == price

    def test_a_weekend_goes_on_over_midnight(self) -> None:
        (part,) = self.tariff().parts(at("2026-03-07 12:00"), at("2026-03-08 12:00"))
        assert part.value == 0.20

    def test_daylight_saving_time(self) -> None:
        tariff = WeeklyTariff({"Mon-Sun 02:30-12:00": 1.0, "Mon-Sun 12:00-02:30": 2.0}, "EUR/kWh", "Europe/Berlin")
        spring = tariff.parts(at("2026-03-29 00:00"), at("2026-03-29 23:59"))  # 02:00 to 03:00 is left out
        assert [(part.value, part.seconds / HOUR) for part in spring[:2]] == [(2.0, 2.0), (1.0, 9.0)]
        autumn = tariff.parts(at("2026-10-25 00:00"), at("2026-10-25 12:00"))  # 02:00 to 03:00 happens twice
        assert [(part.value, part.seconds / HOUR) for part in autumn] == [
            (2.0, 2.5),
            (1.0, 0.5),
            (2.0, 0.5),
            (1.0, 9.5),
        ]

    def test_holidays(self) -> None:
        tariff = self.tariff(holidays=["2026-12-25"])
        assert value_at(tariff, at("2026-12-25 12:00")) == 0.20  # a Friday
        assert value_at(tariff, at("2026-12-24 12:00")) == 0.32

    @given(st.floats(1.6e9, 1.9e9), st.floats(0, 14 * 86400))
    def test_each_minute_has_the_price_of_its_weekday_and_time(self, begin: float, length: float) -> None:
        tariff = self.tariff()
        for part in tariff.parts(begin, begin + length):
            for seconds in (part.begin_seconds, part.end_seconds - 1e-3):
                local = datetime.fromtimestamp(seconds, BERLIN)
                is_day = 7 <= local.hour < 22
                wanted = 0.20 if local.weekday() >= 5 else 0.32 if is_day else 0.22
                assert part.value == wanted or part.seconds < 2e-3

    @pytest.mark.parametrize(
        ("rates", "message"),
        [
            ({"Mon-Sat 00:00-24:00": 1.0}, "no price for Sun 00:00"),
            ({"Mon-Sun 00:00-23:59": 1.0}, "no price for Mon 23:59"),
            ({"Mon-Sun 00:00-24:00": 1.0, "Wed 10:00-11:00": 2.0}, "two prices for Wed 10:00"),
            ({"Mo-Fr 00:00-24:00": 1.0}, "weekdays are Mon"),
            ({"Mon-Sun 00:00-25:00": 1.0}, "it must be a weekday"),
            ({"Mon-Sun 00:60-24:00": 1.0}, "it must be a weekday"),
            ({"Mon-Sun": 1.0}, "it must be a weekday"),
            ({"Mon-Sun 00:00-24:00": math.nan}, "price"),
            ({}, "no price for Mon 00:00"),
        ],
    )
    def test_bad_rates(self, rates: dict[str, float], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            WeeklyTariff(rates, "EUR/kWh", "Europe/Berlin")

    def test_bad_holidays(self) -> None:
        with pytest.raises(UsageError, match="2026-12-25"):
            self.tariff(holidays=["25.12."])


def test_a_constant_has_a_unit_and_a_basis() -> None:
    assert ConstantSignal(380, "kg/MWh").facts.unit == "g/kWh"
    assert ConstantSignal(300, "EUR/MWh").facts.average == pytest.approx(0.3)
    assert ConstantSignal(0.3, "EUR/kWh").facts.amount_unit == "EUR"


@pytest.mark.parametrize(
    ("value", "unit", "basis"),
    [(-1, "g/kWh", "average"), (1, "g", "average"), (1, "g/kWh", "mean"), ("1", "g/kWh", "average")],
)
def test_bad_constants(value: float, unit: str, basis: Basis) -> None:
    with pytest.raises(UsageError):
        ConstantSignal(value, unit, basis=basis)


def test_a_forecast_is_known_for_a_day_and_never_charged() -> None:
    times = [MARCH + hour * HOUR for hour in range(96)]
    expected = RecordedSignal(times, [400 + hour for hour in range(96)], "g/kWh")
    known = [hour for hour in range(96) if hour != 30]
    values = [300 + hour for hour in known]
    signal = RecordedSignal([times[hour] for hour in known], values, "g/kWh", forecast=expected, forecast_hours=24)
    parts = signal.forecast(MARCH + 10 * HOUR, MARCH + 9 * HOUR, MARCH + 90 * HOUR)
    assert [part.value for part in parts] == [400.0 + hour for hour in range(9, 34)]
    assert parts[-1].end_seconds == MARCH + 34 * HOUR, "24 hours from now"
    assert signal.parts(MARCH + 29 * HOUR, MARCH + 32 * HOUR)[0].value == 329, "the gap is no forecast"
    assert hours(1, 2).forecast(MARCH, MARCH, MARCH + HOUR) == []
