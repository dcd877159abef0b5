"""Joules for the ranges of a profiler's trace."""

import json
import math
import random
import time

import pytest

from tests.support.profiled import PARTS, Profiled
from tests.support.variants import long_but_first
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.tracing.facts import DeviceFacts, Update, Updates
from zeus_core.tracing.ranges.range_joules import Bounds, rank_of
from zeus_core.tracing.trace_file import read_document, read_trace
from zeus_core.training import TrainingEnergy


def loads(choose):
    return {
        f"range {number}": (choose.uniform(0.02, 0.08), choose.uniform(90.0, 380.0))
        for number in range(choose.randint(2, 4))
    }


def is_in_step(parts, period):
    """Whether steps are nearly in step with the updates of the counter, which then tells little of what is in them."""
    periods = 2 * sum(seconds for seconds, _ in parts.values()) / period
    return abs(periods - round(periods)) < 0.12


@pytest.mark.parametrize("seed", long_but_first(range(12), 3))
def test_hundred_ranges_of_20_ms_are_within_5_percent_of_the_truth(tmp_path, seed):
    parts = loads(random.Random(seed))
    profiled = Profiled(tmp_path, parts, seed=seed)
    for row in profiled.added().rows:
        truth = profiled.truth[row.name]
        assert abs(row.energy_joules - truth) <= row.uncertainty_joules
        if not is_in_step(parts, 0.1):
            assert row.energy_joules == pytest.approx(truth, rel=0.05)
        assert row.count == 100


def test_ranges_in_step_with_the_counter_say_that_they_are_not_known(tmp_path):
    parts = {"forward": (0.05, 350.0), "backward": (0.05, 150.0)}
    rows = {row.name: row for row in Profiled(tmp_path, parts).added().rows}
    assert rows["forward"].uncertainty_joules > 0.05 * rows["forward"].energy_joules
    assert rows["step"].uncertainty_joules < 0.03 * rows["step"].energy_joules


def test_each_range_has_its_joules_as_arguments_and_the_truth_lies_within(tmp_path):
    profiled = Profiled(tmp_path)
    added = profiled.added()
    ranges = [event for event in added.events if event["ph"] == "X"]
    for event, truth in zip(ranges, profiled.each, strict=True):
        arguments = event["args"]
        assert abs(arguments["energy_j"] - truth) <= arguments["energy_uncertainty_j"] + 1e-3
    steps = [event["args"]["energy_j"] for event in ranges if event["name"] == "step"]
    assert sum(steps) == pytest.approx(profiled.truth["step"], rel=0.01)
    tracks = {event["name"] for event in added.events if event["ph"] == "C"}
    assert tracks == {"GPU 0 power", "GPU 0 energy"}
    (begin, end) = (min(event["ts"] for event in ranges), max(event["ts"] + event["dur"] for event in ranges))
    power = [event for event in added.events if event["name"] == "GPU 0 power" and begin < event["ts"] < end]
    assert len(power) == pytest.approx((end - begin) / 1e5, rel=0.15)


