"""The optimizer from the first step to the deployed plan, on simulated pipelines in virtual time."""

import itertools
import logging
import queue
import re
from dataclasses import replace

import pytest

from tests.support.pipeline_training import (
    A100,
    FULL_COURSE,
    CountedFaults,
    Late,
    Run,
    SlowToSet,
    Watched,
    own_optimizer,
    train_with,
    trained,
    true_profile,
    works,
)
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedNoise, Work
from zeus_core.errors import DriverFaultError, NotSupportedError, PermissionDeniedError, UsageError, WorldError
from zeus_core.events import Activity
from zeus_core.pipeline import (
    Frontier,
    PipelineFrequencyOptimizer,
    PipelineFrequencySettings,
    PipelineProfile,
    PipelineRank,
    make_plan,
    schedules,
    write_plan,
)
from zeus_core.pipeline.optimizer import _planning
from zeus_core.pipeline.optimizer._pipeline_planner import plan_all
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.pipeline.testing import SimulatedJob
from zeus_core.ports.device_events import HostEvents
from zeus_core.testing import FaultyGpu, VirtualBackground


@pytest.fixture(autouse=True)
def ranks_are_threads(caplog):
    """Signals are guarded against in the main thread only, which says so."""
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.ERROR)
    yield
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("stages", "microbatches", "model"),
    [
        (2, 8, A100),
        *(pytest.param(*case, marks=pytest.mark.long) for case in [(4, 8, "A40"), (2, 16, "A40"), (4, 16, A100)]),
    ],
)
def test_the_profile_is_true_and_the_plan_keeps_what_it_promises(stages, microbatches, model):
    work, schedule = works(stages, model), schedules.one_f_one_b(stages, microbatches)
    run = trained(stages, microbatches, model)
    assert run.course == FULL_COURSE

    truth = true_profile(work, model)
    for measured in run.first.latest["profile"].instructions:
        true = {option.clock_mhz: option for option in truth.get(measured.stage, measured.kind).options}
        pairs = [(option, true[option.clock_mhz]) for option in measured.options]
        assert len(pairs) >= 6
        for option, one in pairs:
            assert option.time_seconds == pytest.approx(one.time_seconds, rel=1e-6)
            assert option.energy_joules == pytest.approx(one.energy_joules, rel=0.01)
        for (option, one), (next_option, next_one) in itertools.pairwise(pairs):
            difference = (option.energy_joules - next_option.energy_joules) - (
                one.energy_joules - next_one.energy_joules
            )
            assert abs(difference) <= 0.01 * one.energy_joules

    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(replayed) == pytest.approx(run.seconds(found), rel=1e-3)
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.01)
    assert run.seconds(replayed) == pytest.approx(run.first.latest["predicted"].step_seconds, rel=1e-3)
    assert run.first.latest["measured"].energy_joules == pytest.approx(run.joules(replayed), rel=0.01)
    frontier = Frontier.from_profile(truth, schedule)
    best = 1 - make_plan(frontier, slowdown_factor=1.0).energy_joules / frontier.highest_clock_point[1]
    saved = 1 - run.joules(replayed) / run.joules(found)
    assert saved >= 0.93 * best
    assert run.is_restored()


@pytest.mark.parametrize("model", [pytest.param(A100, marks=pytest.mark.long), "A40"])
def test_profiling_costs_few_iterations_and_ends(model):
    run = trained(4, 8, model)
    steps = run.steps_of(PlanningPhase.PROFILING)
    seconds = sum(max(rank.step_seconds[step] for rank in run.ranks) for step in steps)
    assert seconds / run.seconds(run.steps_of(PlanningPhase.BASELINE)) - len(steps) <= 8.0


def test_noise_of_one_percent_is_borne():
    work, schedule = works(4), schedules.one_f_one_b(4, 8)
    run = Run(SimulatedJob(schedule, work, noise=SimulatedNoise(0.01, 0.01, seed=3)), 60)
    truth = true_profile(work)
    for measured in run.first.latest["profile"].instructions:
        true = {option.clock_mhz: option for option in truth.get(measured.stage, measured.kind).options}
        for option in measured.options:
            assert option.time_seconds == pytest.approx(true[option.clock_mhz].time_seconds, rel=0.02)
            assert option.energy_joules == pytest.approx(true[option.clock_mhz].energy_joules, rel=0.04)
            assert option.energy_stderr_joules > 0
    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(replayed) <= 1.01 * run.seconds(found)
    assert run.joules(replayed) <= 0.88 * run.joules(found)


@pytest.mark.parametrize("schedule", long_but_first([schedules.interleaved(2, 8), schedules.zb_h1(2, 8)]))
def test_any_schedule_is_learnt_by_watching(schedule):
    kinds = {instruction.kind for instruction in schedule.instructions}
    run = Run(SimulatedJob(schedule, works(schedule.stages, kinds=kinds)), 60)
    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(replayed) <= 1.001 * run.seconds(found)
    assert run.joules(replayed) <= 0.95 * run.joules(found)
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.01)


