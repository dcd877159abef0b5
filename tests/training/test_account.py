"""Tallies, accounts and what is kept of them: values alone."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.measurement import Measurement
from zeus_core.training import Account, Tally
from zeus_core.training._checkpoint import Checkpoint
from zeus_core.training._history import earlier_account
from zeus_core.training._journal import Entry, Journal
from zeus_core.training._tally import tally_of

amounts = st.floats(0, 1e9)
tallies = st.builds(Tally, amounts, amounts, amounts, st.sampled_from([0.0, 1.5]))
accounts = st.builds(
    Account,
    tallies,
    st.dictionaries(st.sampled_from(list(Activity)), tallies),
    tallies,
    st.integers(0, 10**9),
    st.integers(0, 10**12),
)


def entry(part, begin_step, step, joules, run="run"):
    tally = Tally(float(joules), float(joules))
    return Entry(run, part, begin_step, step, Account(tally, {Activity.STEPS: tally}))


@given(accounts)
def test_accounts_survive_json(account):
    assert Account.from_json(json.loads(json.dumps(account.to_json()))) == account
    checkpoint = Checkpoint("run", 4, account)
    assert Checkpoint.from_json(json.loads(json.dumps(checkpoint.to_json()))) == checkpoint
    line = Entry("run", "part", 3, 5, account).to_line()
    assert "\n" not in line
    assert Entry.from_line(line) == Entry("run", "part", 3, 5, account)


@given(accounts, accounts)
def test_parts_add_up(first, second):
    both = first + second
    assert both.total.seconds == first.total.seconds + second.total.seconds
    assert both.samples == first.samples + second.samples
    joules = sum(it.measured_joules for part in (first, second) for it in part.activities.values())
    assert math.isclose(sum(it.measured_joules for it in both.activities.values()), joules, abs_tol=1e-3)


@given(st.lists(accounts, min_size=1, max_size=4))
def test_ranks_take_the_longest_time_and_all_energy(ranks):
    job = Account.of_ranks(ranks)
    assert job.total.seconds == max(rank.total.seconds for rank in ranks)
    assert math.isclose(job.total.measured_joules, sum(rank.total.measured_joules for rank in ranks))
    assert job.tokens == sum(rank.tokens for rank in ranks)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)
    )
)
def test_anything_else_in_a_file_is_a_clear_error(fields):
    for read in (Account.from_json, Checkpoint.from_json, Tally.from_json):
        with pytest.raises(UsageError):
            read(fields)
    with pytest.raises(UsageError):
        Entry.from_line(json.dumps(fields))


@pytest.mark.parametrize("number", [math.nan, math.inf, True, "1", None])
def test_no_number_but_a_finite_one_passes(number):
    with pytest.raises(UsageError):
        Tally.from_json({**Tally().to_json(), "measured_joules": number})


def test_lost_energy_is_not_zero():
    lost = Measurement(2.0, {0: 100.0, 1: None}, gpu_uncertainty_joules={0: 1.0, 1: None})
    tally = tally_of(lost, [0, 1])
    assert tally.energy_joules is None
    assert tally.power_watts is None
    assert (tally + Tally(1.0, 50.0)).lost_seconds == 2.0
    assert tally_of(lost, [0]).energy_joules == 100.0
    assert tally_of(lost, []).energy_joules == 0.0


def test_what_one_rank_has_lost_all_have():
    """A shorter loss on another rank, after a longer one on the first, must show in the difference."""
    before = Tally.of_ranks([Tally(10.0, 5.0, 0.0, 4.0), Tally(10.0, 9.0)])
    after = Tally.of_ranks([Tally(20.0, 10.0, 0.0, 4.0), Tally(20.0, 17.0, 0.0, 1.0)])
    assert (after - before).energy_joules is None


def test_what_is_done_again_is_what_came_after_the_checkpoint():
    first = [entry("a", 0, 10, 100), entry("a", 0, 20, 200), entry("a", 0, 25, 250)]
    second = [entry("b", 20, 30, 110), entry("b", 20, 38, 190)]
    assert earlier_account([first], "run", 20).redone.measured_joules == 50
    both = earlier_account([[*first, *second]], "run", 30)
    assert both.total.measured_joules == 250 + 190
    assert both.redone.measured_joules == 50 + 80
    inherited = Entry("run", "before", 0, 40, Account(Tally(9.0, 900.0), redone=Tally(1.0, 100.0)))
    assert earlier_account([[inherited]], "run", 40).redone.measured_joules == 100
    from_the_start_again = earlier_account([[*first, *second]], "run", 10)
    assert from_the_start_again.redone.measured_joules == (250 - 100) + 190


def test_ranks_and_other_runs_are_told_apart():
    ranks = [[entry("a", 0, 10, 100), entry("x", 0, 10, 7, run="other")], [entry("b", 0, 10, 300)]]
    assert earlier_account(ranks, "run", 10).total.measured_joules == 400
    assert earlier_account(ranks, "other", 10).total.measured_joules == 7
    assert earlier_account(ranks, "unknown", 10) is None


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5))
def test_however_often_a_run_is_interrupted_every_step_is_done_once_or_redone(parts):
    """Parts of 1 J a step, flushed at each: what is neither redone nor missing is the final step."""
    entries, begin = [], 0
    for number, (length, back) in enumerate(parts):
        entries += [entry(str(number), begin, step, step - begin) for step in range(begin + 1, begin + length + 1)]
        begin = max(begin + length - back, 0)
    earlier = earlier_account([entries], "run", begin)
    assert earlier.total.measured_joules == sum(length for length, _ in parts)
    assert earlier.total.measured_joules - earlier.redone.measured_joules == begin


def test_a_line_that_a_kill_has_cut_spoils_nothing(tmp_path, caplog):
    Journal(tmp_path, rank=0, world_size=1).append(entry("a", 0, 1, 10))
    with (tmp_path / "rank-0.jsonl").open("a") as file:
        file.write(entry("a", 0, 2, 20).to_line()[:40])
    next_part = Journal(tmp_path, rank=0, world_size=1)
    next_part.append(entry("b", 1, 3, 30))
    (entries,) = next_part.read("run")
    assert [it.step for it in entries] == [1, 3]
    assert "1 lines of the energy journal" in caplog.text


def test_the_journals_of_ranks_that_are_no_more_are_read_by_others(tmp_path):
    for rank in range(4):
        Journal(tmp_path, rank, world_size=4).append(entry(f"part {rank}", 0, 1, rank))
    parts = [[it.part for entries in Journal(tmp_path, rank, 2).read("run") for it in entries] for rank in range(2)]
    assert parts == [["part 0", "part 2"], ["part 1", "part 3"]]


def test_an_unwritable_journal_is_said_once(tmp_path, caplog):
    (tmp_path / "journal").write_text("in the way")
    journal = Journal(tmp_path / "journal", 0, 1)
    for step in range(3):
        journal.append(entry("a", 0, step, 1))
    assert caplog.text.count("cannot be written") == 1
    assert journal.read("run") == []
