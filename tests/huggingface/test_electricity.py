"""Emissions and cost of real Trainers on a simulated GPU, against sums of its true power times a recorded week."""

import random

import pytest
from transformers import TrainerCallback

from tests.huggingface.trainers import examples, make_trainer
from zeus_core.device import Work
from zeus_core.electricity import Electricity, RecordedSignal
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback

HOUR = 4.0  # a week in 11 minutes
BEGIN = 1_772_409_600.0
FORWARD, BACKWARD = Work(0.7, 484.9, 0.938, 0.744), Work(1.4, 484.9, 0.938, 0.744)
KILOWATT_HOUR = 3.6e6


def a_week(seed=3):
    """Hours of a week with a daily course, noise and two gaps; every third day is windy."""
    randomness, times, values = random.Random(seed), [], []
    for hour in range(7 * 24):
        if hour not in range(50, 57) and hour != 90:
            day = 380 - 150 * (8 <= hour % 24 < 18) - 120 * (hour // 24 % 3 == 1)
            times.append(BEGIN + HOUR * hour)
            values.append(day + randomness.uniform(-30, 30))
    return RecordedSignal(times, values, "g/kWh", source="a recorded week")


class Meter:
    """Adds up the true power of the GPU times the value of the signal, as the simulated work goes on.

    It asks the model of the GPU for its energy, and the list of values for the intensity: nothing that is tested.
    """

    def __init__(self, gpu, time_source, week):
        self.time_source, self.week, self.gpu, self.grams = time_source, week, gpu, 0.0
        self.begin, self.joules = time_source.clock_seconds(), gpu.exact_energy_joules()
        time_source.repeatedly(self.look, 0.25)

    def look(self):
        end, joules = self.time_source.clock_seconds(), self.gpu.exact_energy_joules()
        (part,) = self.week.parts((self.begin + end) / 2, (self.begin + end) / 2)
        self.grams += (joules - self.joules) / KILOWATT_HOUR * part.value
        self.begin, self.joules = end, joules


class Watch(TrainerCallback):
    """Notes the truth at each log of the loss."""

    def __init__(self, meter):
        self.meter, self.truths = meter, []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.meter.look()
        if "co2_eq_g" in (logs or {}):
            self.truths.append(self.meter.grams)


@pytest.mark.long
def test_logs_of_a_week_equal_an_independent_sum(tmp_path, monitor, gpu, time_source):
    time_source.set_clock(BEGIN + 1.3 * HOUR)
    week = a_week()
    callback = ZeusTrainerCallback(monitor, electricity=Electricity(week), quiet=True)
    watch = Watch(meter := Meter(gpu, time_source, week))
    trainer = make_trainer(
        tmp_path,
        [watch, callback],
        max_steps=270,
        logging_steps=15,
        eval_strategy="steps",
        eval_steps=60,
        save_strategy="steps",
        save_steps=100,
    )
    trainer.eval_dataset = examples(20)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    metrics = trainer.train().metrics
    meter.look()
    logged = [entry["co2_eq_g"] for entry in trainer.state.log_history if "co2_eq_g" in entry]
    assert len(logged) == 18
    assert time_source.clock_seconds() > BEGIN + 150 * HOUR
    assert logged == pytest.approx(watch.truths, rel=5e-3)
    assert metrics["train_co2_eq_g"] == pytest.approx(meter.grams, rel=5e-3)
    assert abs(metrics["train_co2_eq_g"] - meter.grams) <= metrics["train_co2_eq_uncertainty_g"]
    energies = [entry["total_energy_j"] for entry in trainer.state.log_history if "co2_eq_g" in entry]
    at_the_mean = [joules / KILOWATT_HOUR * week.facts.average for joules in energies]
    assert max(abs(grams / truth - 1) for grams, truth in zip(at_the_mean, watch.truths, strict=True)) > 0.1
