"""`zeus-core jobs`."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from tests.support.recurring import BEST, job_in, trained
from zeus_core.cli import main
from zeus_core.jobs._job_history import JobHistory
from zeus_core.jobs._job_records import Evaluation, JobRun, StoredRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the storage of a job that has run six times, one of them without success."""
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
        job = job_in(folder)
        for _ in range(6):
            trained(job)
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_list_has_a_line_for_each_job(capsys):
    assert main(["jobs", "list"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["job", "runs", "reached"]
    assert line.split()[:4] == ["nightly", "6", "5", str(BEST)]


def test_show_has_the_cost_of_each_batch_size_and_names_the_best(capsys):
    assert main(["jobs", "show", "nightly"]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert (
        first == "nightly: eval_accuracy >= 0.84, ZeusCost(eta_knob=0.5, world_size=1, max_power_watts=400), default 64"
    )
    assert [line.split()[:3] for line in lines] == [
        ["16", "1", "1"],
        ["32", "3", "3"],
        ["64", "1", "1"],
        ["128", "1", "0"],
    ]
    assert [line.endswith("best") for line in lines] == [False, True, False, False]
    assert lines[-1].endswith("1 stopped")


def test_history_has_a_line_for_each_run(capsys):
    assert main(["jobs", "history", "nightly"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines] == ["64", "16", "32", "128", "32", "32"]
    assert lines[0].endswith("eval_accuracy is 0.84")
    assert "was not reached in 20 epochs" in lines[3]


def test_history_is_a_csv_with_a_row_for_each_run(capsys):
    assert main(["jobs", "history", "nightly", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["outcome"] for row in rows].count("reached") == 5
    assert float(rows[0]["energy_joules"]) == 3600.0
    assert rows[0]["gpu_model"] == "A40"


def test_history_as_json_has_every_evaluation(capsys):
    assert main(["jobs", "history", "nightly", "--format", "json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["declaration"]["target"]["metric"] == "eval_accuracy"
    assert [evaluation["epoch"] for evaluation in listing["runs"][0]["record"]["evaluations"]] == list(range(1, 9))


class Page(HTMLParser):
    """Counts the elements of a page, and checks that all are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes).get("class", "").strip()))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes).get("class", "").strip()))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_shows_costs_intervals_and_regret_and_needs_nothing_else(capsys):
    assert main(["jobs", "show", "nightly", "--format", "html"]) == 0
    text = capsys.readouterr().out
    found = Page(text).found
    assert found.count(("circle", "run")) == 5
    assert found.count(("circle", "chosen")) == found.count(("path", "chosen")) == 1
    assert found.count(("polyline", "line")) == 1
    assert found.count(("path", "short")) == 1, "the run that was stopped"
    assert re.findall(r'text-anchor="end">([^<]+)</text>', text)[-1] == "run 6"
    assert "prefers-color-scheme: dark" in text
    assert re.search(r"https?://|<script|src=", text) is None
    (points,) = re.findall(r'polyline class="line" points="([^"]+)"', text)
    assert len(points.split()) == 6


def test_a_page_before_any_run_has_reached_the_target_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained(job_in(tmp_path, name="<new>"), last_epoch=1)
    assert main(["jobs", "show", "<new>", "--format", "html"]) == 0
    text = capsys.readouterr().out
    assert "No run has reached the target yet" in text
    assert "<h1>&lt;new&gt;</h1>" in text


def test_forget_asks_first_and_then_deletes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained(job_in(tmp_path))
    assert main(["jobs", "forget", "nightly"]) == 1
    assert "This deletes 1 runs of nightly, for good: add --yes" in capsys.readouterr().out
    assert main(["jobs", "forget", "nightly", "--yes"]) == 0
    assert main(["jobs", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "There are no jobs."
    assert trained(job_in(tmp_path)).number == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--storage", "sqlite:///none.db"], "--storage is sqlite:///none.db, but there is no file 'none.db'"),
        (["list", "--storage", "zeus.db"], "storage is 'zeus.db'; it must be the URL of a database"),
        (["show", "daily"], "job is 'daily'; it must be one of those in sqlite:///zeus.db: nightly"),
        (["list", "--storage", "mysql+none://nobody@localhost:1/none"], "for which there is no driver"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message, capsys):
    assert main(["jobs", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_database_is_named(tmp_path, capsys):
    (tmp_path / "other.db").write_bytes(b"not a database" * 100)
    assert main(["jobs", "list", "--storage", f"sqlite:///{tmp_path}/other.db"]) == 2
    assert "which cannot be read: (sqlite3.DatabaseError) file is not a database" in capsys.readouterr().err


# The numbers.


def run(number, size, cost, outcome="reached", model="A40"):
    evaluation = Evaluation(1.0, 0.9, 1.0, cost, cost)
    return StoredRun(number, JobRun(str(number), size, outcome, "", 0.0, gpu_model=model, evaluations=(evaluation,)))


def test_regret_is_the_cost_beyond_that_of_the_best_each_time():
    history = JobHistory.from_runs([run(0, 64, 30.0), run(1, 32, 10.0), run(2, 16, 15.0, "stopped"), run(3, 32, 10.0)])
    assert history.best.batch_size == 32
    assert history.regrets() == pytest.approx([20.0, 20.0, 35.0, 35.0])


def test_a_means_interval_is_students_t_on_log_costs():
    """By hand: logs 0 and 2 at one size, 1 at the other; pooled variance 2 with one degree of freedom."""
    e = 2.718281828459045
    history = JobHistory.from_runs([run(0, 32, 1.0), run(1, 32, e**2), run(2, 64, e)])
    small, large = history.sizes
    assert small.mean_cost == pytest.approx(e)
    assert small.high_cost == pytest.approx(e ** (1 + 12.706 * (2 / 2) ** 0.5), rel=1e-3)
    assert large.low_cost == pytest.approx(e ** (1 - 12.706 * 2**0.5), rel=1e-3)


def test_runs_on_another_gpu_model_do_not_compare():
    history = JobHistory.from_runs([run(0, 32, 1.0, model="V100"), run(1, 64, 2.0)])
    assert (history.gpu_model, history.elsewhere) == ("A40", 1)
    assert [size.batch_size for size in history.sizes] == [64]


def test_nothing_is_known_of_a_job_without_runs():
    history = JobHistory.from_runs([])
    assert (history.sizes, history.best, history.regrets()) == ([], None, [])