def test_a_pipeline_that_waits_for_a_slowed_one_takes_its_time():
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    slow = range(50, 70)
    job = SimulatedJob(schedule, work, pipelines=2, slowed_by=lambda p, step: 1.2 if p == 1 and step in slow else 1.0)
    run = Run(job, 90)
    usual, waiting, taken_back = run.steps_of(PlanningPhase.REPLAYING)[-10:], range(53, 70), range(73, 90)
    assert run.joules([53], ranks=[0, 1]) == pytest.approx(run.joules(range(60, 70), ranks=[0, 1]), rel=0.015)
    assert run.seconds(waiting) == pytest.approx(1.2 * run.seconds(usual), rel=0.005)
    frontier = Frontier.from_profile(run.first.latest["profile"], schedule)
    until = run.seconds(waiting)
    plain = make_plan(frontier, slowdown_factor=1.0).energy_joules_until(until)
    predicted = make_plan(frontier, straggler_seconds=until).energy_joules_until(until)
    unaware = run.joules([50, 51], ranks=[0, 1])
    assert unaware == pytest.approx(plain, rel=0.01)
    assert unaware - run.joules(waiting, ranks=[0, 1]) >= 0.8 * (plain - predicted)
    assert run.seconds(taken_back) == pytest.approx(run.seconds(usual), rel=0.005)
    assert run.joules(taken_back) == pytest.approx(run.joules(usual), rel=0.005)


def test_a_hiccup_of_one_iteration_slows_nobody_down():
    job = SimulatedJob(
        schedules.one_f_one_b(2, 8),
        works(2),
        pipelines=2,
        slowed_by=lambda p, step: 1.5 if (p, step) == (1, 50) else 1.0,
    )
    run = Run(job, 70)
    assert run.seconds(range(51, 60)) == pytest.approx(run.seconds(range(40, 50)), rel=1e-6)
    assert run.joules(range(51, 60)) == pytest.approx(run.joules(range(40, 50)), rel=1e-6)


def test_a_program_that_watches_the_whole_job_may_announce_a_straggler():
    class Announcing(Watched):
        def on_step_begin(self):
            if len(self.phases) in {50, 70} and self.latest:
                self.set_straggler(1.3 * self.baseline.step_seconds if len(self.phases) == 50 else None)
            super().on_step_begin()

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 110, lambda rank: Announcing(rank, SHORT_CHECKS))
    usual, announced, revoked = range(40, 50), range(56, 70), range(76, 110)
    assert run.seconds(announced) == pytest.approx(1.3 * run.seconds(usual), rel=0.01)
    assert run.joules(announced) <= 0.95 * run.joules(usual)
    assert run.seconds(revoked) == pytest.approx(run.seconds(usual), rel=0.001)


SHORT_CHECKS = PipelineFrequencySettings(check_steps=2)


def test_another_number_of_microbatches_is_planned_for_without_profiling_again():
    few, many = schedules.one_f_one_b(2, 8), schedules.one_f_one_b(2, 12)
    job = SimulatedJob(few, works(2), schedule_of=lambda step: few if step < 50 else many)
    run = Run(job, 100)
    assert run.course == [*FULL_COURSE, PlanningPhase.WARMING_UP, PlanningPhase.BASELINE, *FULL_COURSE[-2:]]
    found = [step for step in run.steps_of(PlanningPhase.BASELINE) if step > 50]
    assert run.seconds(range(90, 100)) == pytest.approx(run.seconds(found), rel=0.001)
    assert run.joules(range(90, 100)) <= 0.95 * run.joules(found)
    assert run.is_restored()


def test_evaluation_runs_at_the_original_clocks_and_spoils_nothing():
    class Evaluating(Watched):
        locked = ()

        def on_step_end(self):
            super().on_step_end()
            self.on_pause(Activity.EVALUATION)
            self.locked = {*self.locked, self.gpu._locked_clock_mhz}
            self.gpu.execute(Work(0.5, 400.0))
            self.on_resume()

    plain = trained()
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, Evaluating)
    assert run.first.locked == {1410}
    assert run.course == FULL_COURSE
    energies = [option.energy_joules for one in run.first.latest["profile"].instructions for option in one.options]
    expected = [option.energy_joules for one in plain.first.latest["profile"].instructions for option in one.options]
    assert energies == pytest.approx(expected, rel=0.01)
    assert run.seconds(range(50, 60)) == pytest.approx(plain.seconds(range(50, 60)), rel=0.001)


def test_without_rights_it_observes_and_says_what_is_missing(caplog):
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), grants_control=False), 30)
    assert run.course == [
        PlanningPhase.WARMING_UP,
        PlanningPhase.BASELINE,
        PlanningPhase.OBSERVING,
        PlanningPhase.OBSERVED,
    ]
    assert "may not change the SM clock" in caplog.text
    assert run.first.latest.get("predicted") is None
    observed = run.first.observations[0].rows
    assert [row.clock_mhz for row in observed] == [None, None]
    assert all(row.energy_joules for row in observed)
    assert run.first.latest["state"] == {"profile": {}}


