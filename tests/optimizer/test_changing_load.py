"""Results of searches in runs whose work, or whose machine, changes meanwhile: steps, ramps, slow times, a requeue."""

import json
import math
import re
from dataclasses import replace

import pytest

from tests.support.sweep import sweep
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.kinds import POWER_LIMIT
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.search_optimizer import search_record
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer, MaxSlowdownConstraint, ZeusCost
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison
from zeus_core.search.run.visits import Visits
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

WORK = Work(0.3, 485.0, 0.938, 0.744)
STEPS = 300
LOADS = {
    "none": [1.0] * STEPS,
    "slower at once": [1.0] * 130 + [1.25] * 170,
    "faster at once": [1.25] * 60 + [1.0] * 240,
    "ramp": [1.3 - 0.3 * step / STEPS for step in range(STEPS)],
    "slow time": [1.25 if 170 <= step < 230 else 1.0 for step in range(STEPS)],
    "wave": [1.15 - 0.15 * math.cos(step / 20) for step in range(STEPS)],
}


class Process:
    """A process of a run, on a machine whose load makes each step longer by a factor."""

    def __init__(self, make, selector, seed=0, gpu="A100", **arguments):
        time_source = VirtualTime()
        self.gpu = SimulatedGpu(find_preset(gpu), time_source=time_source, noise=SimulatedNoise(0.02, 0.01, seed))
        self.monitor = ZeusMonitor(gpus=[self.gpu], cpus=CpuDiscovery((), "none"), time_source=time_source)
        self.optimizer = make(self.monitor, selector, quiet=True, **arguments)

    def train(self, loads):
        self.optimizer.on_train_begin(max_steps=len(loads))
        self.history = []
        for load in loads:
            self.optimizer.on_step_begin()
            limit = self.gpu.read_power_limit_watts()
            self.history += [limit] if self.history[-1:] != [limit] else []
            self.gpu.execute(loaded(load))
            self.optimizer.on_step_end()
        return self

    def truth(self, limit):
        """The saving and the slowdown of a limit, which no load changes."""
        after, before = (self.gpu.preset.physics.operating_point(WORK, watts) for watts in (limit, 400))
        return 1 - after.energy_joules / before.energy_joules, after.seconds / before.seconds

    def true_means(self):
        """The true saving and slowdown of all steps at choices."""
        choices = search_record(self.optimizer).result.choices
        truths = [(trial.steps, *self.truth(limit)) for limit, trial in choices.items() if limit < 400]
        return [sum(one[0] * one[place] for one in truths) / sum(one[0] for one in truths) for place in (1, 2)]


def loaded(load):
    return replace(WORK, seconds=WORK.seconds * load)


def is_inside(process):
    comparison, (saving, slowdown) = process.optimizer.comparison, process.true_means()
    is_saving = abs(comparison.saving_fraction - saving) <= comparison.saving_uncertainty
    return is_saving, abs(comparison.slowdown_factor - slowdown) <= comparison.slowdown_uncertainty


@pytest.mark.parametrize("selector", [MaxSlowdownConstraint(1.1), ZeusCost(0.5)], ids=repr)
@pytest.mark.parametrize("load", LOADS)
def test_intervals_hold_the_truth_while_the_load_changes(load, selector):
    """Of 6 seeds, an interval of 95 % may miss it once."""
    inside = []
    for seed in range(6):
        process = Process(GlobalPowerLimitOptimizer, selector, seed).train(LOADS[load])
        if process.optimizer.comparison is not None:
            inside.append(is_inside(process))
    assert inside, "where the load only grows, a bound keeps most runs at the original"
    assert all(sum(column) >= len(inside) - 1 for column in zip(*inside, strict=True)), inside


def test_where_no_load_changes_intervals_are_those_of_the_scatter():
    for seed in range(6):
        optimizer = Process(GlobalPowerLimitOptimizer, MaxSlowdownConstraint(1.1), seed).train(LOADS["none"]).optimizer
        comparison = optimizer.comparison
        plain = Comparison(comparison.before, comparison.after)
        assert comparison.is_certain
        assert not comparison.has_drifted
        assert comparison.saving_uncertainty < 1.3 * plain.saving_uncertainty
        assert comparison.slowdown_uncertainty < 1.5 * plain.slowdown_uncertainty


def test_a_changed_load_is_said_beside_the_saving():
    optimizer = Process(GlobalPowerLimitOptimizer, ZeusCost(0.5), seed=1).train(LOADS["wave"]).optimizer
    assert optimizer.comparison.has_drifted
    assert optimizer.result()["saving"].endswith("; the work or the machine changed meanwhile, which ± allows for")
    assert optimizer.result()["search"].endswith("is not known, as the work or the machine may have changed")


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.85), (1.0, 1.4)])
@pytest.mark.parametrize("make", [GlobalPowerLimitOptimizer, sweep])
def test_a_requeued_run_is_compared_with_its_own_steps_alone(first, second, make):
    """Steps at 255 W had been compared with those of another process: 24.6 % quicker at a lower limit, and a saving."""
    counts = {"profile_steps": 10, "pl_step": 75, "warmup_steps": 2} if make is sweep else {}
    inside = []
    for seed in range(4):
        before = Process(make, Energy() if counts else MaxSlowdownConstraint(1.1), seed, **counts).train([first] * 150)
        after = Process(make, Energy() if counts else MaxSlowdownConstraint(1.1), seed + 90, **counts)
        after.optimizer.load_state_dict(json.loads(json.dumps(before.optimizer.state_dict())))
        after.train([second] * 150)
        if after.optimizer.comparison is not None:
            assert after.optimizer.comparison.doubt is None, "the original was measured first"
            inside += is_inside(after)
    assert inside
    assert all(inside)


