"""Searches in runs whose steps other work disturbs: what their results say, and which settings they leave."""

import random
import re
from collections import Counter

import pytest

from tests.support.sweep import sweep
from tests.support.verdicts import check_result, noise_factors
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    Time,
    ZeusCost,
)
from zeus_core.testing import VirtualTime

STEPS = 200
WORK = Work(0.3, 400.0, 0.9, 0.7)


def trained(factors, make, selector, **arguments):
    """Return the optimizer after a training whose steps take longer by these factors, with an idle GPU."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    optimizer = make(ZeusMonitor(gpus=[gpu], time_source=time_source), selector, quiet=True, **arguments)
    optimizer.on_train_begin(max_steps=len(factors))
    for factor in factors:
        optimizer.on_step_begin()
        gpu.execute(WORK)
        time_source.advance((factor - 1) * WORK.seconds)
        optimizer.on_step_end()
    optimizer.on_train_end()
    return optimizer


@pytest.mark.parametrize("selector", [MaxSlowdownConstraint(1.1), EnergyWithin(1.1)], ids=repr)
def test_the_result_of_a_search_for_the_run_never_contradicts_its_numbers(selector):
    seen = Counter()
    for seed in range(24):
        optimizer = trained(noise_factors(random.Random(seed), STEPS), GlobalPowerLimitOptimizer, selector)
        seen[check_result(optimizer.result(), repr(selector), "400 W")] += 1
    assert seen[True] > 8, seen
    assert seen[False] == 0, "a choice that breaks the bound is left for the original"


@pytest.mark.parametrize(
    "selector", [MaxSlowdownConstraint(1.1), EnergyWithin(1.1), Energy(), ZeusCost(0.5), Time()], ids=repr
)
def test_the_result_of_a_sweep_never_contradicts_its_numbers(selector):
    for seed in range(24):
        counts = {"wait_steps": 1, "warmup_steps": 2, "profile_steps": 8, "pl_step": 50}
        optimizer = trained(noise_factors(random.Random(seed), STEPS // 2), sweep, selector, **counts)
        check_result(optimizer.result(), repr(selector), "400 W")


def test_no_box_of_a_short_noisy_run_claims_more_than_it_knows():
    """Neither the best of what nobody tried, nor numbers that do not divide out, nor a choice that may save nothing."""
    kept = 0
    for seed in range(10):
        factors = noise_factors(random.Random(f"short {seed}"), 60)
        rows = trained(factors, GlobalPowerLimitOptimizer, EnergyWithin(1.1)).result()
        line = rows["power limit"]
        assert "of 61 settings" not in line, "few are tried in so short a run"
        saving = re.match(r"(?:too small.*: )?(-?[\d.]+)% ±([\d.]+|\?) of", rows.get("saving", ""))
        if " is the best of " in line or " is chosen of " in line:
            kept += 1
            assert saving is not None, rows
            assert float(saving[1]) > float(saving[2]), rows
        steps = re.match(r"([\d.]+) (?:±[\d.]+ )?J in .* before; ([\d.]+) (?:±[\d.]+ )?J in", rows.get("per step", ""))
        if steps is None or saving is None:
            continue
        shown = 100 * (1 - float(steps[2]) / float(steps[1]))
        corrected = re.search(r"corrected for drift \((-?[\d.]+)% by the means", rows["saving"])
        assert shown == pytest.approx(float((corrected or saving)[1]), abs=0.3), rows
    assert kept > 0
