"""The traces of several ranks in one."""

import random

import pytest

from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.tracing._trace_events import complete, microseconds
from zeus_core.tracing.clocks import Meeting, compare_clocks
from zeus_core.tracing.facts import PhaseEnergy, RankFacts
from zeus_core.tracing.merge import merge, traces_in
from zeus_core.tracing.trace_file import Trace, read_trace, trace_path, write_trace
from zeus_core.training import TrainingEnergy

TRUE_BEGIN = 1_700_000_000.0
SECONDS = 600.0


def clock_of(rank):
    """Return what the clock of a rank shows: up to 50 ms ahead or behind, and up to 100 ppm fast or slow."""
    ahead, drift = ((0.0, 0.0), (0.05, 1e-4), (-0.05, -1e-4), (0.03, -1e-4))[rank]
    return lambda at: TRUE_BEGIN + at + ahead + drift * at


def write_rank(folder, rank, size=4, begin=0.0, is_compared=True, machine=None, set_by=0.0, late_seconds=8e-4):
    """Write the trace of a rank; its machine's wall clock was set by some seconds before it began.

    Every rank has a span from the same true moment to the same true moment, each 10 s.
    """
    choose = random.Random(rank)
    on_machine, shows_0 = clock_of(rank if machine is None else machine), clock_of(0)

    def shows(at):
        return on_machine(at) + set_by

    base = shows(begin)
    points = []
    for at in (begin, begin + 20, begin + 100, begin + SECONDS):
        late = [[choose.uniform(0.06 * late_seconds, late_seconds) for _ in range(4)] for _ in range(8)]
        meetings = [
            Meeting(
                shows(at + enters), shows(at + max(enters, enters_0) + left),
                shows_0(at + enters_0), shows_0(at + max(enters, enters_0) + left_0),
            )
            for enters, enters_0, left, left_0 in late
        ]  # fmt: skip
        points.append(compare_clocks(meetings, shows(at) - base))
    spans = [
        complete(rank, 1, "together", shows(begin + at) - base, shows(begin + at + 5) - base, {"at": at})
        for at in range(0, int(SECONDS), 10)
    ]
    phase = PhaseEnergy(SECONDS, DeviceEnergy(100.0 * (rank + 1), 1.0))
    facts = RankFacts(
        *(rank, size, f"node-{rank // 2}", round(base * 1e9), shows(begin + SECONDS) - base),
        clock=tuple(points) if is_compared else (),
        phases={"steps": phase},
        total=phase,
        machine="" if machine is None else f"machine {machine}",
        machine_nanoseconds=0 if machine is None else round((on_machine(begin) - TRUE_BEGIN) * 1e9),
    )
    write_trace(trace_path(folder, rank), Trace(facts.base_nanoseconds, [facts], spans))


@pytest.fixture
def folder(tmp_path):
    for rank in range(4):
        write_rank(tmp_path / "zeus-energy", rank)
    return tmp_path


def test_clocks_50_ms_apart_drifting_100_ppm_align_within_a_millisecond(folder, tmp_path):
    merged = merge(traces_in(folder))
    assert merged.notes == []
    assert merged.trace.skew_seconds < 2e-3
    together = {}
    for event in merged.trace.events:
        assert event["dur"] == pytest.approx(5e6, abs=1000)
        together.setdefault(event["args"]["at"], []).append(event["ts"])
    skews = [max(moments) - min(moments) for moments in together.values()]
    assert len(skews) == 60
    assert all(len(moments) == 4 for moments in together.values())
    assert max(skews) < microseconds(1e-3)
    assert max(skews) < microseconds(merged.trace.skew_seconds)


def test_ranks_of_one_machine_share_its_clock_and_its_best_comparison(tmp_path):
    """Rank 1 was not compared, and the exchanges of rank 2 were slow; wall clocks were set between the beginnings."""
    write_rank(tmp_path, 0, machine=0)
    write_rank(tmp_path, 1, machine=0, is_compared=False, begin=20.0, set_by=0.07)
    write_rank(tmp_path, 2, machine=3, late_seconds=0.05)
    write_rank(tmp_path, 3, machine=3, begin=-30.0, set_by=-0.02)
    merged = merge(traces_in(tmp_path))
    assert merged.notes == []
    assert merged.trace.skew_seconds < 2e-3
    together = {}
    for event in merged.trace.events:
        began = {0: 0, 1: 20, 2: 0, 3: -30}[event["pid"]]
        together.setdefault(began + event["args"]["at"], {})[event["pid"]] = event["ts"]
    of_all = [moments for moments in together.values() if len(moments) == 4]
    assert len(of_all) > 50
    for moments in of_all:
        assert moments[0] == pytest.approx(moments[1], abs=1)
        assert moments[2] == pytest.approx(moments[3], abs=1)
        assert moments[0] == pytest.approx(moments[3], abs=microseconds(merged.trace.skew_seconds))