@pytest.mark.parametrize("step", [3, 12, 40])
def test_a_driver_failing_on_one_rank_stops_all_at_the_original_clocks(step, caplog):
    def make(rank):
        faulty = FaultyGpu(rank.gpu)
        if rank.world.rank == 0:  # of the lighter stage, whose clock is changed in every step
            rank.monitor.gpus[0] = faulty

        class Failing(Watched):
            def on_step_begin(self):
                if len(self.phases) == step and rank.world.rank == 0:
                    faulty.fail("lock_sm_clock", DriverFaultError("the driver is not at home"))
                super().on_step_begin()

        return Failing(rank)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, make)
    assert [observer.phase for observer in run.observers.values()] == [PlanningPhase.OFF, PlanningPhase.OFF]
    assert "the driver is not at home" in caplog.text
    assert run.is_restored()
    assert len(run.first.phases) == 60


def test_a_driver_that_refuses_the_first_clock_of_profiling_leaves_nothing_running(gpu, monitor, time_source, work):
    faulty = monitor.gpus[0] = FaultyGpu(gpu)
    optimizer = PipelineFrequencyOptimizer(monitor, make_background=lambda: VirtualBackground(time_source))
    repeated = len(time_source._repeated)
    while optimizer.phase is not PlanningPhase.OFF:
        if optimizer.phase is PlanningPhase.BASELINE:
            faulty.fail("lock_sm_clock", DriverFaultError("the driver is not at home"))
        optimizer.on_step_begin()
        for kind in ("forward", "backward"):
            optimizer.on_instruction_begin(kind)
            gpu.execute(work)
            optimizer.on_instruction_end(kind)
        optimizer.on_step_end()
    assert len(time_source._repeated) == repeated


def test_a_rank_that_is_gone_stops_the_others(caplog):
    class GoneError(Exception):
        pass

    def make(rank):
        class Leaving(Watched):
            def on_step_begin(self):
                super().on_step_begin()
                if len(self.phases) == 12 and rank.world.rank == 1:
                    raise GoneError

        return Leaving(rank)

    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2))
    seen = []

    def remembering(rank):
        seen.append(rank)
        return make(rank)

    with pytest.raises((GoneError, WorldError, queue.Empty)):
        Run(job, 60, remembering, timeout_seconds=0.5)
    assert all(rank.gpu._locked_clock_mhz == 1410 for rank in seen)


def test_a_plan_that_is_too_slow_is_backed_off(caplog):
    def slowed_by(pipeline, step):
        return {PlanningPhase.REPLAYING: 1.1, PlanningPhase.JUDGING: 1 + 1e-4 * step}.get(own_optimizer().phase, 1.0)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=slowed_by), 120)
    assert run.course[-1] is PlanningPhase.OFF
    assert run.course.count(PlanningPhase.REPLAYING) == 3
    last = max(run.steps_of(PlanningPhase.JUDGING))
    assert run.first.baseline.step_seconds == pytest.approx(run.seconds(range(last - 4, last + 1)), rel=1e-6)
    assert "no plan met the allowed iteration time" in caplog.text
    assert run.is_restored()


@pytest.mark.parametrize("factor", [1.1, 1.0])
def test_a_profile_slower_than_training_is_reported_and_predicts_from_the_baseline(caplog, factor):
    def slowed_by(pipeline, step):
        return factor if own_optimizer().phase is PlanningPhase.PROFILING else 1.0

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=slowed_by), 50)
    assert PlanningPhase.REPLAYING in run.course
    warnings = re.findall(
        r"take ([\d.]+) s by the profile, .* took ([\d.]+) s, which is what times are predicted from", caplog.text
    )
    assert run.first.latest["predicted"].step_seconds == pytest.approx(run.first.baseline.step_seconds, rel=1e-3)
    if factor == 1.0:
        assert not warnings
        return
    ((by_the_profile, taken),) = warnings
    assert float(by_the_profile) == pytest.approx(factor * float(taken), abs=0.01)  # they are printed with three digits


def test_a_machine_that_becomes_slower_is_not_the_plans_fault():
    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=lambda p, step: 1.1 if step > 50 else 1.0)
    run = Run(job, 110)
    assert run.course == [*FULL_COURSE, PlanningPhase.JUDGING, PlanningPhase.PLANNING, PlanningPhase.REPLAYING]
    assert run.seconds(range(100, 110)) == pytest.approx(1.1 * run.seconds(range(40, 50)), rel=0.001)
    assert run.joules(range(100, 110)) == pytest.approx(1.1 * run.joules(range(40, 50)), rel=0.01)


def test_what_was_measured_is_not_measured_again(tmp_path, caplog):
    settings = PipelineFrequencySettings(profile_path=str(tmp_path / "profile.json"))

    def train(identity):
        job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2))
        return Run(job, 40, lambda rank: Watched(rank, settings, identity=identity))

    first = train({"layers": [0, 4]})
    again = train({"layers": [0, 4]})
    assert PlanningPhase.PROFILING not in again.course
    assert again.first.latest["clocks"] == first.first.latest["clocks"]
    other = train({"layers": [0, 5]})
    assert PlanningPhase.PROFILING in other.course
    assert "the identity of rank 0 differs: layers was 0, 4, and is now 0, 5" in caplog.text


def test_a_checkpoint_holds_what_was_measured():
    def train(state):
        def make(rank):
            optimizer = Watched(rank)
            optimizer.load_state_dict(state)
            return optimizer

        return Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 40, make)

    first = train({})
    assert PlanningPhase.PROFILING not in train(first.first.state_dict()).course
    for damaged in (None, {"profile": {"format": "?"}}):  # the profile store has tests of its own
        assert train(damaged).course == FULL_COURSE


