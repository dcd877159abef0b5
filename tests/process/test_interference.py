"""Whatever owners, administrators and faults do, in any order: nobody's value is overwritten, and nothing is left."""

import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.few_processes import FewProcesses
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceHeldError, DriverFaultError
from zeus_core.kinds import POWER_LIMIT
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.keeper import Keeper
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import restore_entry
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime

ORIGINAL_WATTS = 250.0
OURS = st.sampled_from([100.0, 150.0, 200.0])  # few, so that one job sets what another has set
THEIRS = st.sampled_from([125.0, 175.0, 300.0])


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr("zeus_core.device.retry._WAITS_SECONDS", (0.0,) * 3)


class Job:
    """A process that changes the GPU as a `Lease` does."""

    def __init__(self, machine, pid):
        self.machine = machine
        entry = LedgerEntry.of_this_process(
            machine.gpu.uuid, "A40", POWER_LIMIT, machine.gpu._gpu.read_power_limit_watts()
        )
        owner = machine.processes.begin(pid)
        self.entry = replace(entry, owner=owner, owner_token=f"token {owner.start_ticks}")
        self.in_force = ()
        self.has_claimed = self.is_refused = False

    @property
    def lives(self):
        return self.entry.owner.is_alive(self.machine.processes)

    def set(self, watts, dies):
        """Change the limit, or be killed right before the driver does, or right after."""
        machine = self.machine
        self.entry = self.entry.changing_to(watts, self.in_force)
        if self.has_claimed:
            machine.ledger.note_values(self.entry)
        else:
            try:
                machine.ledger.claim(self.entry, lambda entry: restore_entry(machine.gpu, entry))
            except DeviceHeldError:
                self.is_refused = True
                assert any(job.has_claimed and job.lives for job in machine.all_jobs if job is not self)
                return
            self.has_claimed = True
        limit_watts = retried(machine.gpu.read_power_limit_watts)
        if limit_watts not in (self.in_force or (self.entry.original,)):
            machine.ledger.close(self.entry)
            self.has_claimed, self.is_refused = False, True
            return
        if dies == "before":
            self.die()
            return
        self.in_force = (*self.in_force, watts)
        with contextlib.suppress(DriverFaultError):  # then both values count as ours
            machine.gpu.set_power_limit(watts)
            if dies == "after":
                self.die()
                return
            shown = retried(machine.gpu.read_power_limit_watts)
            self.in_force, self.entry = (watts, shown), self.entry.showing(shown)
            machine.ledger.note_values(self.entry)

    def die(self):
        self.machine.processes.began.pop(self.entry.owner.pid, None)


