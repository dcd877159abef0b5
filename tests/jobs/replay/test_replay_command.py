"""`zeus-core replay`, and comparisons of policies."""

import csv
import math
import statistics

import pytest

from benchmarks._published_batch_size import PublishedBatchSize
from zeus_core.cli import main
from zeus_core.errors import UsageError
from zeus_core.jobs.policies import AdaptiveBatchSize
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize
from zeus_core.jobs.replay.job_replay import Contestant
from zeus_core.jobs.replay.policy_comparison import compare_policies
from zeus_core.jobs.replay.traces import RecordedJob, Submission, read_workloads

pytestmark = pytest.mark.usefixtures("traces")

FILES = ["replay", "--train", "train.csv", "--power", "summary_power_tiny.csv"]
COMMAND = [*FILES, "--job", "letters:0.9:256:40", "--seeds", "2", "--recurrences", "10"]


def workloads():
    return read_workloads("train.csv", "summary_power_tiny.csv", RecordedJob("letters", 0.9, 64, 40), "tiny")


def test_it_prints_the_regret_of_each_policy(capsys):
    assert main([*COMMAND[:6], "letters:0.9:64:40", *COMMAND[7:], "--policies", "default,adaptive-known"]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert "after 5 and 10 recurrences" in title
    assert header.split() == ["policy", "5", "10", "stderr", "tried", "short"]
    assert [row.split()[0] for row in rows] == ["default", "adaptive-known"]


def test_several_jobs_have_a_column_each(capsys, traces):
    (traces / "summary_power_other.csv").write_text((traces / "summary_power_tiny.csv").read_text())
    arguments = ["--power", "summary_power_tiny.csv", "summary_power_other.csv", "--job", "letters:0.9:64:40"]
    assert main([*FILES[:3], *arguments, "--seeds", "2", "--recurrences", "10"]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith("tiny letters  other letters")
    assert all(len(row) == len(header) for row in rows)


def test_it_writes_every_training(traces):
    arguments = ["--job", "letters:0.9:64:40", "--seeds", "2", "--recurrences", "10", "--csv", "runs.csv"]
    assert main([*FILES, *arguments, "--policies", "published"]) == 0
    with (traces / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert sum(row["outcome"] == "reached" for row in rows) == 20
    assert rows[0]["batch_size"] == "64"
    assert float(rows[0]["charged_cost"]) > float(rows[0]["cost"])


def test_it_draws(traces):
    pytest.importorskip("matplotlib")
    arguments = ["--job", "letters:0.9:64:40", "--seeds", "1", "--recurrences", "5", "--picture", "regret.svg"]
    assert main([*FILES, *arguments]) == 0
    assert "cumulative regret" in (traces / "regret.svg").read_text()


def test_recurrences_may_overlap(capsys, traces):
    (traces / "times.csv").write_text("group,start_time\n" + "".join(f"{'ab'[n % 2]},{n * 90}\n" for n in range(12)))
    assert main([*FILES, "--job", "letters:0.9:64:40", "--seeds", "2", "--submissions", "times.csv"]) == 0
    assert "after 3 and 6 recurrences" in capsys.readouterr().out


def test_a_class_of_your_own(capsys, traces, monkeypatch):
    (traces / "mine.py").write_text(
        "from zeus_core.jobs.policies import BatchProposal\n"
        "class Largest:\n"
        "    def propose(self, problem, runs, seed):\n"
        "        return BatchProposal(128, reason='it is fast')\n"
    )
    monkeypatch.syspath_prepend(str(traces))
    assert main([*FILES, "--job", "letters:0.9:64:40", "--policies", "mine:Largest", "--seeds", "1"]) == 0
    assert "mine:Largest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--job", "letters:0.9:64:40", "--policies", "best"], "'best' is no policy: none of default, grid"),
        (
            ["--job", "letters:0.9:64:40", "--policies", "no_module:X"],
            "no_module:X, which cannot be made: Module",
        ),
        (
            ["--job", "letters:0.9:64:40", "--policies", "json:JSONDecoder"],
            "json:JSONDecoder, which has no method",
        ),
        (["--job", "letters:0.9"], "'letters:0.9' is not DATASET:TARGET:DEFAULT:MAX_EPOCHS"),
        (["--job", "letters:0.9:64:x"], "is not DATASET:TARGET:DEFAULT:MAX_EPOCHS"),
        (["--job", "letters:nan:64:40"], "'letters:nan:64:40' is not DATASET"),
        (["--job", "words:0.9:64:40"], "train.csv has no 'words' with the target 0.9"),
        (["--job", "letters:0.9:64:3"], "no recorded training reaches the target in 3 epochs"),
        (["--job", "letters:0.9:48:40"], "default is 48; letters on tiny was recorded at"),
        (["--job", "letters:0.9:64:40", "--csv", "gone/runs.csv", "--seeds", "1"], "--csv is 'gone/runs.csv', which"),
        (["--job", "letters:0.9:64:40", "--submissions", "gone.csv"], "gone.csv cannot be read"),
        (["--job", "letters:0.9:64:40", "--picture", "regret.xyz", "--seeds", "1"], "its suffix must be one of"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_2(arguments, message, capsys):
    try:
        code = main([*FILES, *arguments])
    except SystemExit as ended:
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_processes_give_what_one_gives():
    pytest.importorskip("joblib")
    contestants = [Contestant("adaptive", AdaptiveBatchSize()), Contestant("published", PublishedBatchSize())]
    one, two = (compare_policies([workloads()], contestants, seeds=3, workers=workers) for workers in (1, 2))
    assert one == two


def test_without_joblib_processes_name_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "joblib", None)
    with pytest.raises(UsageError, match=r"workers is 2, which needs joblib: pip install .*\[replay\]'"):
        compare_policies([workloads()], [Contestant("default", DefaultBatchSize())], workers=2)


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