def test_a_plan_made_beforehand_is_deployed_without_profiling(tmp_path):
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(true_profile(work), schedule), slowdown_factor=1.0), path)
    settings = PipelineFrequencySettings(plan_path=str(path))
    run = Run(SimulatedJob(schedule, work), 30, lambda rank: Watched(rank, settings))
    assert run.course == [PlanningPhase.WARMING_UP, PlanningPhase.BASELINE, PlanningPhase.REPLAYING]
    assert run.joules(range(20, 30)) == pytest.approx(read_plan(path).energy_joules, rel=0.001)


def test_a_plan_with_the_transfers_of_deepspeed_is_deployed_too(tmp_path):
    work, schedule = works(2), schedules.one_f_one_b(2, 2)
    ranks = tuple(tuple(Instruction(*fields) for fields in order) for order in TRANSFERRING)
    with_transfers = Schedule("with transfers", ranks)
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(true_profile(work), with_transfers), slowdown_factor=1.0), path)
    settings = PipelineFrequencySettings(plan_path=str(path))
    run = Run(SimulatedJob(schedule, work), 20, lambda rank: Watched(rank, settings))
    assert run.first.phases[-1] is PlanningPhase.REPLAYING


TRANSFERRING = (
    [
        *(("forward", 0, 0), ("send-activation", 0, 0), ("forward", 0, 1), ("send-activation", 0, 1)),
        *(("receive-gradient", 0, 0), ("backward", 0, 0), ("receive-gradient", 0, 1), ("backward", 0, 1)),
    ],
    [
        *(("receive-activation", 1, 0), ("forward", 1, 0), ("backward", 1, 0), ("send-gradient", 1, 0)),
        *(("receive-activation", 1, 1), ("forward", 1, 1), ("backward", 1, 1), ("send-gradient", 1, 1)),
    ],
)


def test_a_plan_for_another_job_is_refused_and_training_goes_on(tmp_path, caplog):
    path, planned = tmp_path / "plan.json", schedules.gpipe(2, 8)
    write_plan(
        make_plan(Frontier.from_profile(true_profile(works(planned.stages)), planned), slowdown_factor=1.0), path
    )
    settings = PipelineFrequencySettings(plan_path=str(path))
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 20, lambda rank: Watched(rank, settings))
    assert run.course[-1] is PlanningPhase.OFF
    assert "make a plan for this job" in caplog.text
    assert run.is_restored()


def test_training_that_begins_again_goes_on_where_it_was():
    class TwoTrainings(Watched):
        def on_step_begin(self):
            if len(self.phases) == 40:
                self.close()
                assert self.gpu._locked_clock_mhz == 1410
                assert self.phase is PlanningPhase.RESTING
            super().on_step_begin()

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 80, TwoTrainings)
    assert run.course.count(PlanningPhase.PROFILING) == 1
    assert run.course.count(PlanningPhase.REPLAYING) == 2


@pytest.mark.parametrize("value", ["soon", -1.0, 0, True, float("nan"), float("inf")])
def test_a_straggler_takes_a_number_of_seconds(value, monitor):
    with pytest.raises(UsageError, match="time_seconds"):
        PipelineFrequencyOptimizer(monitor).set_straggler(value)


@pytest.mark.parametrize(
    ("method", "error", "without"),
    [
        ("read_supported_sm_clocks_mhz", NotSupportedError("this GPU states no clocks"), [0, 1]),
        ("lock_sm_clock", NotSupportedError("this GPU has no clock control"), [0]),
        ("lock_sm_clock", PermissionDeniedError("this process may not"), [0, 1]),
    ],
)
def test_without_clock_control_it_observes_and_says_what_is_missing(method, error, without, caplog):
    def make(rank):
        rank.monitor.gpus[0] = gpu = FaultyGpu(rank.gpu)
        if rank.world.rank in without:
            gpu.fail(method, error)
            gpu.fail("unlock_sm_clock", error)
        return Watched(rank)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 30, make)
    assert run.course[-1] is PlanningPhase.OBSERVED
    assert [row.kind for row in run.first.observations[0].rows] == ["forward", "backward"]
    missing = "has no SM clocks to choose from" if method.startswith("read") else str(error)
    assert missing in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert run.first.latest.get("predicted") is None


def test_a_single_clock_is_no_choice(caplog):
    class OneClock(FaultyGpu):
        def read_supported_sm_clocks_mhz(self):
            return (1410,)

    def make(rank):
        rank.monitor.gpus[0] = OneClock(rank.gpu)
        return Watched(rank)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 30, make)
    assert run.course[-1] is PlanningPhase.OBSERVED
    assert "lowest_clock_mhz" not in caplog.text


class TailedRank(Watched):
    """After the work of each step, an optimizer step of half a second."""

    def on_instruction_end(self, name):
        super().on_instruction_end(name)
        if name == "all-reduce":
            self.on_instruction_begin("optimizer-step")
            self.gpu.execute(Work(0.5, 200.0))
            super().on_instruction_end("optimizer-step")


