"""`zeus-core jobs replay`, and comparisons of policies."""

import csv
import io
import math
import statistics

import pytest

from benchmarks._published_batch_size import PublishedBatchSize
from zeus_core.cli import main
from zeus_core.jobs.policies import AdaptiveBatchSize
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize
from zeus_core.jobs.replay import replay_command
from zeus_core.jobs.replay.job_replay import Contestant
from zeus_core.jobs.replay.policy_comparison import compare_policies, regret_table
from zeus_core.jobs.replay.traces import RecordedJob, Submission, read_submissions, read_workloads

pytestmark = pytest.mark.usefixtures("traces")

COMMAND = ["jobs", "replay", "train.csv", "summary_power_tiny.csv"]
LETTERS = ["--job", "letters:0.9:64:40"]


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(replay_command, "_SEEDS", 2)
    monkeypatch.setattr(replay_command, "_RECURRENCES", 10)


def workloads():
    return read_workloads("train.csv", "summary_power_tiny.csv", RecordedJob("letters", 0.9, 64, 40), "tiny")


def test_it_prints_the_regret_of_each_policy(capsys):
    assert main([*COMMAND, *LETTERS, "--policies", "default,adaptive-known"]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert "after 5 and 10 recurrences" in title
    assert header.split() == ["policy", "5", "10", "stderr", "tried", "short"]
    assert [row.split()[0] for row in rows] == ["default", "adaptive-known"]


def test_several_jobs_have_a_column_each(capsys, traces):
    (traces / "summary_power_other.csv").write_text((traces / "summary_power_tiny.csv").read_text())
    assert main([*COMMAND, "summary_power_other.csv", *LETTERS]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith("tiny letters  other letters")
    assert all(len(row) == len(header) for row in rows)


def test_it_prints_every_run_as_csv(capsys):
    policy = "benchmarks._published_batch_size:PublishedBatchSize"
    assert main([*COMMAND, *LETTERS, "--policies", policy, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert sum(row["outcome"] == "reached" for row in rows) == 20
    assert rows[0]["batch_size"] == "64"
    assert float(rows[0]["charged_cost"]) > float(rows[0]["cost"])


def test_recurrences_may_overlap(traces):
    (traces / "times.csv").write_text("group,start_time\n" + "".join(f"{'ab'[n % 2]},{n * 90}\n" for n in range(12)))
    groups = read_submissions("times.csv")
    (result,) = compare_policies([workloads()], [Contestant("a", AdaptiveBatchSize())], seeds=2, groups=groups)
    assert "after 3 and 6 recurrences" in regret_table([result])


def test_a_class_of_your_own(capsys, traces, monkeypatch):
    (traces / "mine.py").write_text(
        "from zeus_core.jobs.policies import BatchProposal\n"
        "class Largest:\n"
        "    def propose(self, problem, runs, seed):\n"
        "        return BatchProposal(128, reason='it is fast')\n"
    )
    monkeypatch.syspath_prepend(str(traces))
    assert main([*COMMAND, *LETTERS, "--policies", "mine:Largest"]) == 0
    assert "mine:Largest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*LETTERS, "--policies", "best"], "'best' is not one of default, grid"),
        ([*LETTERS, "--policies", "no_module:X"], "no_module:X, which cannot be made: Module"),
        ([*LETTERS, "--policies", "json:JSONDecoder"], "json:JSONDecoder, which has no method"),
        (["--job", "letters:0.9"], "'letters:0.9' is not DATASET:TARGET:DEFAULT:MAX_EPOCHS"),
        (["--job", "letters:0.9:64:x"], "is not DATASET:TARGET:DEFAULT:MAX_EPOCHS"),
        (["--job", "letters:nan:64:40"], "'letters:nan:64:40' is not DATASET"),
        (["--job", "words:0.9:64:40"], "train.csv has no 'words' with the target 0.9"),
        (["--job", "letters:0.9:64:3"], "no recorded training reaches the target in 3 epochs"),
        (["--job", "letters:0.9:48:40"], "default is 48; letters on tiny was recorded at"),
        (["gone.csv", *LETTERS], "there is no file 'gone.csv'"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_2(arguments, message, capsys):
    try:
        code = main([*COMMAND, *arguments])
    except SystemExit as ended:
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_processes_give_what_one_gives():
    contestants = [Contestant("adaptive", AdaptiveBatchSize()), Contestant("published", PublishedBatchSize())]
    one, two = (compare_policies([workloads()], contestants, seeds=3, workers=workers) for workers in (1, 2))
    assert one == two


def test_the_published_policy_agrees_with_itself_over_seeds():
    contestants = [Contestant("published", PublishedBatchSize())]
    (result,) = compare_policies([workloads()], contestants, seeds=40, recurrences=20)
    by_seed = result.regrets_by_seed(20)
    halves = [by_seed[:20], by_seed[20:]]
    errors = [statistics.stdev(half) / math.sqrt(20) for half in halves]
    assert abs(statistics.fmean(halves[0]) - statistics.fmean(halves[1])) < 3 * math.hypot(*errors)
    assert statistics.fmean(by_seed) == pytest.approx(result.regret(20))


def test_a_shorter_group_counts_with_its_last_regret():
    groups = [[Submission(0.0)], [Submission(0.0), Submission(1e6)]]
    (result,) = compare_policies([workloads()], [Contestant("default", DefaultBatchSize())], seeds=1, groups=groups)
    alone, both = (one.regrets() for one in result.replays[0])
    assert result.regrets() == [pytest.approx((alone[0] + both[0]) / 2), pytest.approx((alone[0] + both[1]) / 2)]
    assert result.regret(100) == result.regret(2)
