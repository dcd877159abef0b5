"""Sliding windows over data with timestamps, against the rules of the published drifting benchmark."""

from datetime import UTC, datetime, timedelta

import datasets
import numpy as np
import pandas
import pytest

from zeus_core.errors import UsageError
from zeus_core.jobs import DriftingSlices

# Days 1 to 6 of May 2009 with 3 to 8 rows each, in an order of their own, after two rows of April.
DAYS = [datetime(2009, 4, 6), datetime(2009, 4, 20)] + [
    datetime(2009, 5, day) + timedelta(hours=hour) for day in range(1, 7) for hour in range(day + 2)
]
TIMES = [DAYS[place] for place in np.random.default_rng(1).permutation(len(DAYS))]


def published(times, window, begin, fraction=0.85, seed=42):
    """The slices by the published rules, written down with pandas."""
    frame = pandas.DataFrame({"row": range(len(times))}, index=pandas.DatetimeIndex(times)).sort_index(kind="stable")
    found, now = [], pandas.Timestamp(begin)
    while now < frame.index.max():
        part = frame[frame.index >= now].iloc[:window]
        if len(part) < window:
            break
        rows = part["row"].to_numpy()[np.random.default_rng(seed).permutation(window)]
        boundary = int(window * fraction)
        found.append((rows[:boundary].tolist(), rows[boundary:].tolist()))
        now += pandas.Timedelta(days=1)
    return found


def listed(slices):
    return [(one.train.tolist(), one.validation.tolist()) for one in slices]


def test_slices_are_those_of_the_published_rules():
    slices = DriftingSlices(TIMES, window=10, begin="2009-05-01")
    assert listed(slices) == published(TIMES, 10, "2009-05-01")
    assert [str(one.begin)[:10] for one in slices] == [f"2009-05-0{day}" for day in range(1, len(slices) + 1)]
    assert len(slices) == len(listed(slices)) == 5
    for one in slices:
        assert (len(one.train), len(one.validation)) == (8, 2)
        assert set(one.train).isdisjoint(one.validation)
        assert all(np.datetime64(TIMES[row]) >= one.begin for row in [*one.train, *one.validation])


@pytest.mark.parametrize(
    "form",
    [
        lambda times: times,
        lambda times: np.array(times, dtype="datetime64[s]"),
        lambda times: pandas.Series(pandas.DatetimeIndex(times)),
        lambda times: [time.isoformat() for time in times],
        lambda times: [time.strftime("%a %b %d %H:%M:%S PDT %Y") for time in times],
        lambda times: [time.replace(tzinfo=UTC) for time in times],
        lambda times: [time.replace(tzinfo=UTC).timestamp() for time in times],
    ],
    ids=["datetime", "numpy", "pandas", "iso", "sentiment140", "with zone", "seconds"],
)
def test_timestamps_come_in_any_form(form):
    assert listed(DriftingSlices(form(TIMES), window=10, begin="2009-05-01")) == published(TIMES, 10, "2009-05-01")


def test_a_dataset_a_data_frame_and_a_mapping_are_tables():
    wanted = published(TIMES, 10, "2009-05-01")
    columns = {"date": TIMES, "text": [str(time) for time in TIMES]}
    for table in (columns, pandas.DataFrame(columns), datasets.Dataset.from_dict(columns)):
        assert listed(DriftingSlices.from_table(table, window=10, begin="2009-05-01")) == wanted
    one = DriftingSlices.from_table(table, window=10)[0]
    assert table.select(one.train)["date"] == [TIMES[row] for row in one.train], "rows select from the dataset"


def test_a_slice_is_always_the_same_and_another_with_another_seed():
    slices = DriftingSlices(TIMES, window=10)
    assert listed(slices) == listed([slices[place] for place in range(len(slices))]) == listed(slices[:])
    assert slices[-1].begin == slices[len(slices) - 1].begin
    assert listed(DriftingSlices(TIMES, window=10, seed=1)) != listed(slices)


def test_less_data_than_a_window_makes_no_slice():
    assert list(DriftingSlices(TIMES, window=len(TIMES) + 1)) == []
    with pytest.raises(IndexError):
        DriftingSlices(TIMES, window=len(TIMES) + 1)[0]


def test_the_defaults_are_those_of_the_published_benchmark():
    """38 slices of 500,000 tweets; here of as many rows an hour as Sentiment140 has in 75 days."""
    hours = np.datetime64("2009-05-01T00:00") + np.arange(0, 48 * 24) * np.timedelta64(60, "m")
    slices = DriftingSlices(np.repeat(hours, 1_000))
    assert len(slices) == 48 - 20  # 500 hours are 20 days and 20 hours
    assert (len(slices[0].train), len(slices[0].validation)) == (425_000, 75_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timestamps": "2009-05-01"}, "timestamps is '2009-05-01'; it must be timestamps"),
        ({"timestamps": []}, r"timestamps is \[\]; it must be timestamps"),
        ({"timestamps": ["yesterday"]}, r"timestamps is \['yesterday'\]; it must be timestamps, .*: Invalid isoformat"),
        ({"timestamps": [np.datetime64("NaT")]}, "it must be timestamps"),
        ({"window": 1}, "window is 1; it must be a number of rows, at least 2"),
        ({"train_fraction": 1.0}, "train_fraction is 1, by which a part of 10 rows is empty"),
        ({"train_fraction": 0.01}, "train_fraction is 0.01, by which a part of 10 rows is empty"),
        ({"stride": timedelta(0)}, "stride is .*; it must be above 0"),
        ({"stride": timedelta(microseconds=1)}, "stride is 0:00:00.000001, which makes .* slices"),
        ({"begin": "2010-01-01"}, "begin is 2010-01-01.*; it must lie between 2009-04-06"),
        ({"begin": "soon"}, r"begin is \['soon'\]; it must be timestamps"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        DriftingSlices(**{"timestamps": TIMES, "window": 10, **arguments})


def test_a_table_without_the_column_is_named():
    with pytest.raises(UsageError, match="which has no column 'when'"):
        DriftingSlices.from_table({"date": TIMES}, "when")
    with pytest.raises(UsageError, match=r"options are \{'windows': 3\}"):
        DriftingSlices.from_table({"date": TIMES}, windows=3)