def test_an_announced_time_is_that_of_a_whole_iteration():
    class Announcing(TailedRank):
        def on_step_begin(self):
            if len(self.phases) in {50, 70} and self.place_is(1 if len(self.phases) == 50 else 0):
                self.set_straggler(1.3 * self.baseline.step_seconds if len(self.phases) == 50 else None)
            super().on_step_begin()

        def place_is(self, rank):
            return self._pipeline_rank.rank == rank

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 100, lambda rank: Announcing(rank, SHORT_CHECKS))
    usual, announced, revoked = range(40, 50), range(56, 70), range(76, 100)
    assert run.seconds(announced) == pytest.approx(1.3 * run.seconds(usual), rel=0.02)
    assert run.seconds(announced) <= 1.3001 * run.seconds(usual)
    assert run.seconds(revoked) == pytest.approx(run.seconds(usual), rel=0.001)
    assert run.joules(usual) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.02)


def test_stragglers_are_followed_where_the_device_is_a_step_behind():
    slow = range(50, 70)
    job = SimulatedJob(
        schedules.one_f_one_b(2, 8),
        works(2),
        pipelines=2,
        slowed_by=lambda p, step: 1.2 if p == 1 and step in slow else 1.0,
    )
    run = Run(job, 90, Late)
    usual = range(40, 50)
    assert run.joules(range(58, 70), [0, 1]) < 0.9 * run.joules(usual, [0, 1])
    assert run.seconds(range(74, 90)) == pytest.approx(run.seconds(usual), rel=0.005)


@pytest.mark.parametrize("steps", [13, pytest.param(22, marks=pytest.mark.long)])
def test_an_unfinished_profile_is_not_kept(steps):
    state = train_with({}, steps=steps).first.state_dict()
    assert PlanningPhase.PROFILING in train_with(state).course or "ranks" in state["profile"]
    assert train_with(state).first.phases[-1] is PlanningPhase.REPLAYING


def test_what_was_observed_is_not_planned_with():
    state = train_with({}, grants_control=False).first.state_dict()
    assert train_with(state).course == FULL_COURSE


@pytest.mark.parametrize(
    "limits", [{"original_clock_mhz": 1200}, pytest.param({"lowest_clock_mhz": 1200}, marks=pytest.mark.long)]
)
def test_a_kept_profile_of_other_clocks_is_measured_anew(limits, caplog):
    state = train_with({}).first.state_dict()
    run = train_with(state, PipelineFrequencySettings(**limits))
    assert PlanningPhase.PROFILING in run.course
    assert "the clocks of rank 0" in caplog.text
    clocks = {clock for observer in run.observers.values() for clock in observer.latest["clocks"]}
    assert max(clocks) <= limits.get("original_clock_mhz", 1410)
    assert min(clocks) >= limits.get("lowest_clock_mhz", 0)


@pytest.mark.parametrize("factor", long_but_first([2.0, 0.5]))
def test_a_kept_profile_that_is_true_no_more_is_measured_anew(factor, caplog):
    state = train_with({}).first.state_dict()
    work = {name: Work(whole.seconds * factor, whole.active_power_watts, 1.0, 0.8) for name, whole in works(2).items()}
    run = train_with(state, work=work)
    assert PlanningPhase.PROFILING in run.course
    assert "the profile no longer fits and is measured again" in caplog.text


def test_short_steps_are_profiled_for_longer():
    work = {name: Work(whole.seconds * 0.1, whole.active_power_watts, 1.0, 0.8) for name, whole in works(2).items()}
    run = train_with({}, work=work, steps=400)
    assert run.course == FULL_COURSE
    found = run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(range(380, 400)) == pytest.approx(run.seconds(found), rel=0.01)
    assert run.joules(range(380, 400)) <= 0.95 * run.joules(found)


def test_short_iterations_that_scatter_are_profiled_in_sixty_at_most():
    work = {name: Work(whole.seconds * 0.5, whole.active_power_watts, 1.0, 0.8) for name, whole in works(2).items()}
    job = SimulatedJob(schedules.one_f_one_b(2, 4), work, noise=SimulatedNoise(0.06, 0.02, seed=1))
    run = Run(job, 120)
    assert 0.5 < run.seconds(run.steps_of(PlanningPhase.BASELINE)) < 0.7
    assert len(run.steps_of(PlanningPhase.PROFILING)) <= 60
    replayed = run.steps_of(PlanningPhase.REPLAYING)[-20:]
    assert run.joules(replayed) <= 0.94 * run.joules(
        [*run.steps_of(PlanningPhase.WARMING_UP), *run.steps_of(PlanningPhase.BASELINE)]
    )


def test_a_counter_that_does_not_step_ends_it_with_the_reason(caplog):
    class StuckGpu(FaultyGpu):
        def read_energy_counter_joules(self):
            return 5.0

    def make(rank):
        rank.monitor.gpus[0] = StuckGpu(rank.gpu)
        return Watched(rank)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 40, make)
    assert run.first.phases[-1] is PlanningPhase.OFF
    assert "its energy counter does not advance" in caplog.text
    assert len(run.steps_of(PlanningPhase.PROFILING)) <= 8
    assert run.is_restored()


