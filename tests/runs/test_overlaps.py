"""Sums of runs that share GPUs, of records that lie, and of texts that a terminal would obey."""

import itertools
import json
import os
import random

import pytest

from tests.support.simulated_records import BEGIN, run_document
from zeus_core.cli import main
from zeus_core.runs._catalogue import Catalogue

DAY = 86_400.0
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


def added(folder, documents, *options, believed=False):
    """Add documents to the catalogue in a folder, by the users that they name if believed, and return it."""
    for number, document in enumerate(documents):
        (folder / "runs").mkdir(exist_ok=True)
        (folder / "runs" / f"{number}.json").write_text(json.dumps(document))
    if believed:
        Catalogue(folder / "catalogue").add([folder / "runs"], believes_users=True)
    else:
        main(["runs", "add", str(folder / "catalogue"), str(folder / "runs"), *options])
    return str(folder / "catalogue")


def summed(capsys, catalogue, *options):
    capsys.readouterr()
    assert main(["runs", "sum", catalogue, "--format", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)["sums"]


@pytest.mark.parametrize(("jobs", "seconds"), [(2, 0.5), (4, 1.0)])
def test_jobs_that_overlap_by_a_second_count_whole_but_for_it(tmp_path, capsys, jobs, seconds):
    documents = [run_document(number * (DAY - seconds), [(DAY, 1000.0)], limit_watts=1000.0) for number in range(jobs)]
    catalogue = added(tmp_path, documents)
    amounts = summed(capsys, catalogue)["all"]
    shared = (jobs - 1) * seconds
    assert amounts["gpu_milliseconds"] == 1000 * (jobs * DAY - shared)
    assert amounts["millijoules"] == 1e6 * (jobs * DAY - shared)
    assert (amounts["runs"], amounts["overlapping_runs"]) == (jobs, jobs)
    assert (amounts["shared_gpu_milliseconds"], amounts["shared_millijoules"]) == (1000 * shared, 1e6 * shared)
    assert amounts["off_millijoules"] <= 1e6 * shared, "as the power limit bounds it"
    assert main(["runs", "sum", catalogue]) == 0
    assert f"all: {jobs} runs overlap with others on a GPU" in capsys.readouterr().out


def test_the_recorded_power_decides_where_a_run_is_cut(tmp_path, capsys):
    shape = [(1000.0, 50.0), (3000.0, 400.0)]
    points = [[0.0, 0.0], [1000.0, 50_000.0], [4000.0, 1_250_000.0]]
    long = run_document(-5000.0, [(6000.0, 300.0)])  # until the power of the other rises
    catalogue = added(tmp_path, [long, run_document(0.0, shape, power=points, user="anna")], believed=True)
    amounts = summed(capsys, catalogue, "--by", "user")["anna"]
    assert (amounts["millijoules"], amounts["gpu_milliseconds"]) == (1_200_000_000, 3_000_000)
    assert amounts["off_millijoules"] == 0
    (tmp_path / "by time").mkdir()
    catalogue = added(tmp_path / "by time", [long, run_document(0.0, shape, user="anna")], believed=True)
    amounts = summed(capsys, catalogue, "--by", "user")["anna"]
    assert amounts["millijoules"] == 0.75 * 1_250_000_000
    assert amounts["millijoules"] + amounts["off_millijoules"] >= 1_200_000_000


def test_the_energy_of_the_gpu_is_within_the_interval_of_each_sum(tmp_path, capsys):
    rng, documents, truth = random.Random(5), [], {}
    for job in range(120):  # each on a GPU of its own, whose power is known at all times
        watts = [rng.choice((60.0, 150.0, 400.0)) for _ in range(100)]  # for 10 s each
        covered = set()
        for _ in range(rng.randint(2, 5)):
            begin = rng.randrange(90)
            end = rng.randrange(begin + 1, 101)
            covered.update(range(begin, end))
            pieces = [(10.0, power) for power in watts[begin:end]]
            points = [[10.0 * number, 10.0 * sum(watts[begin : begin + number])] for number in range(len(pieces) + 1)]
            fields = {"job": f"{job}", "limit_watts": rng.choice((400.0, None))}
            fields["power"] = points if rng.random() < 0.5 else []
            documents.append(run_document(10.0 * begin, pieces, f"GPU-{job}", **fields))
        truth[f"{job}"] = 10_000 * len(covered), round(1e4 * sum(watts[at] for at in covered))
    sums = summed(capsys, added(tmp_path, documents), "--by", "job")
    assert set(sums) == set(truth)
    for job, (milliseconds, millijoules) in truth.items():
        assert sums[job]["gpu_milliseconds"] == milliseconds
        assert abs(sums[job]["millijoules"] - millijoules) <= sums[job]["off_millijoules"] + 5
    assert any(amounts["off_millijoules"] == 0 < amounts["shared_millijoules"] for amounts in sums.values())


def test_gpu_hours_of_a_killed_run_have_an_interval_around_one_value(tmp_path, capsys):
    killed = run_document(0.0, [(3600.0, 300.0)], state="running")
    catalogue = added(tmp_path, [killed], "--ended")
    amounts = summed(capsys, catalogue)["all"]
    assert amounts["more_gpu_milliseconds"] == 1000 * (3600 + 600)
    assert main(["runs", "sum", catalogue]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1.0 (1.0 to 2.2)" in shown
    assert "0.30 (0.30 to 0.77)" in shown


def test_the_owner_of_a_file_is_the_user_of_its_run(tmp_path, capsys):
    import pwd

    mine = run_document(0.0, [(100.0, 300.0)], name="a" * 32, user="victim")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "0.json").write_text(json.dumps(mine))
    uid = 54_321 if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(tmp_path / "runs" / "0.json", uid, -1)
    owner = next((user.pw_name for user in pwd.getpwall() if user.pw_uid == uid), f"{uid}")
    assert main(["runs", "add", str(tmp_path / "own"), str(tmp_path / "runs")]) == 0
    assert list(summed(capsys, str(tmp_path / "own"), "--by", "user")) == [owner]
    Catalogue(tmp_path / "other").add([tmp_path / "runs"], believes_users=True)
    assert list(summed(capsys, str(tmp_path / "other"), "--by", "user")) == ["victim"]
    anonymous = {**mine, "parts": [{**mine["parts"][0], "identity": None}]}
    (tmp_path / "none.json").write_text(json.dumps(anonymous))
    assert main(["runs", "add", str(tmp_path / "anonymous"), str(tmp_path / "none.json")]) == 0
    assert list(summed(capsys, str(tmp_path / "anonymous"), "--by", "user")) == [""], "who wants no name gets none"


def test_nobody_replaces_the_run_of_another_user(tmp_path, capsys):
    mine = run_document(0.0, [(1000.0, 300.0)], name="a" * 32, user="victim")
    forged = run_document(0.0, [(2000.0, 1.0)], "GPU-1", name="a" * 32, user="attacker")
    sums = summed(capsys, added(tmp_path, [mine, forged], believed=True), "--by", "user")
    assert {user: amounts["millijoules"] for user, amounts in sums.items()} == {
        "victim": 300_000_000,
        "attacker": 2_000_000,
    }


@pytest.mark.parametrize(
    "place",
    [
        ("account", "total", "measured", "energy_joules"),
        ("account", "activities", "steps", "measured", "energy_joules"),
        ("account", "tokens"),
        ("account", "unrecorded_joules"),
        ("parts", 0, "ranks", 0, "devices", 0, "energy", "measured", "energy_joules"),
        ("parts", 0, "ranks", 0, "devices", 0, "limit_watts"),
        ("parts", 0, "ranks", 0, "devices", 0, "count"),
    ],
)
@pytest.mark.parametrize("factor", [-1e6, 1e9])
def test_a_number_that_cannot_be_true_is_refused_by_name(tmp_path, capsys, place, factor):
    document = run_document(0.0, [(100.0, 300.0)])
    *path, last = place
    within = document
    for name in path:
        within = within[name]
    within[last] = type(within[last])(factor * (within[last] or 1e7))
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "run.json")]) == 1
    assert f"{tmp_path / 'run.json'}" in capsys.readouterr().err


