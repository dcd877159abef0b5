"""Trials kept in a file."""

import contextlib
import fcntl
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.codec import encode
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.optimizer.trial_store import Conditions, JsonTrialStore, TrialStore, latest_trials
from zeus_core.search import Trial

A40S = Conditions(("A40", "A40"), ("550.54",), (300.0, 300.0), work={"parameters": 124_439_808, "batch": "32x1024"})


def trial(setting: int = 250, **changes) -> Trial:
    measurement = Measurement.from_energies(4.5, {0: 500.25, 1: 499.5}, uncertainty_joules=12.5)
    return Trial(**{"setting": setting, "steps": 40, "measurement": measurement, **changes})


TRIALS = [trial(300, step_seconds_deviation=0.001), trial(275), trial(250)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.json"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path, **changes) -> None:
    """Change fields of the saved file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def damage_trial(path: Path, **changes) -> None:
    """Change fields of the last saved trial; None as a change takes the field out."""
    document = json.loads(path.read_text())
    trials = document["profiles"][-1]["trials"]
    trials[-1] = {name: value for name, value in {**trials[-1], **changes}.items() if value is not None}
    path.write_text(json.dumps(document))


def assert_kept_aside_with_one_warning(path: Path, caplog, text: str) -> None:
    aside = path.with_name("profile.json.aside-1")
    assert not path.exists()
    assert aside.read_text() == text
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert aside.name in record.getMessage()


class TestRoundTrip:
    def test_saved_trials_are_loaded_in_the_same_order(self, path):
        JsonTrialStore(path).save(A40S, TRIALS)
        assert JsonTrialStore(path).load(A40S) == TRIALS

    @given(
        settings=st.lists(st.integers(1, 2000), unique=True),
        steps=st.integers(1, 10**6),
        deviation=st.floats(0.0, 1e3),
        seconds=st.floats(1e-6, 1e6),
        joules=st.floats(0.0, 1e9),
        names=st.lists(st.text(), max_size=3),
        work=st.dictionaries(st.text(), st.text() | st.integers(-(2**60), 2**60), max_size=3),
    )
    def test_any_trials_under_any_conditions_survive(
        self, tmp_path_factory, settings, steps, deviation, seconds, joules, names, work
    ):
        store = JsonTrialStore(tmp_path_factory.mktemp("store") / "profile.json")
        measurement = Measurement.from_energies(seconds, {0: joules}, uncertainty_joules=1.0)
        trials = [Trial(setting, steps, measurement, deviation) for setting in settings]
        conditions = Conditions(tuple(names), tuple(names), (None,) * len(names), "SM clock", work)
        store.save(conditions, trials)
        assert store.load(conditions) == trials

    def test_saving_replaces_what_was_kept(self, path):
        store = JsonTrialStore(path)
        store.save(A40S, TRIALS)
        store.save(A40S, TRIALS[:1])
        assert store.load(A40S) == TRIALS[:1]

    def test_saving_leaves_nothing_but_the_file(self, path):
        JsonTrialStore(path).save(A40S, TRIALS)
        assert names_in(path.parent) == [path.name]

    def test_folders_on_the_way_to_the_file_are_made(self, tmp_path):
        store = JsonTrialStore(tmp_path / "runs" / "first" / "profile.json")
        store.save(A40S, TRIALS)
        assert store.load(A40S) == TRIALS

    def test_nothing_is_written_before_something_is_saved(self, path):
        assert JsonTrialStore(path).load(A40S) == []
        assert names_in(path.parent) == []

    def test_no_file_is_nothing_to_warn_of(self, path, caplog):
        JsonTrialStore(path).load(A40S)
        assert not caplog.records

    def test_a_saved_file_reads_as_text(self, path):
        JsonTrialStore(path).save(A40S, TRIALS)
        (profile,) = json.loads(path.read_text())["profiles"]
        assert profile["conditions"]["gpus"] == ["A40", "A40"]
        assert path.read_text().endswith("\n")


class TestJobsThatShareAFile:
    OTHERS = replace(A40S, drivers=("535.104",), work={"parameters": 124_439_808, "batch": "64x1024"})

    def test_one_file_holds_the_trials_of_many(self, path):
        jobs = [replace(A40S, work={"batch": size}) for size in range(20)]
        for size, job in enumerate(jobs):
            JsonTrialStore(path).save(job, [trial(100 + size)])
        assert [JsonTrialStore(path).load(job)[0].setting for job in jobs] == list(range(100, 120))
        assert names_in(path.parent) == [path.name]

    def test_the_oldest_profiles_are_removed_from_a_full_file(self, path, monkeypatch):
        monkeypatch.setattr("zeus_core.optimizer.trial_store._MAX_PROFILES", 3)
        jobs = [replace(A40S, work={"batch": size}) for size in range(4)]
        for job in (*jobs[:3], jobs[0], jobs[3]):
            JsonTrialStore(path).save(job, TRIALS)
        assert [bool(JsonTrialStore(path).load(job)) for job in jobs] == [True, False, True, True]

    def test_trials_of_other_conditions_are_not_used_and_that_is_said_once(self, path, caplog):
        JsonTrialStore(path).save(replace(A40S, gpus=("V100",)), TRIALS)
        JsonTrialStore(path).save(A40S, TRIALS)
        text = path.read_text()
        store = JsonTrialStore(path)
        assert store.load(self.OTHERS) == store.load(self.OTHERS) == []
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        message = record.getMessage()
        assert f"{path} has no trials that fit" in message
        assert "drivers ['550.54'] instead of ['535.104']" in message
        assert "work: batch '32x1024' instead of '64x1024'" in message
        assert "gpus" not in message, "of all profiles the nearest is named"
        assert path.read_text() == text

    def test_two_that_start_together_do_not_overwrite_each_other(self, path):
        first, second = JsonTrialStore(path), JsonTrialStore(path)
        assert first.load(A40S) == second.load(self.OTHERS) == []
        first.save(A40S, TRIALS)
        second.save(self.OTHERS, TRIALS[:1])
        assert (first.load(A40S), second.load(self.OTHERS)) == (TRIALS, TRIALS[:1])

    def test_processes_that_save_at_the_same_time_lose_nothing(self, path, monkeypatch):
        """A writer that reads, and is overtaken before it writes, would drop what the other has added."""
        monkeypatch.setattr("zeus_core.files._LOCK_SECONDS", 100.0)  # the machine may be busy
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    for turn in range(6):
                        JsonTrialStore(path).save(replace(A40S, work={"job": number, "turn": turn}), TRIALS)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        assert len(json.loads(path.read_text())["profiles"]) == 18

    def test_a_lock_that_somebody_holds_for_ever_is_not_waited_for(self, path, monkeypatch):
        monkeypatch.setattr("zeus_core.files._LOCK_SECONDS", 0.05)
        descriptor = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            JsonTrialStore(path).save(A40S, TRIALS)
        finally:
            os.close(descriptor)
        assert JsonTrialStore(path).load(A40S) == TRIALS


class TestFilesThatAreNotUsed:
    @pytest.mark.parametrize("text", ["{", '{"power_limit": 250}', "lr: 0.1"], ids=["cut off", "of another", "YAML"])
    def test_a_file_of_another_program_stays_and_trials_lie_beside(self, path, caplog, text):
        path.write_text(text)
        assert JsonTrialStore(path).load(A40S) == []
        store = JsonTrialStore(path)
        store.save(A40S, TRIALS)
        assert store.load(A40S) == JsonTrialStore(path).load(A40S) == TRIALS
        assert path.read_text() == text
        assert names_in(path.parent) == ["profile-zeus-core.json", "profile.json"]
        assert "is that of another program and stays as it is; trials are kept in" in caplog.text

    def test_a_damaged_file_of_ours_is_kept_aside(self, path, caplog):
        JsonTrialStore(path).save(A40S, TRIALS)
        path.write_text(path.read_text()[:-20])
        text = path.read_text()
        assert JsonTrialStore(path).load(A40S) == []
        assert_kept_aside_with_one_warning(path, caplog, text)

    @pytest.mark.parametrize(
        "changes",
        [{"version": 3}, {"profiles": None}, {"profiles": [5]}],
        ids=str,
    )
    def test_a_file_with_a_damaged_head_is_kept_aside(self, path, caplog, changes):
        JsonTrialStore(path).save(A40S, TRIALS)
        damage(path, **changes)
        text = path.read_text()
        assert JsonTrialStore(path).load(A40S) == []
        assert_kept_aside_with_one_warning(path, caplog, text)

    @pytest.mark.parametrize(
        "changes",
        [
            {"setting": 0},
            {"setting": "high"},
            {"steps": None},
            {"steps": 0},
            {"step_seconds_deviation": -0.1},
            {"measurement": {}},
            {"measurement": encode(Measurement.from_energies(0.0, {0: 1.0}))},
            {"measurement": encode(Measurement.from_energies(1.0, {0: None}))},
        ],
        ids=str,
    )
    def test_one_trial_that_cannot_be_costs_its_profile_and_no_other(self, path, caplog, changes):
        others = replace(A40S, knob="SM clock")
        JsonTrialStore(path).save(others, TRIALS)
        JsonTrialStore(path).save(A40S, TRIALS)
        damage_trial(path, **changes)
        assert JsonTrialStore(path).load(A40S) == []
        (record,) = caplog.records
        assert "damaged, and measured again" in record.getMessage()
        JsonTrialStore(path).save(A40S, TRIALS[:1])
        assert JsonTrialStore(path).load(A40S) == TRIALS[:1]
        assert JsonTrialStore(path).load(others) == TRIALS

    def test_a_first_version_file_without_its_conditions_is_set_aside(self, path, caplog):
        first = {"format": "zeus-core trials", "version": 1, "devices": ["A40", "A40"], "trials": encode(TRIALS)}
        path.write_text(json.dumps(first))
        assert JsonTrialStore(path).load(A40S) == []
        assert_kept_aside_with_one_warning(path, caplog, json.dumps(first))
        assert "its version is 1" in caplog.text

    def test_what_was_kept_aside_before_stays(self, path):
        texts = [f'{{"format": "zeus-core trials", "version": {number}' for number in range(3)]
        for text in texts:
            path.write_text(text)
            JsonTrialStore(path).load(A40S)
        kept = {name: (path.parent / name).read_text() for name in names_in(path.parent)}
        assert kept == {f"profile.json.aside-{number}": text for number, text in enumerate(texts, 1)}

    def test_the_name_is_free_for_new_trials_afterwards(self, path):
        path.write_text("damaged")
        store = JsonTrialStore(path)
        store.load(A40S)
        store.save(A40S, TRIALS)
        assert store.load(A40S) == TRIALS


OF_ZEUS = {"measurements": [{"power_limit": limit, "energy": 8.0 * limit, "time": 9.5} for limit in (300, 275)]}


class TestProfilesOfZeus:
    def test_its_measurements_are_trials_of_limits(self, path):
        path.write_text(json.dumps(OF_ZEUS))
        trials = JsonTrialStore(path, zeus_steps=20).load(A40S)
        assert [(trial.setting, trial.steps, trial.seconds_per_step) for trial in trials] == [
            (300, 20, 0.475),
            (275, 20, 0.475),
        ]
        assert trials[0].joules_per_step == 120
        assert JsonTrialStore(path).load(A40S)[0].steps == 40
        assert JsonTrialStore(path).load(replace(A40S, knob="SM clock")) == []
        assert [trial.setting for trial in latest_trials(OF_ZEUS)] == [300, 275]

    def test_what_is_measured_later_goes_before_it(self, path):
        path.write_text(json.dumps(OF_ZEUS))
        JsonTrialStore(path).save(A40S, TRIALS)
        assert JsonTrialStore(path).load(A40S) == TRIALS
        assert json.loads(path.read_text()) == OF_ZEUS

    @pytest.mark.parametrize("changes", [{"time": 0}, {"energy": None}, {"power_limit": "high"}, {"watts": 5}], ids=str)
    def test_one_that_is_damaged_is_named_and_not_used(self, path, caplog, changes):
        path.write_text(json.dumps({"measurements": [{**OF_ZEUS["measurements"][0], **changes}]}))
        assert JsonTrialStore(path).load(A40S) == []
        assert "is not used" in caplog.text


class TestPathsThatCannotBeUsed:
    def test_a_folder_is_a_usage_error_that_names_a_file(self, tmp_path):
        with pytest.raises(UsageError, match=r"profile_path is .* folder.*profile\.json"):
            JsonTrialStore(tmp_path)

    def test_a_folder_that_cannot_be_made_is_warned_of_once_and_nothing_else(self, tmp_path, caplog):
        (tmp_path / "file").write_text("in the way")
        store = JsonTrialStore(tmp_path / "file" / "profile.json")
        assert store.load(A40S) == []
        store.save(A40S, TRIALS[:1])
        store.save(A40S, TRIALS)  # after each trial
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "profile.json" in record.getMessage()

    @pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root may write anywhere; run this as another user")
    def test_a_folder_without_write_permission_causes_a_warning_and_nothing_else(self, path, caplog):
        path.parent.chmod(0o500)
        JsonTrialStore(path).save(A40S, TRIALS)
        path.parent.chmod(0o700)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]

    @pytest.mark.parametrize("length", [250, 300], ids=["only its neighbours'", "its own"])
    def test_a_name_too_long_for_the_file_system_only_causes_a_warning(self, tmp_path, caplog, length):
        path = tmp_path / ("p" * length)
        with contextlib.suppress(OSError):
            path.write_text("damaged")
        store = JsonTrialStore(path)
        assert store.load(A40S) == []
        store.save(A40S, TRIALS)
        assert {record.levelno for record in caplog.records} == {logging.WARNING}


OTHERS = (
    replace(A40S, gpus=("A40",)),
    replace(A40S, gpus=("A40", "V100")),
    replace(A40S, drivers=("535.1",)),
    replace(A40S, original_limits_watts=(300.0, 250.0)),
    replace(A40S, knob="SM clock"),
    replace(A40S, work={"batch_size": 64}),
)


@pytest.mark.parametrize("others", OTHERS)
def test_trials_of_other_conditions_are_neither_returned_nor_touched(path, others):
    JsonTrialStore(path).save(A40S, TRIALS)
    assert JsonTrialStore(path).load(others) == []
    JsonTrialStore(path).save(others, TRIALS[:1])
    assert JsonTrialStore(path).load(A40S) == TRIALS


def test_a_store_without_a_file_keeps_nothing():
    store = TrialStore()
    store.save(A40S, TRIALS)
    assert store.load(A40S) == []