@pytest.mark.parametrize("call", [3, 600, 2000])
def test_a_mark_that_fails_stops_all_ranks_and_nothing_else(call, caplog):
    def make(rank):
        calls = itertools.count()

        def mark():
            if next(calls) == call and rank.world.rank == 1:
                raise RuntimeError("no event could be made")
            return HostEvents(rank.time_source)()

        return Watched(rank, device_events=mark)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 80, make)
    assert [observer.phase for observer in run.observers.values()] == [PlanningPhase.OFF] * 2
    assert "no event could be made" in caplog.text
    assert "in time" not in caplog.text
    assert run.is_restored()


def test_hiccups_now_and_then_do_not_switch_it_off():
    slow = {*range(60, 70), *range(120, 130), *range(180, 190), *range(240, 250)}  # more often than plans may be slow
    job = SimulatedJob(schedules.one_f_one_b(2, 4), works(2), slowed_by=lambda p, step: 1.05 if step in slow else 1.0)
    run = Run(job, 300)
    assert run.first.phases[-1] is PlanningPhase.REPLAYING
    assert run.joules(range(280, 300)) == pytest.approx(run.joules(range(50, 60)), rel=0.01)


def test_a_machine_slow_at_first_is_compared_with_its_later_times():
    def slowed_by(pipeline, step):
        return 1.0 if 60 <= step < 120 else 1.1

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=slowed_by), 160)
    phases = run.first.phases
    slow_seconds = run.seconds(run.steps_of(PlanningPhase.BASELINE)[:5])
    assert phases[60:120] == [PlanningPhase.REPLAYING] * 60
    assert run.first.latest["baseline"].step_seconds == pytest.approx(slow_seconds, rel=0.01), "as measured"
    assert PlanningPhase.JUDGING in phases[120:], "slower than before, so it is looked at again"
    assert phases[-1] is PlanningPhase.REPLAYING


def test_settings_that_differ_are_refused_on_all_ranks(caplog):
    def make(rank):
        return Watched(rank, PipelineFrequencySettings(check_steps=5 + rank.world.rank))

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 10, make)
    assert [observer.phase for observer in run.observers.values()] == [PlanningPhase.OFF] * 2
    assert "check_steps is 5 on rank 0 and 6 on rank 1" in caplog.text


def test_a_plan_that_is_too_slow_is_refused_wherever_it_comes_from(tmp_path):
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(true_profile(work), schedule), slowdown_factor=1.15), path)
    settings = PipelineFrequencySettings(plan_path=str(path))
    run = Run(SimulatedJob(schedule, work), 120, lambda rank: Watched(rank, settings))
    assert run.first.phases[-1] is PlanningPhase.OFF


def test_after_the_last_computation_the_clock_is_the_original():
    class Noting(Watched):
        def on_instruction_begin(self, name, stage=None, microbatch=None):
            super().on_instruction_begin(name, stage, microbatch)
            if name == "all-reduce" and self.phase is PlanningPhase.REPLAYING:
                assert self.gpu._locked_clock_mhz == 1410

    assert Run(SimulatedJob(schedules.gpipe(2, 8), works(2)), 40, Noting).course == FULL_COURSE


@pytest.mark.parametrize("identity", [{"path": object()}, {1j: 2}, {"dtype": {1, 2}}])
def test_an_identity_is_made_of_what_json_can_hold(identity, monitor):
    with pytest.raises(UsageError, match="identity"):
        PipelineFrequencyOptimizer(monitor, identity=identity)


@pytest.mark.parametrize("arguments", [{"pipeline_rank": 0}, {"settings": {"slowdown_factor": 1.1}}])
def test_an_argument_of_another_kind_is_named(arguments, monitor):
    with pytest.raises(UsageError, match=f"{next(iter(arguments))} is .*; it must be a Pipeline"):
        PipelineFrequencyOptimizer(monitor, **arguments)


def test_clocks_and_plans_have_queues_of_their_own(monitor, time_source):
    made = []

    def make_background():
        made.append(VirtualBackground(time_source))
        return made[-1]

    optimizer = PipelineFrequencyOptimizer(monitor, make_background=make_background)
    assert [optimizer._course.context.clock_background, optimizer._course.context.planning_background] == made


def test_a_rank_stands_where_its_number_says_if_nothing_else_does():
    def make(rank):
        optimizer = Watched(rank)
        plain = PipelineFrequencyOptimizer(rank.monitor, world=rank.world)
        assert plain._pipeline_rank == PipelineRank(rank.rank)
        return optimizer

    Run(SimulatedJob(schedules.one_f_one_b(2, 2), works(2)), 1, make)


def test_short_steps_are_observed_too():
    work = {name: Work(whole.seconds * 0.02, whole.active_power_watts, 1.0, 0.8) for name, whole in works(2).items()}
    run = train_with({}, work=work, steps=200, grants_control=False)
    assert run.course[-1] is PlanningPhase.OBSERVED
    assert [row.kind for row in run.first.observations[0].rows] == ["forward", "backward"]


@pytest.mark.long
def test_a_hiccup_while_waiting_for_others_does_not_make_it_the_rule():
    class Announcing(Watched):
        def on_step_begin(self):
            if len(self.phases) in {45, 100}:
                self.set_straggler(1.2 * self.baseline.step_seconds if len(self.phases) == 45 else None)
            super().on_step_begin()

    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=lambda p, step: 1.6 if 75 <= step < 90 else 1.0)
    run = Run(job, 160, Announcing)
    assert run.seconds(range(150, 160)) == pytest.approx(run.seconds(range(35, 45)), rel=0.005)


