"""Recorded jobs from CSV files."""

import re

import pytest

from zeus_core.errors import UsageError
from zeus_core.jobs.replay.traces import RecordedJob, read_submissions, read_workloads

JOB = RecordedJob("letters", 0.9, 64, 40)


def read(job=JOB, train="train.csv", power="summary_power_tiny.csv"):
    return read_workloads(train, power, job, "tiny")


@pytest.mark.usefixtures("traces")
class TestRules:
    def test_the_batch_sizes_are_those_that_both_files_have(self):
        (workload,) = read()
        assert list(workload.sizes) == [32, 64, 128, 256]

    def test_epochs_are_those_to_the_target_and_empty_is_never(self):
        (workload,) = read()
        assert workload.sizes[32].epochs == (7, 6, 7)
        assert workload.sizes[256].epochs == (None, None, None)

    def test_an_epoch_has_the_energy_of_its_mean_power(self):
        (workload,) = read()
        epoch = workload.sizes[64].limits[150]
        assert epoch.seconds == pytest.approx(1.05 * (10 + 900 / 64))
        assert epoch.joules == pytest.approx(epoch.seconds * 150 * 0.95)

    def test_the_highest_power_is_the_highest_limit_of_the_whole_file(self):
        (workload,) = read()
        assert workload.max_power_watts == 250.0

    def test_a_default_too_large_for_the_gpu_becomes_the_largest_measured(self):
        (workload,) = read(RecordedJob("letters", 0.9, 1024, 40))
        assert workload.default == 256

    def test_slices_come_in_their_order(self, traces):
        lines = (traces / "train.csv").read_text().splitlines()
        later = [f"{line},2" for line in lines[1:]]
        first = [line.replace(",0.9,", ",0.9,1") + ",1" for line in lines[1:] if not line.endswith(",")]
        (traces / "drift.csv").write_text("\n".join([f"{lines[0]},slice", *later, *first]))
        first, second = read(train="drift.csv")
        assert first.sizes[32].epochs == (17, 16, 17)
        assert second.sizes[32].epochs == (7, 6, 7)


@pytest.mark.usefixtures("traces")
class TestBadInput:
    @pytest.mark.parametrize(
        ("file", "old", "new", "message"),
        [
            ("train.csv", "target_epoch", "epoch", "train.csv lacks the columns target_epoch"),
            ("summary_power_tiny.csv", "time_per_epoch", "time", "lacks the columns time_per_epoch"),
            (
                "train.csv",
                "letters,lenet,32,adam,1e-3,2,0.9,6",
                "letters,lenet,32,adam,1e-3,2,0.9,x",
                "line 11: target_",
            ),
            (
                "summary_power_tiny.csv",
                "adam,200,38.125",
                "adam,200,nan",
                "line 2: time_per_epoch is 'nan'; it must be",
            ),
            ("summary_power_tiny.csv", "32,adam,200,38.125,190.0", "32,adam,200", "line 2: it has fewer values"),
            (
                "summary_power_tiny.csv",
                "32,adam,200,",
                "32.5,adam,200,",
                "line 2: batch_size is '32.5'; it must be a whole",
            ),
        ],
    )
    def test_what_is_wrong_is_named_with_its_place(self, traces, file, old, new, message):
        text = (traces / file).read_text()
        assert old in text
        (traces / file).write_text(text.replace(old, new, 1))
        with pytest.raises(UsageError, match=re.escape(message)):
            read()

    @pytest.mark.parametrize("file", ["train.csv", "summary_power_tiny.csv"])
    @pytest.mark.parametrize("lines", [0, 1])
    def test_an_empty_file(self, traces, file, lines):
        (traces / file).write_text("".join(f"{line}\n" for line in (traces / file).read_text().splitlines()[:lines]))
        with pytest.raises(UsageError, match=file):
            read()

    def test_a_file_that_is_not_there(self):
        with pytest.raises(UsageError, match=r"gone.csv cannot be read: "):
            read(train="gone.csv")

    def test_a_target_that_nobody_recorded(self):
        with pytest.raises(UsageError, match=r"train.csv has no 'letters' with the target 0.95"):
            read(RecordedJob("letters", 0.95, 64, 40))

    def test_a_target_that_is_never_reached_in_time(self):
        with pytest.raises(UsageError, match=r"letters on tiny: no recorded training reaches the target in 3 epochs"):
            read(RecordedJob("letters", 0.9, 64, 3))

    def test_a_default_that_was_not_recorded(self):
        with pytest.raises(UsageError, match=r"default is 48; letters on tiny was recorded at 32, 64, 128, 256"):
            read(RecordedJob("letters", 0.9, 48, 40))

    def test_two_kinds_of_one_dataset(self, traces):
        for file in ("train.csv", "summary_power_tiny.csv"):
            text = (traces / file).read_text()
            (traces / file).write_text(text + text.partition("\n")[2].replace("adam", "sgd"))
        with pytest.raises(UsageError, match=r"several kinds of 'letters': lenet adam; lenet sgd"):
            read()


def test_submissions_are_grouped_and_sorted(tmp_path):
    file = tmp_path / "submissions.csv"
    file.write_text("group,start_time,runtime_ratio\na,50,1\nb,0,2\na,0,0.5\n")
    groups = read_submissions(file)
    assert [[(one.seconds, one.runtime_factor) for one in some] for some in groups] == [[(0, 0.5), (50, 1)], [(0, 2)]]


def test_submissions_without_rows(tmp_path):
    file = tmp_path / "submissions.csv"
    file.write_text("group,start_time\n")
    with pytest.raises(UsageError, match=r"submissions.csv has no rows"):
        read_submissions(file)
