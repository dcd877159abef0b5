"""Searches within a run."""

from zeus_core.measurement import Measurement
from zeus_core.search import GridSearch, Trial
from zeus_core.search._adaptive_run_search import AdaptiveRunSearch
from zeus_core.search._fixed_trials import FixedTrials
from zeus_core.search._objectives import MaxSlowdownConstraint


def trial_at(setting, steps, seconds=None):
    seconds = (1.0 + 30.0 / setting) * steps if seconds is None else seconds
    return Trial(setting, steps, Measurement.from_energies(seconds, {0: 0.9 * setting * seconds}), 0.01)


def drive(search, max_steps):
    """Run all steps of a training; return the blocks."""
    blocks, steps, seconds = [], 0, 0.0
    while steps < max_steps:
        block = search.ask()
        trial = trial_at(block.setting, min(block.steps, max_steps - steps))
        steps, seconds = steps + trial.steps, seconds + trial.measurement.time
        search.tell(trial, steps, seconds)
        blocks.append(block)
    return blocks


def test_any_search_is_presented_as_blocks():
    search = FixedTrials(GridSearch([300, 200, 100]), 300, lambda trials: 200, trial_steps=7)
    blocks = drive(search, 40)
    assert [(block.setting, block.is_choice) for block in blocks[:4]] == [
        (300, False),
        (200, False),
        (100, False),
        (200, True),
    ]
    assert {block.steps for block in blocks} == {7}
    assert search.is_done
    assert search.choice == 200


def test_the_adaptive_search_keeps_the_whole_run_within_the_bound():
    search = AdaptiveRunSearch(range(100, 301, 5), MaxSlowdownConstraint(1.1), max_steps=1000)
    blocks = drive(search, 1000)
    assert blocks[0].setting == 300
    assert search.choice < 300
    seconds = sum(block.steps * (1.0 + 30.0 / block.setting) for block in blocks)
    assert seconds <= 1.1 * 1.1 * sum(block.steps for block in blocks)