@pytest.mark.parametrize("load", [0.9, 1.1, 1.25])
def test_a_jump_right_after_the_first_trial_of_a_sweep_is_no_effect_of_limits(load):
    """The original, visited once, was compared with all that came after the jump."""
    inside = []
    for seed in range(6):
        process = Process(sweep, Energy(), seed, profile_steps=10, pl_step=75, warmup_steps=2)
        process.train([1.0] * 13 + [load] * 137)
        inside += is_inside(process)
        assert process.optimizer.comparison.has_drifted
    assert sum(inside) >= len(inside) - 1


def test_a_sweep_visits_the_original_again_where_training_goes_on():
    """Where it ends before that, the choice stays in force."""
    seen = {}
    for steps in (83, 150):
        process = Process(sweep, Energy(), profile_steps=10, pl_step=75, warmup_steps=2)
        seen[steps] = process.train([1.0] * steps).history
        assert process.optimizer.chosen_limit_watts == seen[steps][-1]
    chosen = seen[83][-1]
    assert seen[83] == [400, 325, 250, 175, 100, chosen]
    assert seen[150] == [*seen[83], 400, chosen]


def test_nothing_is_claimed_beside_the_original_of_another_run(tmp_path):
    counts = {"profile_steps": 10, "pl_step": 75, "warmup_steps": 2, "profile_path": tmp_path / "profile.json"}
    Process(sweep, Energy(), **counts).train([1.0] * 150)
    optimizer = Process(sweep, Energy(), **counts).train([0.7] * 50).optimizer
    assert optimizer.confirmation is not None
    assert optimizer.saving_fraction is None
    assert optimizer.comparison.saving_uncertainty == optimizer.comparison.slowdown_uncertainty == math.inf
    rows = optimizer.result()
    assert rows["saving"].startswith("not known: steps at the original setting were measured before this part")
    assert rows["slowdown"] == "not known"
    assert "per step" not in rows
    assert "whether it cost less than the original is not known" in rows["power limit"]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (0.6, r"-\d+\.\d% ±[\d.]+ time at a lower setting, which cannot make steps quicker"),
        (1.28, r"\+\d+\.\d% ±[\d.]+ time, where the lower clocks explain \+\d+\.\d% at most"),
    ],
)
def test_what_no_lower_limit_can_do_is_named_and_not_claimed(load, words, tmp_path, capsys):
    """The load changes once, as soon as the original was measured: no visit but that of one limit shows it."""
    counts = {"profile_steps": 10, "pl_step": 150, "warmup_steps": 2}
    process = Process(sweep, Energy(), **counts)
    with TrainingEnergy(process.monitor, process.optimizer, folder=tmp_path, quiet=True) as energy:
        for step in range(60):
            with energy.step():
                process.gpu.execute(loaded(1.0 if step < 11 else load))
    optimizer = process.optimizer
    comparison, saving = optimizer.comparison, optimizer.result()["saving"]
    assert optimizer.saving_fraction is None
    assert all(is_inside(process)), "the interval is as wide as all that is possible"
    assert re.fullmatch(f"not known: {words}, so the work or the machine has changed meanwhile", saving)
    assert comparison.doubt in str(comparison)
    assert search_record(optimizer).result.comparison == comparison
    assert main(["report", str(tmp_path)]) == 0
    assert f"Saving: {saving}." in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    assert comparison.doubt in str(json.loads(capsys.readouterr().out))


def made_trial(setting, seconds, joules=100.0, clock_mhz=None):
    return Trial(setting, 20, Measurement.from_energies(20 * seconds, {0: 20 * joules}), 0.0, clock_mhz, clock_mhz)


def test_a_slowdown_within_the_clocks_is_no_doubt():
    visits, trials = Visits(400, POWER_LIMIT), [made_trial(400, 1.0, 100.0, 1400), made_trial(300, 1.2, 95.0, 1120)]
    for place, trial in enumerate(trials):
        visits.add(trial, 20 * (place + 1))
    comparison = visits.comparison(trials[1], {300: 20}, None)
    assert comparison.doubt is None
    assert comparison.slowdown_factor == pytest.approx(1.2, abs=0.001)


def test_visits_around_a_jump_are_compared_with_their_neighbours():
    """The load rises by half between two pairs of visits: within each, the lower limit takes 5 % longer."""
    visits = Visits(400, POWER_LIMIT)
    visited = [(400, 1.0), (300, 1.05), (300, 1.05), (400, 1.0), (400, 1.5), (300, 1.575), (400, 1.5), (300, 1.575)]
    for place, (setting, seconds) in enumerate(visited):
        visits.add(made_trial(setting, seconds), 20 * (place + 1))
    comparison = visits.comparison(made_trial(300, 1.3), {300: 80}, None)
    assert comparison.has_drifted
    assert abs(comparison.slowdown_factor - 1.05) <= comparison.slowdown_uncertainty
    assert visits.run_slowdown(160, 300)[0] == pytest.approx(1.025, abs=visits.run_slowdown(160, 300)[1])


def test_an_unfinished_search_tells_measured_from_expected_settings():
    texts = set()
    for steps in range(10, 80, 3):
        process = Process(GlobalPowerLimitOptimizer, MaxSlowdownConstraint(1.1), max_steps=400).train([1.0] * steps)
        optimizer = process.optimizer
        optimizer.on_train_end()
        text = optimizer.result()["power limit"]
        found = re.search(r", (\d+) W (the best so far|expected to be the best);", text)
        if found:
            measured = int(found[1]) in {trial.setting for trial in optimizer.trials}
            assert (found[2] == "the best so far") is measured
            texts.add(found[2])
    assert texts
