"""The search in real Trainers on simulated boards: what it costs beside the sweep, and what the whole run comes to."""

import functools
import itertools

import pytest
from transformers import TrainerCallback

from tests.huggingface.trainers import examples, make_trainer
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import MaxSlowdownConstraint
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.testing import VirtualTime
from zeus_huggingface import HFGlobalPowerLimitOptimizer

pytestmark = pytest.mark.long

FACTOR = 1.1
STEP_SECONDS = 0.5
SWEEP = {"search": GridSearch, "warmup_steps": 3, "profile_steps": 50}
PASSES = (0.33, 0.67)  # shares of a step: forward and backward


class Run(TrainerCallback):
    """A training on one board, with what its steps took: in all, and those of the search."""

    def __init__(
        self,
        folder,
        model,
        steps,
        *,
        factor=FACTOR,
        spread=0.02,
        accumulation=1,
        epoch_steps=30,
        search=None,
        **arguments,
    ):
        self.time_source = VirtualTime()
        noise = SimulatedNoise(spread, 0.01, seed=1)
        self.gpu = SimulatedGpu(find_preset(model), time_source=self.time_source, noise=noise)
        self.works = self._works(accumulation)
        monitor = ZeusMonitor(gpus=[self.gpu], time_source=self.time_source)
        bound = MaxSlowdownConstraint(factor)
        callback = HFGlobalPowerLimitOptimizer(monitor, bound, quiet=True, **(search or {}))
        self.optimizer = callback.optimizer
        self.seconds = self.joules = self.search_joules = 0.0
        self.steps, self.limits = steps, set()
        trainer = make_trainer(
            folder, [self, callback], max_steps=steps, gradient_accumulation_steps=accumulation, **arguments
        )
        trainer.train_dataset = examples(2 * accumulation * epoch_steps)
        SimulatedCompute(trainer.model, self.gpu, *self.works)
        trainer.train()
        self.passes = accumulation

    def _works(self, accumulation):
        """Return the passes of a step that the highest limit binds."""
        watts = 1.15 * self.gpu.preset.limit_range_watts.highest_watts
        return [Work(STEP_SECONDS * share / accumulation, watts, 0.938, 0.744) for share in PASSES]

    def on_step_begin(self, args, state, control, **more):
        self._began = self.time_source.now(), self.gpu.exact_energy_joules()

    def on_optimizer_step(self, args, state, control, **more):
        joules = self.gpu.exact_energy_joules() - self._began[1]
        self.seconds += self.time_source.now() - self._began[0]
        self.joules += joules
        self.limits.add(self.gpu.read_power_limit_watts())
        if self.optimizer.phase not in (Phase.SETTLE, Phase.CONFIRM, Phase.DONE):
            self.search_joules += joules

    def truth(self, limit_watts):
        """Return the seconds and joules of a step."""
        points = [self.gpu.preset.physics.operating_point(work, limit_watts) for work in self.works]
        return [
            self.passes * sum(values)
            for values in zip(*((one.seconds, one.energy_joules) for one in points), strict=True)
        ]

    @property
    def original(self):
        return self.truth(self.gpu.preset.limit_range_watts.highest_watts)

    @property
    def slowdown(self):
        return self.seconds / (self.steps * self.original[0])

    @property
    def saving(self):
        return 1 - self.joules / (self.steps * self.original[1])


@pytest.mark.parametrize("model", ["V100", "A40", "A100", "H100"])
def test_it_uses_a_third_of_the_sweeps_joules_and_keeps_the_bound(tmp_path, model):
    sweep = Run(tmp_path, model, 700, spread=0.05, search=SWEEP)
    run = Run(tmp_path, model, 700, spread=0.05)
    assert run.search_joules <= sweep.search_joules / 3  # that of an H100, with 21 limits, is not over by then
    assert run.slowdown <= FACTOR
    assert run.saving >= 0.1
    comparison = run.optimizer.comparison
    assert comparison.slowdown_factor <= FACTOR + comparison.slowdown_uncertainty


EVERY_SEVEN = {"eval_strategy": "steps", "eval_steps": 7}
LOOPS = [
    {"epoch_steps": 10},
    {"epoch_steps": 45},
    {"epoch_steps": 1000},
    EVERY_SEVEN,
    {"accumulation": 4},
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the run of some steps that nothing interrupts."""
    return functools.cache(lambda steps: Run(tmp_path_factory.mktemp("undisturbed"), "A100", steps))


# The longest training with one kind of interruption, the most frequent one: with the others it takes minutes more.
@pytest.mark.parametrize(("steps", "loop"), [*itertools.product([60, 200], LOOPS), (2000, EVERY_SEVEN)])
def test_short_epochs_frequent_evaluations_and_accumulation_change_little(tmp_path, undisturbed, steps, loop):
    run = Run(tmp_path, "A100", steps, **loop)
    assert run.optimizer.phase is Phase.REST
    assert run.optimizer.comparison is not None, "it came to a choice, and measured it"
    joules = [one.truth(one.optimizer.chosen_limit_watts)[1] for one in (run, undisturbed(steps))]
    assert joules[0] == pytest.approx(joules[1], rel=0.03), "within 20 W: the noise falls on other steps"
    assert run.slowdown <= FACTOR
    assert run.saving == pytest.approx(undisturbed(steps).saving, abs=0.02)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: "-".join(map(str, loop.items())))
def test_a_search_that_cannot_pay_steps_aside_and_says_so(tmp_path, loop):
    run = Run(tmp_path, "A100", 60, factor=1.0, spread=0.2, **loop)
    assert run.optimizer.chosen_limit_watts == 400
    assert run.slowdown == pytest.approx(1.0, abs=0.1), "20 % of 60 steps, nothing else"
    assert run.limits == {400}
    assert "no setting below 400 W is known to save energy" in run.optimizer.result()["power limit"]