def test_real_ranks_of_one_machine_are_a_microsecond_apart(tmp_path):
    """However busy the machine is: nothing is exchanged, as two of four are traced."""

    def rank_main(world):
        gpus = [SimulatedGpu(find_preset("A100"), world.rank)]
        with (
            TrainingEnergy(
                ZeusMonitor(gpus=gpus), world=world, folder=tmp_path, trace=world.rank % 2 == 0, quiet=True
            ) as energy,
            energy.step(),
        ):
            energy.log()

    ThreadWorld.run(4, rank_main, timeout_seconds=120.0)
    merged = merge(traces_in(tmp_path))
    assert merged.trace.skew_seconds == 1e-6
    assert len({rank.machine for rank in merged.trace.ranks}) == 1
    assert merged.notes == ["2 of 4 ranks are missing: 1, 3"]


def test_the_command_writes_one_file_that_states_the_skew(folder, tmp_path, capsys):
    output = tmp_path / "all.json.gz"
    assert main(["trace", "merge", str(folder), "-o", str(output)]) == 0
    assert "4 ranks on 2 machines, clocks aligned within " in capsys.readouterr().out
    trace = read_trace(output)
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 3]
    assert 0 < trace.skew_seconds < 2e-3
    assert min(event["ts"] for event in trace.events) >= -1000


def test_missing_damaged_and_old_ranks_are_left_out_with_a_note(folder, tmp_path, capsys):
    place = folder / "zeus-energy"
    trace_path(place, 1).unlink()
    trace_path(place, 2).write_bytes(b"")
    write_rank(place, 3, size=8, begin=-9000.0)
    assert main(["trace", "merge", str(folder), "-o", str(tmp_path / "all.json.gz")]) == 0
    printed = capsys.readouterr()
    assert "1 ranks on 1 machines: " in printed.out
    assert "trace-2.json.gz cannot be read" in printed.err
    assert "trace-3.json.gz is of a job of 8 ranks, not of 4" in printed.err
    assert "3 of 4 ranks are missing: 1, 2, 3" in printed.err


def test_clocks_that_were_not_compared_have_an_unknown_skew(folder, tmp_path):
    write_rank(folder / "zeus-energy", 2, is_compared=False)
    merged = merge(traces_in(folder))
    assert merged.trace.skew_seconds is None
    assert "the clocks of ranks 2 were not compared" in merged.notes[0]
    assert len(list(merged.trace.events)) == 240


def test_a_merged_file_is_not_merged_again(folder, tmp_path, capsys):
    output = str(tmp_path / "all.json.gz")
    main(["trace", "merge", str(folder), "-o", output])
    assert main(["trace", "merge", output, "-o", output]) == 2
    assert "is merged already" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["merge", "show"])
def test_a_folder_without_traces_says_so(tmp_path, action, capsys):
    output = ["-o", str(tmp_path / "x.json")] if action == "merge" else []
    assert main(["trace", action, str(tmp_path), *output]) == 2
    assert "holds no trace-0.json.gz: train with trace=True" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_says_so(folder, capsys):
    assert main(["trace", "merge", str(folder), "-o", "/proc/none/x"]) == 2
    assert "--output is '/proc/none/x', which cannot be written" in capsys.readouterr().err


def test_the_phases_of_all_ranks_are_shown(folder, capsys):
    assert main(["trace", "show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["steps", "600", "1.0000", "±0.0040", "kJ", "100.0%", "1.67"]
    trace_path(folder / "zeus-energy", 3).unlink()
    assert main(["trace", "show", str(folder)]) == 0
    assert "Without rank 3, of which no trace was given." in capsys.readouterr().out
    assert main(["trace", "show", str(folder), "--json"]) == 0
    assert '"energy_joules": 600.0' in capsys.readouterr().out


def test_ranks_of_a_training_are_merged_by_what_they_have_exchanged(tmp_path):
    def rank_main(world):
        time_source = VirtualTime()
        time_source.set_clock(1e9 + 0.05 * world.rank)
        monitor = ZeusMonitor(
            gpus=[SimulatedGpu(find_preset("A100"), world.rank, time_source=time_source)], time_source=time_source
        )
        with TrainingEnergy(monitor, world=world, folder=tmp_path, trace=True, quiet=True) as energy:
            for _ in range(5):
                with energy.step():
                    time_source.advance(0.1)
                energy.log()

    ThreadWorld.run(4, rank_main, timeout_seconds=60.0)
    merged = merge(traces_in(tmp_path))
    assert merged.trace.skew_seconds == pytest.approx(0.0, abs=1e-6)
    begins = [event["ts"] for event in merged.trace.events if event["name"] == "step" and event["args"]["step"] == 1]
    assert begins == pytest.approx(begins[:1] * 4, abs=1)


def test_nothing_to_merge_is_an_error():
    with pytest.raises(UsageError, match="no trace"):
        merge([])
