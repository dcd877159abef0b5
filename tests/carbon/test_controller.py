"""Training by the intensity of electricity: deadlines, foresight, and what is gained."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.variants import long_but_first
from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._signal_replay import Replayed, best_mixture, replay
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.electricity import ConstantSignal, RecordedSignal, Signal, SignalPart, WeeklyTariff
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.search import Trial

HOUR, DAY = 3600.0, 86_400.0
BEGIN = 1_772_323_200.0
# Measured: an A40 that trains ResNet-50 (Zeus artifact, imagenet, batch size 128); epochs per hour, watts.
POINTS = [
    TrainingPoint(limit, speed / HOUR, watts)
    for limit, speed, watts in [(300, 0.960, 244.0), (250, 0.946, 216.0), (200, 0.901, 179.0), (150, 0.587, 144.0)]
]
PAUSE = TrainingPoint.pause(30.0)
EPOCHS = 24 * 0.960


def grid(swing: float, noise: float = 0.0, seed: int = 0) -> RecordedSignal:
    """An hourly intensity that follows the day, two weeks before and one week after the begin."""
    randomness = random.Random(seed)
    hours = range(-14 * 24, 8 * 24)
    values = [400 * (1 + swing * math.sin(math.tau * hour / 24) + randomness.gauss(0, noise)) for hour in hours]
    return RecordedSignal([BEGIN + HOUR * hour for hour in hours], [max(20.0, value) for value in values], "g/kWh")


def trained(signal: Signal, factor: float, noise: float = 0.0, **options: float) -> Replayed:
    randomness = random.Random(3)
    deadline = BEGIN + factor * DAY
    replayed = replay(
        WorkController([*POINTS, PAUSE], signal, deadline, **options).choose,
        signal,
        BEGIN,
        EPOCHS,
        true_speed=lambda seconds: 1 + randomness.gauss(0, noise),
    )
    assert replayed.end_seconds <= deadline
    return replayed


@settings(max_examples=5)
@given(st.floats(1.02, 2.5), st.floats(0.0, 0.8), st.floats(0.0, 0.3), st.integers(0, 99), st.sampled_from([0.0, 0.01]))
def test_the_deadline_is_kept(factor: float, swing: float, noise: float, seed: int, speed_noise: float) -> None:
    trained(grid(swing, noise, seed), factor, speed_noise)


@pytest.mark.parametrize("factor", [1.03, 1.1, 1.3, 2.0])
def test_on_a_flat_grid_following_it_gains_nothing(factor: float) -> None:
    """Also with two settings far from each other, of which it uses both: they could be mixed without a signal."""
    signal, coarse = ConstantSignal(400, "g/kWh"), [POINTS[0], POINTS[3]]
    controller = WorkController([*coarse, PAUSE], signal, BEGIN + factor * DAY)
    ours = replay(controller.choose, signal, BEGIN, EPOCHS)
    mixture = best_mixture(coarse, signal, BEGIN, EPOCHS, ours.end_seconds)
    assert mixture.replayed.end_seconds <= ours.end_seconds + 1e-3
    assert ours.amount == pytest.approx(mixture.replayed.amount, rel=0.003)


def test_a_mixture_is_off_by_what_its_settings_are() -> None:
    quick, slow = POINTS[0], POINTS[3]
    middle = BEGIN + EPOCHS * HOUR * 2 / (0.960 + 0.587)
    mixture = best_mixture([quick, slow], ConstantSignal(400, "g/kWh"), BEGIN, EPOCHS, middle)
    assert mixture.points == (slow, quick)
    assert mixture.shares == pytest.approx((0.5, 0.5))
    joules = 0.5 * (quick.power_watts + slow.power_watts) * (middle - BEGIN)
    assert mixture.replayed.energy_joules == pytest.approx(joules)
    assert mixture.error_fraction({300: 0.02, 150: 0.02}) == pytest.approx(0.02)
    assert mixture.error_fraction({300: 0.02}) == pytest.approx(0.02 * 244 / (244 + 144))


@pytest.mark.parametrize("factor", [1.03, 1.1, 1.3, 2.0])
def test_on_a_flat_grid_it_is_as_good_as_the_best_limit(factor: float) -> None:
    signal = ConstantSignal(400, "g/kWh")
    ours = trained(signal, factor)
    assert ours.amount <= 1.005 * best_mixture(POINTS, signal, BEGIN, EPOCHS, ours.end_seconds).replayed.amount


@pytest.mark.parametrize(("swing", "factor", "gain"), long_but_first([(0.5, 2.0, 0.08), (0.8, 2.0, 0.15)]))
def test_on_a_daily_grid_it_gains_beyond_the_best_limit(swing: float, factor: float, gain: float) -> None:
    signal = grid(swing, 0.02)
    ours = trained(signal, factor)
    assert ours.amount <= (1 - gain) * best_mixture(POINTS, signal, BEGIN, EPOCHS, ours.end_seconds).replayed.amount


def test_a_tariff_is_known_ahead() -> None:
    tariff = WeeklyTariff({"Mon-Sun 06:00-22:00": 0.30, "Mon-Sun 22:00-06:00": 0.10}, "EUR/kWh", "UTC")
    controller = WorkController([*POINTS, PAUSE], tariff, BEGIN + 3 * DAY)
    assert controller.choose(BEGIN + 12 * HOUR, 7.0) == PAUSE
    assert controller.choose(BEGIN + 22 * HOUR, 7.0).setting is not None


def test_the_future_of_a_record_is_not_known() -> None:
    """Two signals that are the same until now lead to the same choice."""
    past = [400 * (1 + 0.5 * math.sin(math.tau * hour / 24)) for hour in range(-14 * 24, 10)]
    choices = set()
    for later in (20.0, 900.0):
        values = [*past, *[later] * 100]
        times = [BEGIN + HOUR * hour for hour in range(-14 * 24, 110)]
        controller = WorkController([*POINTS, PAUSE], RecordedSignal(times, values, "g/kWh", average=400), BEGIN + DAY)
        choices.add(controller.choose(BEGIN + 9.5 * HOUR, 8.0))
    assert len(choices) == 1


def test_a_deadline_that_cannot_be_kept() -> None:
    controller = WorkController(POINTS, ConstantSignal(400, "g/kWh"), BEGIN + DAY)
    assert controller.choose(BEGIN, 25.0) == POINTS[0]
    assert not controller.schedule.is_possible
    assert controller.choose(BEGIN + 2 * DAY, 25.0) == POINTS[0]


def test_a_signal_that_ends_and_one_that_never_knew_anything() -> None:
    ended = RecordedSignal([BEGIN - 2 * HOUR, BEGIN - HOUR], [300, 500], "g/kWh")
    assert trained(ended, 1.2).amount > 0

    class Silent:
        facts = ended.facts

        def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
            return [SignalPart(begin_seconds, end_seconds, 400.0, is_stale=True)]

    assert trained(Silent(), 1.2).amount > 0


def test_a_point_from_a_trial() -> None:
    trial = Trial(200, 50, Measurement.from_energies(25.0, {0: 4000.0}))
    assert TrainingPoint.from_trial(trial) == TrainingPoint(200, 2.0, 160.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline_seconds": math.nan}, "deadline_seconds"),
        ({"interval_seconds": 0.0}, "interval_seconds"),
        ({"points": [PAUSE]}, "points"),
        ({"signal": 380}, "signal"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    arguments = {"points": POINTS, "signal": ConstantSignal(400, "g/kWh"), "deadline_seconds": BEGIN, **options}
    with pytest.raises(UsageError, match=message):
        WorkController(**arguments)  # type: ignore[arg-type]


def test_what_gains_less_than_its_error_is_not_followed() -> None:
    """Wind that forgets within a day: a schedule for what is expected slowed down, and pays where it is wrong."""
    randomness, departure, values = random.Random(0), 0.0, []
    for _ in range(-14 * 24, 8 * 24):
        departure = math.exp(-1 / 20) * departure + math.sqrt(1 - math.exp(-1 / 10)) * randomness.gauss(0, 1)
        values.append(max(20.0, 400 * (1 + 0.35 * departure)))
    wind = RecordedSignal([BEGIN + HOUR * hour for hour in range(-14 * 24, 8 * 24)], values, "g/kWh")

    def speeds(signal: Signal) -> set[float]:
        controller = WorkController([*POINTS, PAUSE], signal, BEGIN + 1.3 * DAY)
        controller.choose(BEGIN, EPOCHS)
        return {round(HOUR * speed, 3) for speed in controller.schedule.steps_per_second[:-1]}

    assert speeds(wind) == {0.901}, "that of the least energy, throughout"
    assert len(speeds(grid(0.8))) > 1, "a day that repeats itself is followed"
