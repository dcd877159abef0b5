"""Tallies, accounts and what is kept of them: values alone."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.accounts import accounts
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.journal import Journal, earlier_account
from zeus_core.training.record.journal_lines import Entry
from zeus_core.training.record.resume import CHECKPOINT, Checkpoint


def taken(seconds, joules, lost_seconds=0.0):
    return Tally(seconds, DeviceEnergy(joules, 0.0), lost_seconds)


def entry(part, begin_step, step, joules, run="run"):
    tally = taken(float(joules), float(joules))
    return Entry(run, part, begin_step, step, Account(tally, {Activity.STEPS: tally}))


@given(accounts)
def test_accounts_survive_json(account):
    checkpoint = Checkpoint("run", 4, account)
    assert CHECKPOINT.from_json(json.loads(json.dumps(CHECKPOINT.to_json(checkpoint)))) == checkpoint


@given(accounts, accounts)
def test_parts_add_up(first, second):
    both = first + second
    assert both.total.seconds == first.total.seconds + second.total.seconds
    assert both.samples == first.samples + second.samples
    joules = sum(tally.measured_joules for part in (first, second) for tally in part.activities.values())
    assert math.isclose(sum(tally.measured_joules for tally in both.activities.values()), joules, abs_tol=1e-3)


@given(st.lists(accounts, min_size=1, max_size=4))
def test_ranks_take_the_longest_time_and_all_energy(ranks):
    job = Account.from_ranks(ranks)
    assert job.total.seconds == max(rank.total.seconds for rank in ranks)
    joules = sum(rank.total.measured_joules for rank in ranks)
    assert math.isclose(job.total.measured_joules, joules, abs_tol=len(ranks) * 2**-33)  # each rounded to 2^-32 J
    assert job.tokens == sum(rank.tokens for rank in ranks)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    )
)
def test_anything_else_in_a_checkpoint_is_a_clear_error(fields):
    with pytest.raises(UsageError):
        CHECKPOINT.from_json(fields)


def test_lost_energy_is_not_zero():
    tally = Tally(2.0, lost_seconds=2.0)
    assert tally.energy_joules is None
    assert tally.power_watts is None
    assert (tally + taken(1.0, 50.0)).lost_seconds == 2.0


def test_a_loss_before_leaves_what_comes_after_known():
    before = taken(10.0, 5.0, lost_seconds=4.0)
    assert (before + taken(2.0, 3.0) - before).energy_joules == 3.0


def test_an_energy_that_one_rank_has_lost_is_lost_to_all():
    """A shorter loss on another rank, after a longer one on the first, must show in the difference."""
    before = Account.from_ranks([Account(taken(10.0, 5.0, 4.0)), Account(taken(10.0, 9.0))])
    after = Account.from_ranks([Account(taken(20.0, 10.0, 4.0)), Account(taken(20.0, 17.0, 1.0))])
    assert (after.total - before.total).energy_joules is None


def test_what_is_done_again_is_what_came_after_the_checkpoint():
    first = [entry("a", 0, 10, 100), entry("a", 0, 20, 200), entry("a", 0, 25, 250)]
    second = [entry("b", 20, 30, 110), entry("b", 20, 38, 190)]
    assert earlier_account([first], "run", 20).redone.measured_joules == 50
    both = earlier_account([[*first, *second]], "run", 30)
    assert both.total.measured_joules == 250 + 190
    assert both.redone.measured_joules == 50 + 80
    inherited = Entry("run", "before", 0, 40, Account(taken(9.0, 900.0), redone=taken(1.0, 100.0)))
    assert earlier_account([[inherited]], "run", 40).redone.measured_joules == 100
    from_the_start_again = earlier_account([[*first, *second]], "run", 10)
    assert from_the_start_again.redone.measured_joules == (250 - 100) + 190


def written(part, joules, at_seconds, is_end=False):
    return replace(entry(part, 0, joules, joules), at_seconds=at_seconds, is_end=is_end)


def test_a_killed_part_may_have_used_more_than_it_recorded():
    """It wrote at 100 W each 10 s at the latest: what it did after its last entry lasted no longer."""
    killed = [written("a", 0, 0.0), written("a", 5, 5.0), written("a", 15, 15.0), written("a", 20, 20.0)]
    account = earlier_account([killed], "run", 0, now_seconds=500.0)
    assert (account.interruptions, account.unrecorded_joules) == (1, 10.0)
    soon = earlier_account([killed], "run", 0, now_seconds=23.0)
    assert (soon.interruptions, soon.unrecorded_joules) == (1, 3.0)
    ended = [*killed, written("a", 25, 25.0, is_end=True)]
    assert earlier_account([ended], "run", 0, now_seconds=500.0).unrecorded_joules == 0.0
    assert earlier_account([ended], "run", 0, now_seconds=500.0).interruptions == 0
    at_once = [*killed, written("b", 0, 30.0)]  # which was killed before its first log
    account = earlier_account([at_once], "run", 0, now_seconds=500.0)
    assert (account.interruptions, account.unrecorded_joules) == (2, 10.0 + 10.0)
    nothing = earlier_account([[written("b", 0, 30.0)]], "run", 0, now_seconds=500.0)
    assert (nothing.interruptions, nothing.unrecorded_joules) == (1, None)
    both = earlier_account([killed, killed], "run", 0, now_seconds=500.0)
    assert (both.interruptions, both.unrecorded_joules) == (1, 20.0)


def test_ranks_and_other_runs_are_told_apart():
    ranks = [[entry("a", 0, 10, 100), entry("x", 0, 10, 7, run="other")], [entry("b", 0, 10, 300)]]
    assert earlier_account(ranks, "run", 10).total.measured_joules == 400
    assert earlier_account(ranks, "other", 10).total.measured_joules == 7
    assert earlier_account(ranks, "unknown", 10) is None


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5))
def test_however_often_interrupted_a_run_does_every_step_once_or_again(parts):
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
        file.write((tmp_path / "rank-0.jsonl").read_text()[:40])
    next_part = Journal(tmp_path, rank=0, world_size=1)
    next_part.append(entry("b", 1, 3, 30))
    (entries,) = next_part.read("run")
    assert [line.step for line in entries] == [1, 3]
    assert "1 lines of the energy journal" in caplog.text


def test_the_journals_of_ranks_that_are_no_more_are_read_by_others(tmp_path):
    for rank in range(4):
        Journal(tmp_path, rank, world_size=4).append(entry(f"part {rank}", 0, 1, rank))
    parts = [[line.part for entries in Journal(tmp_path, rank, 2).read("run") for line in entries] for rank in range(2)]
    assert parts == [["part 0", "part 2"], ["part 1", "part 3"]]


def test_an_unwritable_journal_is_one_warning(tmp_path, caplog):
    (tmp_path / "journal").write_text("in the way")
    journal = Journal(tmp_path / "journal", 0, 1)
    for step in range(3):
        journal.append(entry("a", 0, step, 1))
    assert caplog.text.count("cannot be written") == 1
    assert journal.read("run") == []