def test_texts_of_records_reach_no_terminal_raw(tmp_path, capsys):
    fields = {name: f"{name}{ESCAPE}\nforged" for name in ("user", "job", "project", "cluster")}
    documents = [run_document(0.0, [(1000.0, 30.0)], name=f"{'b' * 32}{ESCAPE}", state="running", **fields)]
    documents.append(run_document(500.0, [(1000.0, 30.0)], **fields))
    catalogue = added(tmp_path, documents, believed=True)
    (tmp_path / f"broken{ESCAPE}.json").write_text("{")
    main(["runs", "add", catalogue, str(tmp_path / f"broken{ESCAPE}.json")])
    for arguments in (["list"], ["sum"], ["sum", "--by", "user"], ["sum", "--by", "run"], ["show", "b" * 32]):
        mode, *options = arguments
        names, options = ([options[0]], []) if mode == "show" else ([], options)
        assert main(["runs", mode, catalogue, *names, *options]) == 0
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "forged" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    assert not [line for line in text.splitlines() if line.startswith("forged")]


def test_files_that_have_not_changed_are_not_read_again(tmp_path, capsys, monkeypatch):
    catalogue = added(tmp_path, [run_document(200.0 * each, [(100.0, 300.0)], state="running") for each in range(3)])
    opened = []
    monkeypatch.setattr("zeus_core.runs._catalogue.read_owned_run", opened.append)
    assert main(["runs", "add", catalogue, str(tmp_path / "runs")]) == 0
    assert not opened
    monkeypatch.undo()
    (tmp_path / "runs" / "1.json").write_text(json.dumps(run_document(9000.0, [(100.0, 300.0)])))
    capsys.readouterr()
    main(["runs", "add", catalogue, str(tmp_path / "runs")])
    assert capsys.readouterr().out.startswith("1 runs added")
    main(["runs", "add", catalogue, "--ended", str(tmp_path / "runs")])  # an option may come anywhere
    assert capsys.readouterr().out.startswith("2 runs added")


