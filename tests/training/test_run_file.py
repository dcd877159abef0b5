"""The file of a run: written while training goes on, and read by reports alone."""

import json

import pytest

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.power_series import PowerSeries
from zeus_core.training.record.run_file import read_run

WORK = Work(0.5, 484.9, 0.938, 0.744)


def train(energy, gpu, steps):
    for _ in range(steps):
        with energy.step(samples=4, tokens=512):
            gpu.execute(WORK)


def energy_in(folder, monitor, **arguments):
    return TrainingEnergy(monitor, folder=folder, quiet=True, **arguments)


@pytest.fixture
def trained(tmp_path, monitor, gpu):
    with energy_in(tmp_path, monitor) as energy:
        train(energy, gpu, 40)
        with energy.during(Activity.EVALUATION):
            gpu.execute(WORK)
    return energy


def test_it_holds_the_account_by_activity_rank_and_device(trained, tmp_path, gpu):
    run = read_run(tmp_path)
    assert run.account == trained.summary.account
    (part,) = run.parts
    assert (part.state, part.begin_step, part.step) == ("ended", 0, 40)
    assert part.versions.keys() >= {"zeus-core", "Python", "system"}
    (rank,) = part.ranks
    assert rank.account == trained.summary.account
    (device,) = rank.devices
    assert (device.uuid, device.name, device.is_simulated, device.limit_watts) == (gpu.uuid, gpu.name, True, 350)
    assert device.energy.measured_joules == run.account.total.measured_joules
    assert device.energy.measured.uncertainty_joules <= run.account.total.measured.uncertainty_joules


def test_it_holds_the_power_over_time(trained, tmp_path):
    (device,) = read_run(tmp_path).latest.ranks[0].devices
    assert len(device.power) > 10
    assert device.power[-1].joules == pytest.approx(device.energy.measured_joules, rel=0.02)
    watts = [
        (b.joules - a.joules) / (b.seconds - a.seconds) for a, b in zip(device.power, device.power[1:], strict=False)
    ]
    assert max(watts) <= 400 * 1.1


def test_a_series_keeps_a_bounded_number_of_points_and_all_energy():
    series = PowerSeries()
    for number in range(100_000):
        series.add(0.5 * number, 200.0 * number)
    points = series.points
    assert 100 <= len(points) <= 242
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (49_999.5, 19_999_800.0)
    series.add(1.0, 2.0)
    assert series.points == points


def test_a_search_is_stored_with_its_trials_and_setting_changes(tmp_path, monitor, gpu):
    optimizer = GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=2, profile_steps=4, pl_step=50, search=GridSearch
    )
    with energy_in(tmp_path, monitor, optimizer=optimizer) as energy:
        train(energy, gpu, 120)
        energy.state_dict()
        going_on = read_run(tmp_path).latest.search_record()
    record = read_run(tmp_path).latest.search_record()
    result = record.result
    assert result.original == 350
    assert result.chosen == optimizer.chosen_limit_watts
    assert result.trials == {trial.setting: trial for trial in optimizer.trials}
    assert result.comparison == optimizer.comparison
    assert read_run(tmp_path).saving_fraction == optimizer.saving_fraction
    assert read_run(tmp_path).latest.results["power limit"] == energy.result()["power limit"]
    assert going_on.changes[-1].reason == "the search has chosen it"
    assert going_on.changes[-1].setting == result.chosen
    assert [change.reason for change in record.changes[:2]] == ["the search tries it"] * 2
    assert record.changes[:-1] == going_on.changes
    assert (record.changes[-1].setting, record.changes[-1].reason) == (None, "training has ended")
    moments = [change.at_seconds for change in record.changes]
    assert moments == sorted(moments)


def test_a_checkpoint_leaves_a_file_and_a_resumed_run_adds_its_part(tmp_path, monitor, gpu):
    first = energy_in(tmp_path, monitor)
    first.on_train_begin()
    train(first, gpu, 20)
    state = first.state_dict()
    assert read_run(tmp_path).latest.state == "running"
    train(first, gpu, 5)
    del first  # killed
    second = energy_in(tmp_path, monitor)
    second.load_state_dict(state)
    second.on_train_begin(20)
    train(second, gpu, 20)
    second.finish()
    second.on_train_end()
    run = read_run(tmp_path)
    assert [(part.begin_step, part.step, part.state) for part in run.parts] == [
        (0, 20, "interrupted"),
        (20, 40, "ended"),
    ]
    assert run.account == second.summary.account
    with energy_in(tmp_path, monitor) as another:
        train(another, gpu, 3)
    assert len(read_run(tmp_path).parts) == 1


def test_a_part_whose_steps_are_done_again_stays_in_the_file(tmp_path, monitor, gpu):
    energy = energy_in(tmp_path, monitor)
    for steps in (5, 8):
        energy.on_train_begin()
        train(energy, gpu, steps)
        energy.state_dict()
    energy.finish()
    energy.on_train_end()
    run = read_run(tmp_path)
    assert [(part.step, part.state) for part in run.parts] == [(5, "interrupted"), (8, "ended")]
    assert run.account == energy.summary.account
    assert [path.name for path in (tmp_path / "zeus-energy").glob("run*")] == ["run.json"]


