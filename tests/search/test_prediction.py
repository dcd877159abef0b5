"""What a limit is predicted to save before anything is measured."""

import pytest

from zeus_core.search.run.prediction import WORKS, predict_saving

LIMITS = tuple(float(limit) for limit in range(400, 99, -20))


def test_more_time_is_predicted_to_save_no_less():
    savings = [predict_saving(LIMITS, factor) for factor in (1.0, 1.02, 1.1, 1.3)]
    assert [saving.median for saving in savings] == sorted(saving.median for saving in savings)
    assert all(0 <= saving.low <= saving.median <= saving.high < 1 for saving in savings)


@pytest.mark.parametrize("work", sorted(WORKS.keys() - {"memory"}))
def test_what_is_known_of_the_work_narrows_the_interval(work):
    unknown, known = predict_saving(LIMITS, 1.05), predict_saving(LIMITS, 1.05, work, 300.0)
    assert known.high - known.low < unknown.high - unknown.low


def test_work_bound_by_memory_saves_more():
    memory, mixed, compute = (predict_saving(LIMITS, 1.05, work).median for work in ("memory", "mixed", "compute"))
    assert memory > mixed > compute