class Board(FaultyGpu):
    """A GPU that rounds the limits that are requested, but not those of administrators."""

    step_watts = 1.0

    def rounded(self, watts):
        return max(watts // self.step_watts * self.step_watts, self._gpu.read_power_limit_range_watts().lowest_watts)

    def set_power_limit(self, watts):
        super().set_power_limit(self.rounded(watts))


class Interleavings(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    def __init__(self, ledger):
        super().__init__()
        self.gpu = Board(SimulatedGpu(find_preset("A40"), time_source=VirtualTime(), power_limit_watts=ORIGINAL_WATTS))
        self.all_jobs, self.nobodys = [], ORIGINAL_WATTS
        self.ledger, self.processes = ledger, ledger._processes
        self.keeper = Keeper(lambda uuid: self.gpu, self.ledger)

    @initialize(step_watts=st.sampled_from([1.0, 20.0, 30.0]))
    def make_board(self, step_watts):
        self.gpu.step_watts = step_watts

    @rule(target=jobs, pid=st.integers(100, 102))
    def start(self, pid):
        if pid in self.processes.began:
            pid += 100 + self.processes.ticks  # an id that nobody has
        self.ledger.restore_stale(lambda entry: restore_entry(self.gpu, entry))  # as every start does
        found = self.ledger.entries()
        self.all_jobs.append(Job(self, pid))
        if found:
            self.all_jobs[-1].entry = replace(self.all_jobs[-1].entry, original=found[0].original)
        return self.all_jobs[-1]

    @rule(job=jobs, watts=OURS, dies=st.sampled_from([None, None, "before", "after"]))
    def set(self, job, watts, dies):
        if job.lives and not job.is_refused:
            job.set(watts, dies)

    @rule(job=jobs)
    def end_well(self, job):
        if job.lives and job.has_claimed:
            assert self.ledger.finish(restore_entry(self.gpu, job.entry)).is_done
            job.has_claimed, job.is_refused = False, True

    @rule(job=jobs)
    def kill(self, job):
        job.die()

    @rule(job=consumes(jobs))
    def guardian_restores(self, job):
        """At any time after the end, also when others have claimed the GPU since."""
        job.die()
        if job.has_claimed:
            limit_watts = self.gpu._gpu.read_power_limit_watts()
            assert self.keeper.restore(job.entry).is_done
            if any(other.has_claimed and other.lives for other in self.all_jobs):
                assert self.gpu._gpu.read_power_limit_watts() == limit_watts, "it is that of another job"

    @rule(watts=THEIRS)
    def administrator_sets(self, watts):
        """At any time, but for the milliseconds in which nobody knows what a board will show for a new limit."""
        if any(entry.is_changing for entry in self.ledger.entries()):
            return
        self.gpu._gpu.set_power_limit(watts)
        self.nobodys = watts

    @rule(method=st.sampled_from(["read_power_limit_watts", "set_power_limit"]), times=st.integers(1, 3))
    def fault_that_passes(self, method, times):
        self.gpu.heal()
        self.gpu.fail(method, DriverFaultError("busy"), times=times)

    @invariant()
    def what_nobody_holds_is_as_nobody_has_changed_it(self):
        if not self.ledger.entries():
            assert self.gpu._gpu.read_power_limit_watts() in (self.nobodys, self.gpu.rounded(self.nobodys))

    def teardown(self):
        for job in self.all_jobs:
            job.die()
        self.ledger.restore_stale(lambda entry: restore_entry(self.gpu, entry))
        self.what_nobody_holds_is_as_nobody_has_changed_it()
        assert self.ledger.entries() == []


def test_nothing_is_left_and_nobody_is_overwritten_whatever_the_order(tmp_path):
    numbers = itertools.count()

    def make_machine():
        return Interleavings(Ledger(str(tmp_path / str(next(numbers))), FewProcesses()))

    run_state_machine_as_test(make_machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


class Training:
    """A search on an A40 at an original limit of 250 W."""

    def __init__(self, steps, **options):
        time_source = VirtualTime()
        simulated = SimulatedGpu(find_preset("A40"), time_source=time_source, power_limit_watts=ORIGINAL_WATTS)
        self.gpu, self.cap_watts = simulated, 1000.0
        simulated.read_enforced_power_limit_watts = lambda: min(simulated.read_power_limit_watts(), self.cap_watts)
        monitor = ZeusMonitor(gpus=[simulated], time_source=time_source)
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor, wait_steps=0, warmup_steps=1, profile_steps=4, pl_step=50, quiet=True, **options
        )
        self.train(steps)

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.on_step_begin()
            self.gpu.execute(Work(0.9, 289.2, 0.889, 0.784))
            self.optimizer.on_step_end()

    @property
    def tried(self):
        return [trial.setting for trial in self.optimizer.trials]


class Limits:
    """The limits that were set, in place of a GPU's method."""

    def __init__(self, gpu):
        self.watts, self._set = [], gpu.set_power_limit
        gpu.set_power_limit = self

    def __call__(self, watts):
        self.watts.append(watts)
        self._set(watts)


@pytest.mark.parametrize("theirs_watts", [160.0, 225.0])
def test_a_search_begins_anew_below_a_lower_limit_that_an_administrator_sets(caplog, theirs_watts):
    training = Training(8)
    limits = Limits(training.gpu)
    training.gpu.set_power_limit(theirs_watts)
    training.train(40)
    assert training.optimizer.phase is Phase.DONE
    assert training.tried[0] == theirs_watts, "their limit is the original one now"
    assert len(training.tried) > 1
    assert max(limits.watts) == theirs_watts, "it is never raised"
    training.optimizer.close()
    assert training.gpu.read_power_limit_watts() == theirs_watts
    (record,) = caplog.records
    assert f"to {theirs_watts:g} W, in place of 200 W: it stays" in record.getMessage()
    assert "the search for a power limit begins anew below it" in record.getMessage()


def test_a_search_that_begins_anew_has_the_steps_that_are_left():
    training = Training(8, max_steps=60)
    training.gpu.set_power_limit(160.0)
    training.train(4)
    assert training.optimizer._search.max_steps == 60 - 10


@pytest.mark.parametrize("capped", [1, 2])
def test_all_ranks_begin_anew_or_none(capped):
    """One GPU at a lower limit leaves the highest original limit as it was: nothing is lower for all."""

    def search(world):
        training = Training(8, world=world)
        if world.rank < capped:
            training.gpu.set_power_limit(160.0)
        training.train(40)
        training.optimizer.close()
        return training.optimizer.phase, training.tried[:1], training.gpu.read_power_limit_watts()

    ended = ThreadWorld.run(2, search, timeout_seconds=30.0)
    if capped == 2:
        assert ended == [(Phase.REST, [160], 160.0)] * 2
    else:
        assert ended == [(Phase.OFF, [250], 160.0), (Phase.OFF, [250], ORIGINAL_WATTS)]


def test_a_search_ends_where_the_new_limit_leaves_nothing_to_search(caplog):
    training = Training(8)
    training.gpu.set_power_limit(100.0)  # the lowest that the board accepts
    training.train(40)
    assert training.optimizer.phase is Phase.OFF
    assert training.gpu.read_power_limit_watts() == 100.0
    (record,) = caplog.records
    assert "is off for the rest of this run" in record.getMessage()


def test_a_search_ends_where_a_limit_is_set_again_and_again(caplog):
    training = Training(8)
    for _ in range(3):
        training.gpu.set_power_limit(160.0)
        training.train(7)
    assert training.optimizer.phase is Phase.OFF
    assert training.gpu.read_power_limit_watts() == 160.0
    assert ["anew" in record.getMessage() for record in caplog.records] == [True, False]


@pytest.mark.parametrize("theirs_watts", [250.0, 300.0])
@pytest.mark.parametrize("steps", [8, 10])  # within a trial, and after its last step
def test_an_administrators_limit_not_below_the_original_ends_a_search_and_stays(caplog, theirs_watts, steps):
    training = Training(steps)
    before = training.gpu.read_power_limit_watts()
    tried = training.tried
    training.gpu.set_power_limit(theirs_watts)
    training.train(40)
    assert training.optimizer.phase is Phase.OFF
    assert training.gpu.read_power_limit_watts() == theirs_watts
    assert training.tried == tried, "the trial is dropped"
    training.optimizer.close()
    assert training.gpu.read_power_limit_watts() == theirs_watts
    (record,) = caplog.records
    assert f"somebody else has set the power limit of A40 (simulated) ({training.gpu.uuid}) to {theirs_watts:g} W" in (
        record.getMessage()
    )
    assert f"in place of {before:g} W: it stays" in record.getMessage()
    text = training.optimizer.result()["power limit"]
    assert "somebody else has set the power limit" in text
    assert ("was not restored on 1 GPU" in text) == (theirs_watts != ORIGINAL_WATTS)


def test_a_trial_in_which_the_enforced_limit_fell_is_made_again(caplog):
    training = Training(8)
    training.cap_watts = 120.0  # as a board management controller does
    training.train(2)
    assert "the power limit in force has changed" in caplog.text
    assert training.tried == [250]
    training.cap_watts = 1000.0
    training.train(10)
    assert training.tried == [250, 200]
