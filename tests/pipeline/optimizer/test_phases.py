"""The table of the phases: every phase and event has a defined result, and each row has its effects."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import EVENTS
from tests.support.reachable_phases import reachable
from zeus_core.events import TrainEnd
from zeus_core.pipeline.optimizer import PipelineFrequencyOptimizer
from zeus_core.pipeline.optimizer import frequency_phases as phases
from zeus_core.pipeline.optimizer.frequency_phases import PHASES, Conclusion, PlanningEnd, PlanningPhase, advance

CONCLUSIONS = {kind.outcome: kind for kind in (*Conclusion.__subclasses__(), *phases.Unprofiled.__subclasses__())}
HAPPENINGS = [*EVENTS, *PlanningEnd]


def happening_of(happening):
    """A class of events itself; for an outcome a conclusion, without its facts."""
    return object.__new__(CONCLUSIONS[happening]) if isinstance(happening, PlanningEnd) else happening


def test_every_outcome_has_a_conclusion_that_holds_its_facts():
    assert CONCLUSIONS.keys() == set(PlanningEnd)
    assert all(vars(phases).get(kind.__name__) is kind for kind in CONCLUSIONS.values())


@pytest.mark.parametrize("phase", list(PlanningPhase))
def test_every_phase_and_event_has_a_defined_result(phase):
    for happening in HAPPENINGS:
        after = advance(phase, happening_of(happening))
        if phase is PlanningPhase.OFF:
            assert after is PlanningPhase.OFF
        elif happening is TrainEnd:
            assert after is PlanningPhase.RESTING
        elif happening is PlanningEnd.FAULT:
            assert after is PlanningPhase.OFF
        else:
            assert after is PHASES.transitions.get((phase, happening), phase)


def test_every_phase_can_be_reached_and_every_outcome_leads_somewhere():
    assert reachable(PHASES) == set(PlanningPhase)
    assert {happening for _, happening in PHASES.transitions} | {PlanningEnd.FAULT} >= set(PlanningEnd)


def test_no_phase_is_its_own_successor():
    assert all(before is not after for (before, _), after in PHASES.transitions.items())


hooks = st.one_of(
    st.just(("on_step_begin",)),
    st.just(("on_step_end",)),
    st.tuples(st.just("on_instruction_begin"), st.sampled_from(["forward", "backward", "all-reduce", "junk"])),
    st.tuples(st.just("on_instruction_end"), st.sampled_from(["forward", "backward", "all-reduce", "junk"])),
    st.just(("on_pause",)),
    st.just(("on_resume",)),
    st.just(("close",)),
)


@given(st.lists(hooks, max_size=40))
def test_hooks_in_any_order_never_raise_and_follow_the_table(calls):
    from zeus_core.device import SimulatedGpu, find_preset
    from zeus_core.device.cpu import CpuDiscovery
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.testing import VirtualBackground, VirtualTime

    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery(()), time_source=time_source, gpu_indices=[0])
    optimizer = PipelineFrequencyOptimizer(monitor, make_background=lambda: VirtualBackground(time_source))
    seen = [optimizer.phase]
    for name, *arguments in calls:
        getattr(optimizer, name)(*arguments)
        time_source.advance(0.05)
        seen.append(optimizer.phase)
    optimizer.close()
    assert optimizer.phase in {PlanningPhase.RESTING, PlanningPhase.OFF}
    assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
    for before, after in itertools.pairwise(seen):
        assert after is before or after in {advance(before, happening_of(happening)) for happening in HAPPENINGS}