def test_all_energy_is_charged_at_what_is_stated(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ZEUS_DEFAULTS", str(tmp_path / "defaults.json"))
    catalogue = added(tmp_path, [run_document(0.0, [(36_000.0, 1000.0)])])
    assert summed(capsys, catalogue)["all"]["milligrams"] == 0
    options = ("--intensity", "DE", "--price", "0.30EUR/kWh", "--pue", "1.5")
    amounts = summed(capsys, catalogue, *options)["all"]
    assert amounts["milligrams"] == 10 * 1.5 * 344_000
    assert amounts["cost"] == {"EUR": [4_500_000, 0]}
    assert main(["runs", "sum", catalogue, *options]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "344 g/kWh (DE, mean of 2024: Ember" in output
    assert "4.50 EUR" in output
    assert "0.3 EUR/kWh (by --price)" in output
    (tmp_path / "defaults.json").write_text(json.dumps({"intensity": "FR", "price": "0.25EUR/kWh", "pue": 1.5}))
    (tmp_path / "defaults.json").chmod(0o600)
    from zeus_core.ports import site_defaults

    site_defaults._read.cache_clear()
    assert summed(capsys, catalogue)["all"]["milligrams"] == 10 * 1.5 * 44_000
    assert main(["runs", "sum", catalogue]) == 0
    assert "0.25 EUR/kWh (by the defaults of this site)" in " ".join(capsys.readouterr().out.split())
    assert summed(capsys, catalogue, "--intensity", "SE")["all"]["milligrams"] == 10 * 1.5 * 36_000
    assert main(["runs", "report", catalogue, str(tmp_path / "page.html"), "--intensity", "SE"]) == 0
    assert "SE, mean of 2024" in (tmp_path / "page.html").read_text()
    assert main(["runs", "sum", catalogue, "--intensity", "XX"]) == 2
    assert "there is no yearly intensity of XX" in capsys.readouterr().err


def test_a_file_charges_each_run_at_its_time(tmp_path, capsys):
    (tmp_path / "carbon.csv").write_text(
        "time,value\n" + "".join(f"{int(BEGIN) // 3600 * 3600 + 3600 * hour},{100 + 100 * hour}\n" for hour in range(9))
    )
    begin = 3600 - int(BEGIN) % 3600  # the second hour of the file
    catalogue = added(tmp_path, [run_document(begin, [(3600.0, 1000.0)])])
    amounts = summed(capsys, catalogue, "--intensity", f"{tmp_path / 'carbon.csv'},g/kWh,UTC")["all"]
    assert amounts["milligrams"] == 200_000


def test_days_months_and_times_are_those_of_the_time_zone(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TZ", raising=False)
    begin = 1_759_270_200.0 - BEGIN  # 2025-09-30, 22:10 UTC: October in Berlin
    catalogue = added(tmp_path, [run_document(begin, [(100.0, 300.0)])])
    assert list(summed(capsys, catalogue, "--by", "day")) == ["2025-09-30"]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert list(summed(capsys, catalogue, "--by", "day")) == ["2025-10-01"]
    assert summed(capsys, catalogue, "--month", "2025-10")["all"]["runs"] == 1
    assert main(["runs", "list", catalogue]) == 0
    assert "2025-10-01T00:10:00+02:00" in capsys.readouterr().out
    monkeypatch.setenv("TZ", "Mars")
    assert main(["runs", "list", catalogue]) == 0
    said = capsys.readouterr()
    assert "2025-09-30T22:10:00+00:00" in said.out
    assert "TZ is 'Mars', which is not a zone" in said.err


def test_a_tag_that_no_run_has_is_said(tmp_path, capsys):
    catalogue = added(tmp_path, [run_document(0.0, [(100.0, 300.0)])])
    assert main(["runs", "sum", catalogue, "--by", "tag:temperature"]) == 0
    assert "no run has the tag 'temperature'" in capsys.readouterr().err


def test_gains_name_user_job_and_date_and_are_above_a_percent(tmp_path, capsys):
    low = [[0.0, 0.0], [900.0, 54_000.0], [1000.0, 94_000.0]]
    idle = run_document(0.0, [(900.0, 60.0), (100.0, 400.0)], power=low, user="anna", job="77")
    busy = run_document(5000.0, [(1000.0, 350.0)], user="otto", job="78")
    for document in (idle, busy):
        document["account"]["activities"] = {"steps": document["account"]["total"]}
    catalogue = added(tmp_path, [idle, busy], believed=True)
    assert main(["runs", "sum", catalogue]) == 0
    (line,) = itertools.islice(capsys.readouterr().out.partition("gain most:")[2].strip().splitlines(), 1, None)
    assert "57%" in line
    for word in ("anna", "77", "2025-09-30", "at low power"):
        assert word in line


def test_a_run_is_shown_as_text(tmp_path, capsys):
    catalogue = added(tmp_path, [run_document(0.0, [(3600.0, 1000.0)], user="anna", name="c" * 32)], believed=True)
    capsys.readouterr()
    assert main(["runs", "show", catalogue, "ccc"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["run"], lines["user"], lines["energy"]) == ("c" * 32, "anna", "1 kWh")
    assert lines["began"] == "2025-09-30T17:40:00+00:00"