def test_the_command_prints_a_table_and_writes_the_file(tmp_path, capsys):
    profiled = Profiled(tmp_path)
    output = tmp_path / "with-joules.json.gz"
    assert main(["trace", "add", str(profiled.energy), str(profiled.profile), "-o", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["range", "count", "seconds", "energy", "J", "each", "watts"]
    assert [line.split()[0] for line in lines[1:]] == ["step", "backward", "forward", "optimizer"]
    document = read_document(output)
    assert document["baseTimeNanoseconds"] == profiled.document["baseTimeNanoseconds"]
    table = document["zeus_core_ranges"]
    assert (table["format"], table["version"]) == ("zeus-core ranges", 1)
    assert [row["name"] for row in table["rows"]] == ["step", "backward", "forward", "optimizer"]


def test_times_between_ranges_are_nobodys(tmp_path):
    parts = {"loading": (0.03, 100.0), **PARTS}
    profiled = Profiled(tmp_path, parts)
    profiled.document["traceEvents"] = [
        event for event in profiled.document["traceEvents"] if event["name"] not in {"loading", "step"}
    ]
    profiled.profile.write_text(json.dumps(profiled.document))
    rows = {row.name: row for row in profiled.added().rows}
    assert rows.keys() == PARTS.keys()
    for name in PARTS:
        assert rows[name].energy_joules == pytest.approx(profiled.truth[name], rel=0.05)


def test_ranges_too_short_to_be_told_apart_say_so(tmp_path):
    parts = {**PARTS, "tiny": (0.0002, 50.0)}
    rows = {row.name: row for row in Profiled(tmp_path, parts).added().rows}
    tiny = rows["tiny"]
    assert tiny.uncertainty_joules >= 0.5 * 400.0 * tiny.seconds
    assert rows["backward"].uncertainty_joules < 0.06 * rows["backward"].energy_joules


def test_ranges_of_the_gpu_are_taken_rather_than_those_of_the_cpu(tmp_path):
    profiled = Profiled(tmp_path)
    events = profiled.document["traceEvents"]
    on_gpu = [{**event, "cat": "gpu_user_annotation", "pid": 0} for event in events]
    early = [{**event, "ts": event["ts"] - 50_000, "name": "cpu " + event["name"]} for event in events]
    profiled.document["traceEvents"] = [*early, *on_gpu]
    profiled.profile.write_text(json.dumps(profiled.document))
    rows = {row.name: row for row in profiled.added().rows}
    assert rows.keys() == {*PARTS, "step"}
    assert rows["forward"].energy_joules == pytest.approx(profiled.truth["forward"], rel=0.05)


def test_ranges_of_the_cpu_beside_kernels_come_with_a_note(tmp_path):
    profiled = Profiled(tmp_path)
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 5.0}
    profiled.document["traceEvents"].append(kernel)
    profiled.profile.write_text(json.dumps(profiled.document))
    assert "The ranges are of the CPU" in profiled.added().notes[0]


def test_a_profile_of_another_clock_says_so(tmp_path, capsys):
    profiled = Profiled(tmp_path, ahead=500.0)
    assert main(["trace", "add", str(profiled.energy), str(profiled.profile), "-o", str(tmp_path / "x.json")]) == 2
    assert "of other trainings, of machines with other clocks" in capsys.readouterr().err


def test_a_profile_that_is_partly_outside_says_so(tmp_path):
    profiled = Profiled(tmp_path, ahead=6.0)
    assert any("The counter is known in" in note for note in profiled.added().notes)


def test_a_profile_without_ranges_says_what_to_do(tmp_path, capsys):
    profiled = Profiled(tmp_path, steps=3)
    profiled.profile.write_text('{"traceEvents": []}')
    assert main(["trace", "add", str(profiled.energy), str(profiled.profile), "-o", str(tmp_path / "x.json")]) == 2
    assert "has no ranges: put `with torch.profiler.record_function" in capsys.readouterr().err


def test_the_rank_is_the_one_that_the_profiler_tells(tmp_path):
    ranks = read_trace(Profiled(tmp_path, steps=3).energy).ranks
    assert rank_of(ranks, {}) is ranks[0]
    assert rank_of(ranks, {"distributedInfo": {"rank": 0}}) is ranks[0]
    with pytest.raises(UsageError, match="is of rank 3; the energy trace is of rank 0"):
        rank_of(ranks, {"distributedInfo": {"rank": 3}})
    with pytest.raises(UsageError, match="give --rank"):
        rank_of([*ranks, *ranks], {})
    assert rank_of([*ranks, *ranks], {}, 0) is ranks[0]


def test_bounds_hold_the_truth_and_widen_where_nothing_is_known():
    updates = Updates.from_updates([Update(0.1 * number, 0.001, 30.0 * number) for number in range(11)])
    bounds = Bounds(DeviceFacts(0, "GPU-1", "A100", 400.0, True, updates))
    low, high = bounds.between(0.25, 0.75)
    assert low <= 150 <= high
    assert high - low < 100
    assert bounds.between(0.51, 0.52) == pytest.approx((0.0, 4.0))
    assert bounds.between(5.0, 6.0) == (0.0, 400.0)
    assert not math.isinf(sum(bounds.between(-5.0, 20.0)))


@pytest.mark.long
@pytest.mark.real_time
def test_a_real_profile_of_torch(tmp_path):
    """A trace of Kineto, in real time."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    gpu = SimulatedGpu(find_preset("A100"))
    truth = {}
    with TrainingEnergy(ZeusMonitor(gpus=[gpu]), folder=tmp_path, trace=True, quiet=True) as energy:
        for _ in range(20):
            with energy.step():
                gpu.execute(Work(0.1, 250.0))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(100):
                with energy.step():
                    for name, (seconds, watts) in PARTS.items():
                        before = gpu.exact_energy_joules()
                        with record_function(name):
                            gpu.execute(Work(seconds, watts))
                            torch.ones(1)
                        truth[name] = truth.get(name, 0.0) + gpu.exact_energy_joules() - before
        time.sleep(1.0)
    profiler.export_chrome_trace(str(tmp_path / "profile.json"))
    output = tmp_path / "with-joules.json.gz"
    energy_trace = tmp_path / "zeus-energy" / "trace-0.json.gz"
    assert main(["trace", "add", str(energy_trace), str(tmp_path / "profile.json"), "-o", str(output)]) == 0
    rows = {row["name"]: row for row in read_document(output)["zeus_core_ranges"]["rows"]}
    for name, joules in truth.items():
        assert abs(rows[name]["energy_joules"] - joules) <= rows[name]["uncertainty_joules"]
