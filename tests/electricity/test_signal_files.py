"""The files of signals: separators, units, times, and refusals. tests/electricity/test_downloads.py has the layouts."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from zeus_core.electricity import ConstantSignal, RecordedSignal
from zeus_core.errors import UsageError

ELECTRICITY_MAPS = """\
Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),Carbon intensity gCO₂eq/kWh (Life cycle),\
Renewable energy percentage (RE%),Data source,Data estimated,Data estimation method
2026-03-01 00:00:00,Chile,North,CL-N,211.50,260.25,55.1,here,false,
2026-03-01 01:00:00,Chile,North,CL-N,220.00,270.00,55.1,here,true,TIME_SLICER_AVERAGE
2026-03-01 02:00:00,Chile,North,CL-N,230.00,280.00,55.1,here,false,
"""
ENTSOE = """\
"MTU (UTC)","Area","Sequence","Day-ahead Price (EUR/MWh)","Intraday Period (UTC)","Intraday Price (EUR/MWh)"
"01/03/2026 00:00:00 - 01/03/2026 00:15:00","BZN|FR","Sequence 1","-12.34","",""
"01/03/2026 00:15:00 - 01/03/2026 00:30:00","BZN|FR","Sequence 1","41.10","",""
"""
ENTSOE_OLD = """\
"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]","Currency","BZN|FR"
"25.10.2026 01:00 - 25.10.2026 02:00","31.00","EUR",""
"25.10.2026 02:00 - 25.10.2026 03:00","32.00","EUR",""
"25.10.2026 02:00 - 25.10.2026 03:00","33.00","EUR",""
"25.10.2026 03:00 - 25.10.2026 04:00","n/e","EUR",""
"""


def read(folder: Path, text: str, **options: Any) -> RecordedSignal:
    path = folder / "signal.csv"
    path.write_text(text, encoding="utf-8")
    return RecordedSignal.from_csv(path, **options)


def first(signal: RecordedSignal) -> tuple[str, float]:
    """The time of the first value, and the value."""
    (part,) = signal.parts(signal.begin_seconds, signal.begin_seconds)
    return f"{datetime.fromtimestamp(signal.begin_seconds, UTC):%Y-%m-%d %H:%M:%S}", part.value


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators_and_decimal_commas(tmp_path: Path, separator: str) -> None:
    rows = [("Time", "Price (€/kWh)"), ("01.03.2026 00:00", "1.234,5"), ("01.03.2026 01:00", "0,385")]
    signal = read(tmp_path, "".join(separator.join(row) + "\n" for row in rows), zone="Europe/Berlin")
    assert first(signal) == ("2026-02-28 23:00:00", 1234.5)
    assert [part.value for part in signal.parts(signal.begin_seconds, signal.end_seconds + 1)] == [1234.5, 0.385]


@pytest.mark.parametrize(
    ("unit", "value", "per_kilowatt_hour", "own"),
    [
        ("gCO2eq/kWh", 312.5, 312.5, "g/kWh"),
        ("g CO₂e/kWh", 312.5, 312.5, "g/kWh"),
        ("kg/kWh", 0.3127, 312.7, "g/kWh"),
        ("kgCO2/MWh", 312.7, 312.7, "g/kWh"),
        ("tCO2eq/MWh", 0.3127, 312.7, "g/kWh"),
        ("lb/MWh", 900.0, 408.233133, "g/kWh"),
        ("lbs CO2/MWh", 900.0, 408.233133, "g/kWh"),
        ("€/kWh", 0.31, 0.31, "EUR/kWh"),
        ("Eur/MWh", 80.1, 0.0801, "EUR/kWh"),
        ("euro/MWh", 80.1, 0.0801, "EUR/kWh"),
        ("£/MWh", 80.1, 0.0801, "GBP/kWh"),
        ("USD/MWh", -80.1, -0.0801, "USD/kWh"),
    ],
)
def test_units_are_converted_exactly(unit: str, value: float, per_kilowatt_hour: float, own: str) -> None:
    facts = ConstantSignal(value, unit).facts
    assert (facts.average, facts.unit) == (per_kilowatt_hour, own)


@pytest.mark.parametrize("unit", ["ct/kWh", "$/kWh", "CO2/kWh", "cEUR/kWh", "øre/kWh", "g/J"])
def test_an_unknown_unit_is_refused_also_in_a_label(tmp_path: Path, unit: str) -> None:
    with pytest.raises(UsageError, match="EUR/kWh"):
        ConstantSignal(1.0, unit)
    if unit != "g/J":
        with pytest.raises(UsageError, match="unit is"):
            read(tmp_path, f"timestamp,price ({unit})\n2026-03-01T00Z,3\n", unit="EUR/kWh")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1772323200000", "2026-03-01 00:00:00"),
        ("1772323200000000000", "2026-03-01 00:00:00"),
        ("1772323200.5", "2026-03-01 00:00:00"),
        ("20260301", "2026-03-01 00:00:00"),
        ("20260301.0", "2026-03-01 00:00:00"),
        ("202603010130", "2026-03-01 01:30:00"),
        ("20260301013015", "2026-03-01 01:30:15"),
        ("20260301T01Z", "2026-03-01 01:00:00"),
        ("2026/03/01 01:30", "2026-03-01 01:30:00"),
        ("2026-03-01T01:30Z/2026-03-01T02:00Z", "2026-03-01 01:30:00"),
        ("2026-03-01 01:30 – 2026-03-01 02:00", "2026-03-01 01:30:00"),  # noqa: RUF001
        ("25/10/2026 02:00:00 (CEST) - 25/10/2026 02:00:00 (CET)", None),
        ("25.10.2026 02:00 (CET)", "2026-10-25 01:00:00"),
        ("2026-03-01T01:30+0545", "2026-02-28 19:45:00"),
        ("2026030101", None),
        ("3600", None),
        ("46082", None),  # a day of a spreadsheet
        ("01/03/2026 00:00", None),
        ("2026-02-30", None),
        ("20269999", None),
        ("0001-01-01", None),
    ],
)
def test_times_are_dates_or_refused_and_never_1970(tmp_path: Path, text: str, time: str | None) -> None:
    table = f"timestamp,value\n{text},5\n2027-01-01,6\n"
    if time is None:
        with pytest.raises(UsageError, match=r"line 2: .* is no time"):
            read(tmp_path, table, unit="g/kWh", zone="UTC")
    else:
        assert first(read(tmp_path, table, unit="g/kWh", zone="UTC")) == (time, 5.0)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        (ELECTRICITY_MAPS, {}, ["several columns of values", "(direct)", "(Life cycle)", "remove all but one"]),
        ("time,EUR/MWh,g/kWh\n2026-03-01T00Z,5,6\n", {}, ["several columns of values", "'EUR/MWh', 'g/kWh'"]),
        ("time,value,value\n2026-03-01T00Z,5,6\n", {"unit": "g/kWh"}, ["several columns 'value'"]),
        ("time,price,load\n2026-03-01T00Z,5,6\n", {}, ["no column value", "'time', 'price', 'load'"]),
        (ENTSOE + ENTSOE.splitlines()[1].replace("FR", "DE-LU") + "\n", {}, ["BZN|DE-LU", "BZN|FR", "rows of one"]),
        (ENTSOE, {"unit": "EUR/kWh"}, ["unit is 'EUR/kWh'", "in EUR/MWh"]),
        ("timestamp,value\n2026-03-01T00Z,5\n", {}, ["the unit of 'value' is not known"]),
        ("timestamp,value\n2026-03-01,5\n", {"unit": "g/kWh"}, ["line 2", "names no time zone", "Europe/Berlin"]),
        ('timestamp,value\n2026-03-01T00Z,"1,234"\n', {"unit": "g/kWh"}, ["value is '1,234'"]),
        ("timestamp;value\n2026-03-01T00Z;1,5\n2026-03-01T01Z;1.5\n", {"unit": "g/kWh"}, ["line 3: value is '1.5'"]),
    ],
)
def test_refusals_name_what_is_in_the_file(
    tmp_path: Path, text: str, options: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, **options)
    assert all(word in str(caught.value) for word in named), str(caught.value)


def test_the_only_column_beside_the_times_has_the_values(tmp_path: Path) -> None:
    signal = read(tmp_path, "datetime,forecast\n2026-03-01T00:00Z,91\n2026-03-01T00:30Z,93\n", unit="g/kWh")
    assert first(signal) == ("2026-03-01 00:00:00", 91.0)


def test_rows_that_descend_are_turned_round(tmp_path: Path) -> None:
    rows = [f"2026-10-25 0{hour}:00,{number}\n" for number, hour in enumerate((3, 2, 2, 1))]
    signal = read(tmp_path, "timestamp,value\n" + "".join(rows), unit="g/kWh", zone="Europe/Berlin")
    parts = signal.parts(signal.begin_seconds, signal.begin_seconds + 4 * 3600)
    assert [part.value for part in parts] == [3, 2, 1, 0]


def test_a_zone_that_the_file_contradicts_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        signal = read(tmp_path, ENTSOE_OLD, zone="Europe/Berlin")
        assert not caplog.text
        assert read(tmp_path, ENTSOE_OLD, zone="UTC").begin_seconds == signal.begin_seconds
    assert "its times are in Europe/Brussels, by the name of their column, not in UTC" in caplog.text
