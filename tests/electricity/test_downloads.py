"""Files as their sources publish them: every time, value, unit and part that is read, with rows of our own."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from zeus_core.electricity import RecordedSignal


class Download(NamedTuple):
    """A file and what it says: the first minute of each value in UTC, and the values in the unit of the signal."""

    text: str
    times: list[str]
    values: list[float]
    unit: str
    source: str
    given: tuple[str | None, str | None] = (None, None)  # unit and zone
    basis: str | None = "average"
    warning: str = ""


DOWNLOADS = {
    "ENTSO-E since 2025": Download(
        '"MTU (UTC)","Area","Sequence","Day-ahead Price (EUR/MWh)","Intraday Period (UTC)","Intraday Price (EUR/MWh)"\n'
        '"05/11/2025 00:00:00 - 05/11/2025 00:15:00","BZN|AT","Sequence 1","71.50","",""\n'
        '"05/11/2025 00:15:00 - 05/11/2025 00:30:00","BZN|AT","Sequence 1","-3.20","",""\n'
        '"05/11/2025 00:30:00 - 05/11/2025 00:45:00","BZN|AT","Sequence 1","n/e","",""\n'
        '"05/11/2025 00:45:00 - 05/11/2025 01:00:00","BZN|AT","Sequence 1","12","",""\n',
        ["2025-11-05 00:00", "2025-11-05 00:15", "2025-11-05 00:45"],
        [0.0715, -0.0032, 0.012],
        "EUR/kWh",
        "ENTSO-E: Day-ahead Price (EUR/MWh), Area BZN|AT, Sequence Sequence 1, EUR/MWh, UTC",
        basis=None,
    ),
    "ENTSO-E since 2025, local": Download(
        '"MTU (CET/CEST)","Area","Sequence","Day-ahead Price (EUR/MWh)"\n'
        '"25/10/2026 01:00:00 - 25/10/2026 02:00:00","BZN|AT","Sequence 1","71.50"\n'
        '"25/10/2026 02:00:00 (CEST) - 25/10/2026 02:00:00 (CET)","BZN|AT","Sequence 1","72.50"\n'
        '"25/10/2026 02:00:00 (CET) - 25/10/2026 03:00:00","BZN|AT","Sequence 1","73.50"\n'
        '"25/10/2026 03:00:00 - 25/10/2026 04:00:00","BZN|AT","Sequence 1","74.50"\n',
        ["2026-10-24 23:00", "2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 02:00"],
        [0.0715, 0.0725, 0.0735, 0.0745],
        "EUR/kWh",
        "ENTSO-E: Day-ahead Price (EUR/MWh), Area BZN|AT, Sequence Sequence 1, EUR/MWh, Europe/Brussels",
        basis=None,
    ),
    "ENTSO-E until 2025": Download(
        '"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]","Currency","BZN|AT"\n'
        '"27.10.2024 01:00 - 27.10.2024 02:00","60.00","EUR",""\n'
        '"27.10.2024 02:00 - 27.10.2024 03:00","61.00","EUR",""\n'
        '"27.10.2024 02:00 - 27.10.2024 03:00","62.00","EUR",""\n'
        '"27.10.2024 03:00 - 27.10.2024 04:00","63.00","EUR",""\n',
        ["2024-10-26 23:00", "2024-10-27 00:00", "2024-10-27 01:00", "2024-10-27 02:00"],
        [0.06, 0.061, 0.062, 0.063],
        "EUR/kWh",
        "ENTSO-E: Day-ahead Price [EUR/MWh], EUR/MWh, Europe/Brussels",
        basis=None,
    ),
    "Electricity Maps, direct": Download(
        "Datetime (UTC),Country,Zone id,Carbon intensity gCO₂eq/kWh (direct),Renewable energy percentage (RE%),"
        "Data source,Data estimated,Data estimation method\n"
        "2025-02-01 00:00:00,Chile,CL-N,211.50,55.1,here,false,\n"
        "2025-02-01 01:00:00,Chile,CL-N,220.00,55.1,here,true,TIME_SLICER_AVERAGE\n"
        "2025-02-01 02:00:00,Chile,CL-N,230.00,55.1,here,false,\n",
        ["2025-02-01 00:00", "2025-02-01 01:00", "2025-02-01 02:00"],
        [211.5, 220.0, 230.0],
        "g/kWh",
        "Electricity Maps: Carbon intensity gCO₂eq/kWh (direct), Zone id CL-N, gCO₂eq/kWh, UTC, "
        "1 of 3 values estimated",
    ),
    "Electricity Maps, life cycle": Download(
        "Datetime (UTC),Zone id,Carbon intensity gCO2eq/kWh (Life cycle)\n"
        "2025-02-01 00:00:00,CL-N,260.25\n"
        "2025-02-01 01:00:00,CL-N,270\n",
        ["2025-02-01 00:00", "2025-02-01 01:00"],
        [260.25, 270.0],
        "g/kWh",
        "Electricity Maps: Carbon intensity gCO2eq/kWh (Life cycle), Zone id CL-N, gCO2eq/kWh, UTC",
    ),
    "UK carbon intensity": Download(
        "datetime,from,to,forecast,actual,index\n"
        "2025-02-01T00:00Z,2025-02-01T00:00Z,2025-02-01T00:30Z,91,97,low\n"
        "2025-02-01T00:30Z,2025-02-01T00:30Z,2025-02-01T01:00Z,93,,low\n"
        "2025-02-01T01:00Z,2025-02-01T01:00Z,2025-02-01T01:30Z,95,99,low\n"
        "2025-02-01T01:30Z,2025-02-01T01:30Z,2025-02-01T02:00Z,96,101,low\n",
        ["2025-02-01 00:00", "2025-02-01 01:00", "2025-02-01 01:30"],
        [97, 99, 101],
        "g/kWh",
        "UK carbon intensity: actual, g/kWh",
    ),
    "UK carbon intensity, repeated rows": Download(
        "timestamp,value\n2025-02-01T18:30Z,200\n2025-02-01T19:00Z,210\n2025-02-01T19:00Z,188\n2025-02-01T19:30Z,190\n",
        ["2025-02-01 18:30", "2025-02-01 19:00", "2025-02-01 19:30"],
        [200, 188, 190],
        "g/kWh",
        "g/kWh",
        given=("g/kWh", None),
        warning="1 rows repeat a time with another value (line 4 first); the last one counts",
    ),
    "WattTime": Download(
        "timestamp,MOER,MOER version\n2025-02-01T00:00:00+00:00,1000.0,3.2\n2025-02-01T00:05:00+00:00,800.5,3.2\n",
        ["2025-02-01 00:00", "2025-02-01 00:05"],
        [453.59237, 363.100692185],
        "g/kWh",
        "WattTime: MOER, lb/MWh",
        basis="marginal",
    ),
    "aWATTar": Download(
        "timestamp,value\n1738368000000,80.1\n1738371600000,82.1\n1738375200000,-3\n",
        ["2025-02-01 00:00", "2025-02-01 01:00", "2025-02-01 02:00"],
        [0.0801, 0.0821, -0.003],
        "EUR/kWh",
        "EUR/MWh",
        given=("EUR/MWh", None),
        basis=None,
    ),
    "EIA": Download(
        "timestamp,value\n20250201T00Z,300\n20250201T01Z,310\n",
        ["2025-02-01 00:00", "2025-02-01 01:00"],
        [300, 310],
        "g/kWh",
        "g/kWh",
        given=("g/kWh", None),
    ),
    "days": Download(
        "timestamp,value\n20250201,300\n20250202,310\n",
        ["2025-01-31 23:00", "2025-02-01 23:00"],
        [300, 310],
        "g/kWh",
        "g/kWh, Europe/Berlin",
        given=("g/kWh", "Europe/Berlin"),
    ),
    "minutes": Download(
        "timestamp,value\n202502010000,300\n202502010130,310\n",
        ["2025-02-01 00:00", "2025-02-01 01:30"],
        [300, 310],
        "g/kWh",
        "g/kWh, UTC",
        given=("g/kWh", "UTC"),
    ),
    "newest first": Download(
        "timestamp,value\n2025-02-01 02:00:00+01:00,300\n2025-02-01 01:00:00+01:00,310\n"
        "2025-02-01 00:00:00+01:00,320\n",
        ["2025-01-31 23:00", "2025-02-01 00:00", "2025-02-01 01:00"],
        [320, 310, 300],
        "g/kWh",
        "g/kWh",
        given=("g/kWh", None),
    ),
    "SMARD, in German": Download(
        "Datum von;Datum bis;Preis [€/MWh]\n"
        "01.02.2025 00:00;01.02.2025 01:00;1.081,5\n"
        "01.02.2025 01:00;01.02.2025 02:00;-4,25\n",
        ["2025-01-31 23:00", "2025-02-01 00:00"],
        [1.0815, -0.00425],
        "EUR/kWh",
        "€/MWh, Europe/Berlin",
        given=(None, "Europe/Berlin"),
        basis=None,
    ),
}


@pytest.mark.parametrize("name", DOWNLOADS)
def test_what_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    download = DOWNLOADS[name]
    path = tmp_path / "signal.csv"
    path.write_text(download.text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        signal = RecordedSignal.from_csv(path, *download.given)
    assert (signal.facts.unit, signal.facts.basis) == (download.unit, download.basis)
    assert signal.facts.source == f"signal.csv ({download.source})"
    begins = [datetime.strptime(time, "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp() for time in download.times]
    assert (signal.begin_seconds, signal.end_seconds) == (begins[0], begins[-1])
    parts = signal.parts(begins[0], begins[-1] + 1)
    assert [part.begin_seconds for part in parts] == begins
    assert [part.value for part in parts] == download.values
    assert not any(part.is_stale for part in parts)
    assert caplog.text.count("\n") == bool(download.warning)
    assert download.warning in caplog.text