def test_the_electricity_and_the_place_are_kept(tmp_path, monitor, gpu):
    electricity = Electricity(ConstantSignal(380, "g/kWh", source="Germany"), pue=1.2, location="Frankfurt")
    with energy_in(tmp_path, monitor, electricity=electricity) as energy:
        train(energy, gpu, 10)
    record = read_run(tmp_path).electricity
    assert (record.pue, record.location) == (1.2, "Frankfurt")
    assert (record.signals[0].unit, record.signals[0].source, record.signals[0].basis) == (
        "g/kWh",
        "Germany",
        "average",
    )
    assert read_run(tmp_path).account.charges.keys() == {"g"}


def test_the_first_rank_tells_of_all_ranks(tmp_path):
    def run(world):
        time_source = VirtualTime()
        gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), world.rank, time_source=time_source)
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
        with energy_in(tmp_path, monitor, world=world) as energy:
            train(energy, gpu, 20)
            energy.log()
            train(energy, gpu, 2)
            energy.state_dict()
            at_checkpoint = read_run(tmp_path) if world.rank == 0 else None
        return at_checkpoint, energy.summary

    (at_checkpoint, summary), _ = ThreadWorld.run(2, run, timeout_seconds=60.0)
    ended = read_run(tmp_path)
    assert ended.account == summary.account
    assert sum(
        device.energy.measured_joules for rank in ended.latest.ranks for device in rank.devices
    ) == pytest.approx(summary.account.total.measured_joules)
    assert [rank.account.samples for rank in ended.latest.ranks] == [88, 88]
    first, second = at_checkpoint.latest.ranks
    assert first.devices[0].energy is not None
    assert second.devices[0].energy is None  # it has not told it yet
    assert second.account is None


def test_ranks_that_end_by_an_error_report_upper_bounds_since_their_log(tmp_path):
    def run(world):
        time_source = VirtualTime()
        gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), world.rank, time_source=time_source)
        energy = energy_in(tmp_path, ZeusMonitor(gpus=[gpu], time_source=time_source), world=world)
        energy.on_train_begin()
        train(energy, gpu, 10)
        energy.log()
        train(energy, gpu, 6)
        energy.on_train_end()  # and no `finish`, at which all ranks meet
        return gpu.exact_energy_joules()

    truth = sum(ThreadWorld.run(2, run, timeout_seconds=60.0))
    account = read_run(tmp_path).account
    missing = truth - account.total.measured_joules
    assert account.interruptions == 1
    assert missing > 500  # six steps of the second rank
    assert missing - account.total.measured.uncertainty_joules <= account.unrecorded_joules <= 1.5 * missing


def damaged(path, damage):
    text = path.read_text()
    path.write_text(damage(text))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "it is not JSON"),
        (lambda text: "", "it is not JSON"),
        (lambda text: text.replace('"version": 2', '"version": 1', 1), "version is 1; this program reads version 2"),
        (lambda text: text.replace("zeus-core run file", "zeus-core plan"), 'does not say "format"'),
        (lambda text: json.dumps({**json.loads(text), "parts": []}), "parts is empty"),
        (lambda text: json.dumps({**json.loads(text), "account": 3}), r"run\.account is 3"),
        (lambda text: text.replace('"search": null', '"search": {"result": 3, "changes": []}'), r"search\.result"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_clear_error(tmp_path, monitor, gpu, damage, complaint):
    with energy_in(tmp_path, monitor) as energy:
        train(energy, gpu, 2)
    damaged(tmp_path / "zeus-energy" / "run.json", damage)
    with pytest.raises(UsageError, match=rf"the run file .*run\.json cannot be used.*{complaint}"):
        read_run(tmp_path)


def test_a_place_without_a_run_says_what_to_give(trained, tmp_path):
    file = tmp_path / "zeus-energy" / "run.json"
    assert read_run(file) == read_run(file.parent) == read_run(tmp_path)
    file.unlink()
    with pytest.raises(UsageError, match="killed before its first checkpoint"):
        read_run(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no run"):
        read_run(tmp_path / "empty")
    with pytest.raises(UsageError, match="there is no run at"):
        read_run(tmp_path / "nowhere")


def test_an_unwritable_or_damaged_file_costs_a_warning_and_no_training(tmp_path, monitor, gpu, caplog):
    (tmp_path / "zeus-energy" / "run.json").mkdir(parents=True)
    with energy_in(tmp_path, monitor) as energy:
        train(energy, gpu, 3)
        energy.state_dict()
    assert energy.summary.not_measured is None
    assert caplog.text.count("cannot be written; reports of this run need it") == 1


def test_it_holds_the_time_in_hooks_by_hook_and_by_cause(trained, tmp_path):
    part = read_run(tmp_path).latest
    assert {"TrainBegin", "StepBegin", "StepEnd", "Pause", "finish"} <= part.overhead.of_hooks.keys()
    assert {"device", "files"} <= part.overhead.waits.keys()
    assert 0 < sum(part.overhead.waits.values()) < part.overhead.seconds == part.overhead_seconds
    assert trained.overhead.seconds > part.overhead_seconds, "that of the end itself is not in the file"
