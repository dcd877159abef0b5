"""The files of traces."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.cli import main
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.tracing._bounded import Ring, Thinned
from zeus_core.tracing._trace_events import complete, counter, mark, named
from zeus_core.tracing.facts import ClockPoint, DeviceFacts, PhaseEnergy, RankFacts
from zeus_core.tracing.trace_file import Trace, read_trace, write_trace

FACTS = RankFacts(
    1,
    4,
    "node",
    1_700_000_000_000_000_000,
    10.0,
    (ClockPoint(0.0, 0.05, 1e-4),),
    (DeviceFacts(0, "GPU-1", "A100"),),
    {"steps": PhaseEnergy(10.0, DeviceEnergy(3000.0, 5.0))},
    PhaseEnergy(10.0, DeviceEnergy(3000.0, 5.0)),
    50,
    {"steps": 3},
)
EVENTS = (
    named("process_name", 1, 0, "rank 1"),
    complete(1, 1, "steps", 0.0, 10.0, {}),
    complete(1, 2, "step", 0.0, 0.1, {"step": 1}),
    mark(1, 4, "power limit 300 W", 1.5, {"why": "a trial"}),
    counter(1, "GPU 0 power", 2.0, "W", 301.5),
)


@pytest.mark.parametrize("name", ["trace-1.json.gz", "trace-1.json"])
def test_a_trace_is_read_as_it_was_written(tmp_path, name):
    path = tmp_path / "folder" / name
    size = write_trace(path, Trace(FACTS.base_nanoseconds, [FACTS], EVENTS))
    assert size == path.stat().st_size
    trace = read_trace(path)
    assert (trace.base_nanoseconds, tuple(trace.ranks), tuple(trace.events)) == (
        FACTS.base_nanoseconds,
        (FACTS,),
        EVENTS,
    )
    text = (gzip.decompress if name.endswith(".gz") else bytes)(path.read_bytes())
    assert json.loads(text)["baseTimeNanoseconds"] == FACTS.base_nanoseconds


def damaged(path, how):
    data = gzip.compress(json.dumps({"traceEvents": list(EVENTS)}).encode())
    contents = {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "garbage": b"\x1f\x8b garbage",
        "no json": b"{",
        "no trace": b"{}",
        "a number": b"7",
        "of a profiler": b'{"traceEvents": []}',
        "another version": b'{"traceEvents": [], "zeus_core": {"format": "zeus-core trace", "version": 2}}',
        "ranks missing": b'{"traceEvents": [], "zeus_core": {"format": "zeus-core trace", "version": 3}}',
    }
    path.write_bytes(contents[how])


@pytest.mark.parametrize(
    "how",
    [
        *("empty", "cut", "garbage", "no json", "no trace", "a number", "of a profiler", "another version"),
        "ranks missing",
    ],
)
def test_a_damaged_file_says_so_and_names_itself(tmp_path, how):
    path = tmp_path / "trace-0.json.gz"
    damaged(path, how)
    with pytest.raises(UsageError, match=r"trace-0\.json\.gz"):
        read_trace(path)


def test_a_file_of_no_rank_says_so(tmp_path, capsys):
    path = tmp_path / "trace-0.json.gz"
    write_trace(path, Trace(0, [], []))
    for action in (["show", str(path)], ["merge", str(path), "-o", str(tmp_path / "all.json")]):
        assert main(["trace", *action]) == 2
        assert "trace-0.json.gz cannot be read: it has no events, or is of no rank" in capsys.readouterr().err


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_trace(path)


@pytest.mark.parametrize(
    "event",
    [
        7,
        {},
        {"ph": "XX", "pid": 1, "ts": 1},
        {"ph": ["X"], "pid": 1, "ts": 1},
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "X", "name": "a", "pid": 1, "ts": 1, "dur": 1},
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": "now", "dur": 1},
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 10**400, "dur": 1},
        {"ph": "C", "name": "a", "pid": 1},
        {"ph": "i", "name": "a", "pid": 1, "tid": 1, "ts": 1, "args": []},
    ],
)
def test_a_file_with_something_else_than_events_says_so(tmp_path, event):
    path = tmp_path / "trace-0.json"
    write_trace(path, Trace(0, [FACTS], [event]))
    with pytest.raises(UsageError, match=r"trace-0\.json cannot be read: it is damaged: .* is not an event"):
        read_trace(path)


def test_a_ring_keeps_the_last_and_counts_the_others():
    ring = Ring(3)
    for number in range(5):
        ring.add(number)
    assert ring.items() == [2, 3, 4]
    assert ring.dropped == 2


@given(st.integers(2, 50), st.integers(0, 2000))
def test_thinned_points_cover_all_time_with_a_bounded_number(size, count):
    thinned = Thinned(size, 1.0)
    for at in range(count):
        thinned.add(float(at), at)
    points = list(thinned.before(float("inf")))
    assert len(points) <= size
    moments = [at for at, _ in points]
    assert moments == sorted(moments)
    if count:
        assert moments[0] == 0
        assert max(later - at for at, later in zip(moments, [*moments[1:], count], strict=True)) <= 4 * max(
            count / size, 1
        )