def test_a_time_that_is_never_waited_for_changes_the_plan_once():
    class Announcing(Watched):
        def on_step_begin(self):
            if len(self.phases) == 45:
                self.set_straggler(4.0 * self.baseline.step_seconds)
            super().on_step_begin()

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 200, Announcing)
    assert run.course == FULL_COURSE


@pytest.mark.parametrize("share", [0.96, 1.04])
def test_a_plan_of_a_file_that_is_a_little_wrong_is_followed(share, tmp_path):
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    truth = true_profile(work)
    wrong = PipelineProfile(
        [
            InstructionProfile(
                instruction.stage,
                instruction.kind,
                tuple(
                    MeasuredOption(o.clock_mhz, o.time_seconds * share, o.energy_joules) for o in instruction.options
                ),
            )
            for instruction in truth.instructions
        ],
        truth.blocking_power_watts,
    )
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(wrong, schedule), slowdown_factor=1.0), path)
    settings = PipelineFrequencySettings(plan_path=str(path))
    run = Run(SimulatedJob(schedule, work), 60, lambda rank: Watched(rank, settings))
    assert run.course == [PlanningPhase.WARMING_UP, PlanningPhase.BASELINE, PlanningPhase.REPLAYING]


def test_a_checkpoint_soon_after_a_resume_holds_the_profile_too():
    state = train_with({}).first.state_dict()
    assert train_with(state, steps=3).first.latest["state"] == state


@pytest.mark.long
def test_the_latency_of_the_driver_is_known_of_a_kept_profile_too(tmp_path, monkeypatch):
    planned_with = []

    def plan(asked):
        planned_with.append([planner.latency_seconds for planner, *_ in asked])
        return plan_all(asked)

    monkeypatch.setattr(_planning, "plan_all", plan)
    settings = PipelineFrequencySettings(profile_path=tmp_path / "profile.json")

    def make(rank):
        rank.monitor.gpus[0] = SlowToSet(rank.gpu, rank.time_source)
        return Watched(rank, settings)

    job = SimulatedJob(schedules.one_f_one_b(2, 4), works(2))
    courses = [Run(job, 45, make).course for _ in range(2)]
    assert [PlanningPhase.PROFILING in course for course in courses] == [True, False]
    assert planned_with[0] == [pytest.approx(0.005)]
    assert planned_with[-1] == planned_with[0]


def test_passes_outside_of_a_step_are_nothing_that_was_planned():
    class Evaluating(Watched):
        def on_step_end(self):
            super().on_step_end()
            self.on_pause(Activity.EVALUATION)
            self.on_instruction_begin("forward")
            self.gpu.execute(Work(0.1, 300.0))
            self.on_instruction_end("forward")

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, Evaluating)
    assert run.course == FULL_COURSE


def test_a_plan_is_judged_however_late_the_device_is_and_however_often():
    settings = PipelineFrequencySettings(check_steps=1)
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, lambda rank: Late(rank, settings))
    assert run.first.latest["measured"].step_seconds == pytest.approx(run.seconds(range(50, 60)), rel=0.01)


@pytest.mark.long
def test_few_instructions_are_enough_where_there_are_few():
    work = {name: Work(1.0, whole.active_power_watts, 1.0, 0.8) for name, whole in works(2).items()}
    settings = PipelineFrequencySettings(profile_instructions=1)
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 1), work), 80, lambda rank: Watched(rank, settings))
    assert run.course == FULL_COURSE


def test_a_pause_in_the_middle_of_a_trial_spoils_no_time():
    class Evaluating(Watched):
        def on_step_end(self):
            super().on_step_end()
            self.on_pause(Activity.EVALUATION)
            self.gpu.execute(Work(0.5, 400.0))

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, Evaluating)
    truth = true_profile(works(2))
    for measured in run.first.latest["profile"].instructions:
        true = {option.clock_mhz: option for option in truth.get(measured.stage, measured.kind).options}
        for option in measured.options:
            assert option.time_seconds == pytest.approx(true[option.clock_mhz].time_seconds, rel=1e-6)
            assert option.energy_joules == pytest.approx(true[option.clock_mhz].energy_joules, rel=0.01)


@pytest.mark.long
def test_a_good_plan_is_not_given_up_for_two_successive_hiccups():
    slow = range(20, 60)  # of the replayed steps

    def slowed_by(pipeline, step):
        optimizer = own_optimizer()
        return 1.05 if optimizer.phase is PlanningPhase.REPLAYING and optimizer.replayed in slow else 1.0

    class Counting(Watched):
        replayed = 0

        def on_step_end(self):
            self.replayed += self.phase is PlanningPhase.REPLAYING
            super().on_step_end()

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=slowed_by), 200, Counting)
    assert run.first.phases[-1] is PlanningPhase.REPLAYING
    assert run.course.count(PlanningPhase.PLANNING) == 1, "the plan stays"


