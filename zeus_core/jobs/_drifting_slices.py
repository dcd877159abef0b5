"""Sliding windows over data with timestamps: the data of a job that recurs, which drifts from run to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from zeus_core.errors import UsageError
from zeus_core.validate import checked_number, checked_whole_number, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# As in Sentiment140: "Mon Apr 06 22:19:45 PDT 2009". The zone is the same in all rows, and left out: `begin` is
# in it too.
_LONG_DATE = re.compile(r"\w{3} (\w{3}) (\d{2}) (\d\d:\d\d:\d\d) \w+ (\d{4})")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

_MAX_SLICES = 10**6


@dataclass(frozen=True)
class DriftingSlice:
    """The data of one run: the numbers of rows, shuffled.

    Attributes:
        begin: The time at which its window begins.
        train: The rows to train on.
        validation: The rows to evaluate on.
    """

    begin: np.datetime64
    train: NDArray[np.int64]
    validation: NDArray[np.int64]


class DriftingSlices(Sequence[DriftingSlice]):
    """Sliding windows over a table with timestamps: windows of equal size, one of which begins at each stride.

    With the defaults, and the tweets of Sentiment140, these are the windows of the published drifting benchmark,
    Capriccio: of 500,000 rows each, one for each day from the first of May 2009 on, 38 in all, of which 85 % are to
    train on.

        slices = DriftingSlices.from_table(dataset, "date", begin="2009-05-01")
        for each in slices:
            with job.run() as run:
                train(dataset.select(each.train), dataset.select(each.validation), run)

    Args:
        timestamps: The timestamp of each row, in any order: `datetime`s, `numpy.datetime64`s, pandas timestamps, texts
            in ISO 8601 or as "Mon Apr 06 22:19:45 PDT 2009", or numbers of seconds since 1970.
        window: Rows in a slice.
        stride: Time from the begin of a slice to that of the next.
        begin: The begin of the first slice; the day of the first timestamp if None.
        train_fraction: The part of a slice to train on; the rest is to evaluate on.
        seed: The seed of the shuffle, which is the same for each slice.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        timestamps: Any,
        *,
        window: int = 500_000,
        stride: timedelta = timedelta(days=1),
        begin: datetime | str | None = None,
        train_fraction: float = 0.85,
        seed: int = 42,
    ) -> None:
        import numpy as np

        self._window = checked_whole_number("window", window, 2, "a number of rows, at least 2")
        wanted = "above 0 and below 1, such as 0.85"
        fraction = checked_number("train_fraction", train_fraction, 0.0, 1.0, wanted, is_open=True)
        self._boundary = int(self._window * fraction)
        if not 0 < self._boundary < self._window:
            raise UsageError(f"train_fraction is {fraction:g}, by which a part of {self._window} rows is empty")
        self._seed = checked_whole_number("seed", seed, 0)
        if stride <= timedelta(0):
            raise UsageError(f"stride is {stride!r}; it must be above 0, such as datetime.timedelta(days=1)")
        times = _times("timestamps", timestamps)
        self._rows = np.argsort(times, kind="stable").astype(np.int64)
        ordered = times[self._rows]
        first_day = ordered[0].astype("datetime64[D]").astype("datetime64[us]")
        first = first_day if begin is None else _times("begin", [begin])[0]
        if not first_day <= first <= ordered[-1]:
            raise UsageError(f"begin is {first}; it must lie between {ordered[0]} and {ordered[-1]}, the timestamps")
        self._begins = _begins(ordered, first, stride, self._window)
        self._places: list[int] = np.searchsorted(ordered, self._begins).tolist()

    @classmethod
    def from_table(cls, table: Any, column: str = "date", **options: Any) -> DriftingSlices:
        """Return the slices of a table: a dataset of Hugging Face, a data frame, or a mapping of columns.

        Args:
            table: The table.
            column: The name of the column with the timestamps.
            **options: As in the constructor.

        Raises:
            UsageError: There is no such column, or an argument is wrong.
        """
        try:
            timestamps = table[column]
        except Exception as error:
            raise UsageError(f"table is {shown(table)}, which has no column {shown(column)}: {shown(error)}") from error
        try:
            return cls(timestamps, **options)
        except TypeError as error:
            raise UsageError(f"options are {shown(options)}; they must be those of DriftingSlices: {error}") from error

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        """Return the slice at an index, or a list of slices."""
        import numpy as np

        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = self._places[index]
        rows = self._rows[place : place + self._window]
        shuffled = rows[np.random.default_rng(self._seed).permutation(self._window)]
        return DriftingSlice(self._begins[index], shuffled[: self._boundary], shuffled[self._boundary :])

    def __iter__(self) -> Iterator[DriftingSlice]:
        """Go through the slices, the earliest first."""
        return (self[place] for place in range(len(self)))


def _begins(
    ordered: NDArray[np.datetime64], first: np.datetime64, stride: timedelta, window: int
) -> NDArray[np.datetime64]:
    """Return the begins of all windows that are full."""
    import numpy as np

    if len(ordered) < window:
        return np.asarray([], "datetime64[us]")
    step = np.timedelta64(stride)
    count = int((ordered[-window] - first) // step) + 1  # 0 or less if even the first one is not full
    if count > _MAX_SLICES:
        raise UsageError(f"stride is {stride}, which makes {count} slices; at most {_MAX_SLICES} are made")
    return np.asarray(first + step * np.arange(max(count, 0)), "datetime64[us]")


def _times(argument: str, values: Any) -> NDArray[np.datetime64]:
    """Return timestamps as an array.

    Raises:
        UsageError: They are none, or one of them is missing.
    """
    import numpy as np

    wanted = f"{argument} is {shown(values)}; it must be timestamps, such as '2009-05-01 12:00'"
    if isinstance(values, str | bytes):
        raise UsageError(wanted)
    try:
        array = np.asarray(values if hasattr(values, "__array__") else list(values))
        if array.dtype.kind in "OUT":
            array = np.asarray([_plain(value) for value in array.tolist()], dtype="datetime64[us]")
        elif array.dtype.kind in "iuf":
            array = (array.astype(np.float64) * 1e6).astype("datetime64[us]")
        times = array.astype("datetime64[us]", casting="unsafe")
        is_good = array.dtype.kind == "M" and times.ndim == 1 and len(times) > 0 and not np.isnat(times).any()
    except Exception as error:
        raise UsageError(f"{wanted}: {error}") from error
    if not is_good:
        raise UsageError(wanted)
    return times


def _plain(value: Any) -> Any:
    """Return a timestamp in a form that numpy takes; those with an offset are turned into UTC."""
    if isinstance(value, str):
        match = _LONG_DATE.fullmatch(value.strip())
        if match is not None:
            month, day, time_of_day, year = match.groups()
            return f"{year}-{_MONTHS.index(month) + 1:02}-{day}T{time_of_day}"
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