@pytest.mark.parametrize("begin", [0, 12])
@pytest.mark.long
def test_a_straggler_that_was_there_from_the_start_recovers_too(begin):
    def slowed_by(pipeline, step):
        return 1.2 if pipeline == 1 and begin <= step < 70 else 1.0

    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2), pipelines=2, slowed_by=slowed_by)
    usual = trained(pipelines=2)
    run = Run(job, 110)
    assert run.seconds(range(73, 80)) == pytest.approx(usual.seconds(range(50, 60)), rel=0.01)
    assert run.seconds(range(100, 110)) == pytest.approx(usual.seconds(range(50, 60)), rel=0.01)


@pytest.mark.parametrize("lasts", [True, False])
def test_a_counter_unreadable_while_profiling_is_read_again_and_then_named(lasts, caplog):
    begins = []

    def make(rank):
        def fails(now):
            if not optimizers or optimizers[0].phase is not PlanningPhase.PROFILING:
                return False
            begins[:] = begins or [now]
            return lasts or now < begins[0] + 3.0

        rank.monitor.gpus[0] = CountedFaults(rank.gpu, rank.time_source, fails)
        optimizers.append(Watched(rank))
        return optimizers[-1]

    optimizers = []
    run = Run(SimulatedJob(schedules.one_f_one_b(1, 8), works(1)), 60, make)
    assert run.first.phases[-1] is (PlanningPhase.OFF if lasts else PlanningPhase.REPLAYING)
    assert ("the GPU has fallen off the bus" in caplog.text) == lasts


def test_a_plan_for_another_partition_is_refused_before_it_does_harm(tmp_path, caplog):
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    other = {name: replace(one, seconds=1.8 * one.seconds) for name, one in work.items()}
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(true_profile(other), schedule), slowdown_factor=1.0), path)
    settings = PipelineFrequencySettings(plan_path=path)
    run = Run(SimulatedJob(schedule, work), 30, lambda rank: Watched(rank, settings))
    assert run.course == [PlanningPhase.WARMING_UP, PlanningPhase.BASELINE, PlanningPhase.OFF]
    assert re.search(r"plan_path is '.*plan.json', a plan for iterations of [\d.]+ s; here they take", caplog.text)


def test_a_plan_slower_than_allowed_says_which_plan_and_what_to_do(tmp_path, caplog):
    work, schedule = works(2), schedules.one_f_one_b(2, 8)
    path = tmp_path / "plan.json"
    write_plan(make_plan(Frontier.from_profile(true_profile(work), schedule), slowdown_factor=1.05), path)
    for factor, phase in ((1.0, PlanningPhase.OFF), (1.05, PlanningPhase.REPLAYING)):
        settings = PipelineFrequencySettings(plan_path=path, slowdown_factor=factor)
        run = Run(SimulatedJob(schedule, work), 80, lambda rank, settings=settings: Watched(rank, settings))
        assert run.first.phases[-1] is phase
    assert re.search(r"the plan .*plan.json has not met the allowed iteration time .* slowdown_factor", caplog.text)


def test_work_of_almost_no_time_is_planned_all_the_same():
    work = works(2) | {(1, "forward"): Work(0.00006, 330.0, 1.0, 0.8)}
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), work), 100)
    assert run.first.phases[-1] is PlanningPhase.REPLAYING
    energies = {option.energy_joules for option in run.first.latest["profile"].get(1, "forward").options}
    assert max(energies) < 0.2, "that of the other kinds is 20 J and more"


def test_a_plan_that_has_become_too_slow_is_finally_given_up():
    def slowed_by(pipeline, step):
        return 1.05 if own_optimizer().phase is PlanningPhase.REPLAYING and step > 60 else 1.0

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2), slowed_by=slowed_by), 300)
    assert run.first.phases[-1] is PlanningPhase.OFF


@pytest.mark.parametrize("slow", long_but_first([1.0, 60.0]))
def test_profiling_reports_its_cost_of_at_most_two_percent_of_an_hour(slow, caplog):
    work = {name: replace(one, seconds=slow * one.seconds) for name, one in works(2).items()}
    settings = PipelineFrequencySettings(warmup_steps=1)
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), work), 45, lambda rank: Watched(rank, settings))
    assert run.course == FULL_COURSE
    steps = run.steps_of(PlanningPhase.PROFILING)
    seconds = sum(max(rank.step_seconds[step] for rank in run.ranks) for step in steps)
    cost_seconds = seconds - len(steps) * run.seconds(run.steps_of(PlanningPhase.BASELINE))
    assert cost_seconds <= 72.0 or len(run.first.latest["profile"].instructions[0].options) == 2
    assert ("more than 2 % of an hour" in caplog.text) == (slow > 1.0)


def test_the_clocks_of_a_plan_are_those_of_the_interpolated_profile():
    plans = []

    class Asking(Watched):
        def on_step_end(self):
            super().on_step_end()
            if self.clocks_mhz is not None and not plans:
                plans.append(
                    (self._pipeline_rank.rank, self.clocks_mhz, self.profile(), self.profile(interpolated=True))
                )

    Run(SimulatedJob(schedules.one_f_one_b(2, 4), works(2)), 40, Asking)
    rank, clocks, measured, offered = plans[0]
    used = set(zip(schedules.one_f_one_b(2, 4).ranks[rank], clocks, strict=True))
    for (kind, stage, _), clock in used:
        assert clock in {option.clock_mhz for option in offered.get(stage, kind).options}
    assert set(measured.get(0, "forward").options) < set(offered.get(0, "forward").options)
