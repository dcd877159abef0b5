"""`zeus-core runs`: a catalogue of simulated runs, against another way to add them up."""

import contextlib
import csv
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.support.kept_runs import NO_CPUS, kept_run
from tests.support.pages import ROOT
from tests.support.simulated_records import independent_sums, simulated_files
from zeus_core.cli import main
from zeus_core.cli.metering import MachineMeter
from zeus_core.cli.run._command_file import document_of
from zeus_core.cli.run._run_record import CommandRecord
from zeus_core.cli.run._window_samples import WindowSamples, limits_watts
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.runs._catalogue import Catalogue
from zeus_core.runs._sums_shown import number as shown_number
from zeus_core.testing import VirtualTime

COUNT = 1500


@pytest.fixture(scope="module")
def files():
    return list(simulated_files(seed=1, count=COUNT))


@pytest.fixture(scope="module")
def catalogue(files, tmp_path_factory):
    records, folder = tmp_path_factory.mktemp("records"), tmp_path_factory.mktemp("shared") / "catalogue"
    for file in files:
        (records / file.name).parent.mkdir(parents=True)
        (records / file.name).write_text(file.text)
    made = Catalogue(folder)
    made.add([records], believes_users=True)
    assert made.complaints, "some are damaged"
    return folder


def summed(capsys, folder, *options):
    capsys.readouterr()
    assert main(["runs", "sum", str(folder), "--format", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)["sums"]


@pytest.mark.parametrize("by", [None, "user", "project", "cluster", "job", "month"])
def test_sums_are_those_of_another_way_to_the_last_bit(files, catalogue, capsys, by):
    sums = summed(capsys, catalogue, *(() if by is None else ("--by", by)))
    expected = independent_sums(files, by)
    assert {name: {key: amounts[key] for key in expected[name]} for name, amounts in sums.items()} == expected


@pytest.mark.parametrize("by", ["day", "month", "gpu", "state", "tag:team", "run"])
def test_every_grouping_adds_up_to_the_whole(catalogue, capsys, by):
    (whole,) = summed(capsys, catalogue).values()
    groups = summed(capsys, catalogue, "--by", by)
    for name in ("runs", "millijoules", "tokens", "milligrams", "idle_millijoules"):
        assert sum(amounts[name] for amounts in groups.values()) == whole[name]
    for currency, (amount, _) in whole["cost"].items():
        assert sum(amounts["cost"].get(currency, [0])[0] for amounts in groups.values()) == amount


def test_months_add_up_to_the_whole(catalogue, capsys):
    (whole,) = summed(capsys, catalogue).values()
    months = summed(capsys, catalogue, "--by", "month")
    assert list(months) == ["2025-09", "2025-10"]
    for month, amounts in months.items():
        assert summed(capsys, catalogue, "--month", month)["all"] == amounts
    assert sum(amounts["millijoules"] for amounts in months.values()) == whole["millijoules"]


def test_damaged_records_are_refused_by_name(files, tmp_path, capsys):
    damaged = [file for file in files if file.document is None]
    assert len(damaged) > COUNT * 0.005
    for number, file in enumerate(damaged):
        (tmp_path / f"{number}.json").write_text(file.text)
    assert main(["runs", "add", str(tmp_path / "catalogue"), *(str(path) for path in tmp_path.glob("*.json"))]) == 1
    output = capsys.readouterr()
    assert output.out == f"0 runs added to {tmp_path / 'catalogue'}\n"
    assert f"{tmp_path / '0.json'}" in output.err


def test_adding_again_and_by_two_writers_changes_nothing(files, catalogue, tmp_path, capsys):
    sums = summed(capsys, catalogue)
    for file in files[:40]:
        path = tmp_path / "records" / file.name
        path.parent.mkdir(parents=True)
        path.write_text(file.text)
    assert Catalogue(catalogue).add([tmp_path / "records"], believes_users=True) == 0
    Catalogue(tmp_path / "other").add([tmp_path / "records"], believes_users=True)
    for path in (tmp_path / "other").iterdir():
        path.rename(catalogue / path.name)  # as if both had looked before either wrote
    copies = [path.with_name(f"copy of {path.name}") for path in catalogue.iterdir()]
    for path in copies:
        path.write_bytes(path.with_name(path.name.removeprefix("copy of ")).read_bytes())
    capsys.readouterr()
    assert summed(capsys, catalogue) == sums
    assert main(["runs", "list", str(catalogue), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    for path in copies:
        path.unlink()
    assert main(["runs", "list", str(catalogue), "--format", "json"]) == 0
    once = {run["run"]: run["whole_millijoules"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert {run["run"]: run["whole_millijoules"] for run in listed} == once


def document_of_command(fields):
    """The file of `zeus-core run` for a window with these fields."""
    energies = {
        Device(each["kind"], each["index"], each["uuid"]): DeviceEnergy(
            each["energy_joules"], each["uncertainty_joules"]
        )
        for each in fields["devices"]
    }
    record = CommandRecord(
        fields["command"],
        fields["exit_code"],
        fields["start_time"],
        Measurement(fields["seconds"], energies),
        dict.fromkeys(energies, fields["devices"][0]["name"]),
        fields["is_simulated"],
        fields["notes"],
    )
    return document_of(record)


def test_a_command_and_the_training_in_it_count_once(tmp_path, capsys):
    run = kept_run(tmp_path / "run", steps=20)
    record = json.loads((run / "zeus-energy" / "run.json").read_text())
    device = record["parts"][0]["ranks"][0]["devices"][0]
    begin, end = (record["parts"][0][name] for name in ("begun_at_seconds", "until_seconds"))
    fields = {name: device[name] for name in ("uuid", "index", "name")} | {"kind": "gpu", "energy_joules": 9999.0}
    fields |= {"uncertainty_joules": 1.0, "method": "counted", "lost_because": None, "average_power_watts": None}
    command = {"command": ["train"], "exit_code": 0}
    command |= {"start_time": begin - 1, "seconds": end - begin + 2, "is_simulated": True, "devices": [fields]}
    command |= {"totals": {"energy_joules": 9999.0}, "electricity": None, "notes": []}
    (tmp_path / "m.json").write_text(json.dumps(document_of_command(command)))
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "m.json"), str(run)]) == 0
    (amounts,) = summed(capsys, tmp_path / "catalogue").values()
    assert (amounts["runs"], amounts["millijoules"]) == (2, 9_999_000)
    assert amounts["tokens"] == record["account"]["tokens"]


def test_what_is_saved_follows_from_the_steps_at_the_chosen_setting(tmp_path, capsys):
    run = ROOT / "tests" / "samples" / "run"
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(run)]) == 0
    (amounts,) = summed(capsys, tmp_path / "catalogue").values()
    record = json.loads((run / "zeus-energy" / "run.json").read_text())
    result = record["parts"][0]["search"]["result"]
    after, fraction = result["comparison"]["after"], record["saving_fraction"]
    (device,) = after["measurement"]["devices"].values()
    joules = result["chosen_steps"] * device["energy_joules"] / after["steps"]
    assert amounts["saved_millijoules"] == round(1e3 * joules * fraction / (1 - fraction))
    assert 0 < amounts["off_saved_millijoules"] < amounts["saved_millijoules"]
    assert (amounts["controlled"], amounts["millijoules"]) == (1, 70_756_710)


def test_energy_that_was_lost_is_no_zero(tmp_path, capsys):
    run = kept_run(tmp_path / "run", steps=3) / "zeus-energy" / "run.json"
    record = json.loads(run.read_text())
    record["account"]["total"]["lost_seconds"] = 1.5
    run.write_text(json.dumps(record))
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(run)]) == 0
    capsys.readouterr()
    assert summed(capsys, tmp_path / "catalogue")["all"]["lost_gpu_milliseconds"] == 1500
    assert main(["runs", "sum", str(tmp_path / "catalogue")]) == 0
    output = capsys.readouterr().out
    assert "at least" in output
    assert "was not measured" in output


def test_a_catalogue_that_cannot_be_used_is_named(catalogue, tmp_path, capsys):
    run = kept_run(tmp_path / "run", steps=3)
    assert main(["runs", "sum", str(tmp_path / "none")]) == 2
    assert f"there is no catalogue at {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["runs", "add", str(tmp_path / "file"), str(run)]) == 2
    for options in (["--by", "nobody"], ["--month", "soon"], ["--month", "2026-13"]):
        assert main(["runs", "sum", str(catalogue), *options]) == 2
    assert main(["runs", "add", str(catalogue), str(tmp_path / "missing")]) == 1
    assert "there is no run at" in capsys.readouterr().err


def test_any_damage_to_a_record_is_right_or_refused(tmp_path, capsys):
    rng, samples = random.Random(2), ROOT / "tests" / "samples"
    documents = [
        json.loads((samples / name).read_text()) for name in ("command/energy.json", "run/zeus-energy/run.json")
    ]
    documents[1]["parts"][0]["ranks"][0]["devices"][0]["power"] = []
    for number in range(400):
        document = json.loads(json.dumps(documents[number % 2]))
        place = document
        for _ in range(rng.randint(1, 8)):
            name = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not place[name] or not isinstance(place[name], dict | list):
                break
            place, name = place[name], None
        if name in ("format", None):
            continue
        place[name] = rng.choice([None, 0, -1, 1e308, "x", "\ud800", [], {}, True, 1e15, 10**30, 0.5, float("nan")])
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path)]) == 1
    added = int(capsys.readouterr().out.split()[0])
    assert added > 0
    assert summed(capsys, tmp_path / "catalogue", "--by", "run")


@pytest.mark.parametrize("content", [b"", b"PAR1 half written", b"another version"])
def test_a_damaged_file_of_the_catalogue_is_left_out_by_name(tmp_path, capsys, content):
    folder = tmp_path / "catalogue"
    main(["runs", "add", str(folder), str(kept_run(tmp_path / "run", steps=3))])
    capsys.readouterr()
    before = summed(capsys, folder)
    if content == b"another version":
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema([("run", pyarrow.string())], metadata={"zeus-core runs": "99"})
        pyarrow.parquet.write_table(pyarrow.table({"run": ["a"]}, schema=schema), folder / "other.parquet")
    else:
        (folder / "other.parquet").write_bytes(content)
    (folder / "x.parquet.unfinished-0").write_bytes(b"of a writer that was killed")
    assert main(["runs", "sum", str(folder), "--format", "json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["sums"] == before
    assert str(folder / "other.parquet") in output.err


def test_runs_are_listed_shown_and_exported(files, catalogue, tmp_path, capsys):
    import pyarrow.compute
    import pyarrow.parquet

    assert main(["runs", "list", str(catalogue)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 52
    name = next(file.document["run"] for file in files if file.document is not None)
    assert main(["runs", "show", str(catalogue), name, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == name
    assert main(["runs", "sum", str(catalogue), "--by", "user"]) == 0
    assert "Runs that would gain most:" in capsys.readouterr().out
    assert main(["runs", "sum", str(catalogue), "--by", "user", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    for suffix in ("csv", "parquet"):
        assert main(["runs", "export", str(catalogue), str(tmp_path / f"all.{suffix}")]) == 0
    capsys.readouterr()
    rows = pyarrow.parquet.read_table(tmp_path / "all.parquet")
    (whole,) = summed(capsys, catalogue).values()
    for name in ("millijoules", "gpu_milliseconds"):
        assert pyarrow.compute.sum(rows[f"counted_{name}"]).as_py() == whole[name]
    assert (tmp_path / "all.csv").read_text().count("\n") == rows.num_rows + 1


def test_tags_of_any_kind_are_groups(monkeypatch, tmp_path, capsys):
    values = ['a "quoted" one', "x' or 1=1", "naïve", "="]
    for number, value in enumerate(values):
        monkeypatch.setenv("ZEUS_TAGS", f"team={value}")
        kept_run(tmp_path / "runs" / f"{number}", steps=3)
    main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "runs")])
    capsys.readouterr()
    assert set(summed(capsys, tmp_path / "catalogue", "--by", "tag:team")) == set(values)


def test_files_of_an_earlier_day_are_merged_and_count_once(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "catalogue"
    main(["runs", "add", str(folder), *(str(kept_run(tmp_path / f"{each}", steps=3, seed=each)) for each in range(2))])
    for number in range(20):  # each in a file of its own, as jobs add them
        main(["runs", "add", str(folder), str(kept_run(tmp_path / "runs" / f"{number}", steps=3, seed=number))])
    for path in folder.iterdir():
        path.rename(path.with_name(f"2025-10-01{path.name[10:]}"))
    unmerged = shutil.copytree(folder, tmp_path / "unmerged")
    late = next(folder.iterdir())  # of a node whose clock is off, or that was copied from elsewhere
    late = late.rename(tmp_path / late.name)
    new = kept_run(tmp_path / "new", steps=3)
    assert main(["runs", "add", str(folder), str(new)]) == 0
    day = folder / "2025-10-01.parquet"
    assert day.exists()
    assert len(list(folder.iterdir())) == 22, "a reader may be at work that has not seen the new one"
    late.rename(folder / late.name)
    (folder / f"2025-10-01-{0:016x}.parquet").write_bytes(b"damaged")
    os.utime(day, (1_790_000_000, 1_790_000_000))
    capsys.readouterr()
    assert main(["runs", "add", str(folder), str(new)]) == 1
    assert "0 runs added" in capsys.readouterr().out
    (folder / f"2025-10-01-{0:016x}.parquet").unlink()
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == 3
    assert {day.name, late.name} < set(left)
    (of_today,) = set(left) - {day.name, late.name}
    shutil.copy(folder / of_today, unmerged)
    after = summed(capsys, folder, "--by", "run")
    assert after == summed(capsys, unmerged, "--by", "run")
    assert sum(amounts["runs"] for amounts in after.values()) == 23
    monkeypatch.setattr("zeus_core.runs._catalogue._MANY", 7)  # of which the rows are brought together
    assert after == summed(capsys, unmerged, "--by", "run")
    monkeypatch.setattr("zeus_core.runs._counting._MOST_GROUPS", 22)
    assert main(["runs", "sum", str(folder), "--by", "run"]) == 2
    assert "--by run makes 23 groups; give a --month" in capsys.readouterr().err


def test_runs_of_each_outcome_are_in_every_sum(tmp_path, capsys):
    errors = {"ended": None, "failed": ValueError(), "stopped": KeyboardInterrupt()}
    for error in errors.values():
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            kept_run(tmp_path / "runs" / f"{error!r}", steps=3, ends_by=error)
    command = json.loads((ROOT / "tests" / "samples" / "command" / "energy.json").read_text())
    for number, code in enumerate((1, -signal.SIGSEGV, -signal.SIGTERM, 128 + signal.SIGTERM)):
        document = {**command, "exit_code": code, "start_time": command["start_time"] - 1e5 * number}
        (tmp_path / "runs" / f"{code}.json").write_text(json.dumps(document_of_command(document)))
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "runs")]) == 0
    sums = summed(capsys, tmp_path / "catalogue", "--by", "state")
    assert {name: amounts["runs"] for name, amounts in sums.items()} == {"ended": 1, "failed": 3, "stopped": 3}
    assert min(sums["failed"]["millijoules"], sums["stopped"]["millijoules"]) > 0


KILLED = """
import os, pathlib, signal, time
from tests.support.kept_runs import NO_CPUS
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

time_source = VirtualTime()
time_source.set_clock(1_790_000_000.0)
gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
energy = TrainingEnergy(ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source), folder="output")
energy.on_train_begin()
new = pathlib.Path("catalogue/new")
for seconds in (10.0, 300.0, 300.0):  # a log each: the first one and that after ten minutes are recorded
    with energy.step():
        gpu.execute(Work(seconds, 300.0))
    energy.log()
while not any('"step": 3' in path.read_text() for path in new.glob("*.json")):  # not those still being written
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_was_killed_is_in_the_sums(tmp_path, capsys):
    (new := tmp_path / "catalogue" / "new").mkdir(parents=True)
    (defaults := tmp_path / "defaults.json").write_text(json.dumps({"catalogue": str(tmp_path / "catalogue")}))
    defaults.chmod(0o600)
    environment = {**os.environ, "ZEUS_DEFAULTS": str(defaults), "SLURM_JOB_ID": "7"}
    environment["PYTHONPATH"] = str(ROOT)
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, check=False)
    assert ended.returncode == -9
    (record,) = new.glob("7-*.json")
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(record)]) == 0
    assert list(summed(capsys, tmp_path / "catalogue", "--by", "state")) == ["running"]
    assert main(["runs", "add", "--ended", str(tmp_path / "catalogue"), str(record)]) == 0
    sums = summed(capsys, tmp_path / "catalogue", "--by", "state")
    assert list(sums) == ["interrupted"]
    amounts = sums["interrupted"]
    assert (amounts["runs"], amounts["gpu_milliseconds"], amounts["unbounded"]) == (1, 610_000, 0)
    assert amounts["millijoules"] == pytest.approx(610 * 300e3, rel=0.05)
    assert amounts["more_millijoules"] == (610 + 600) * 400_000, "at the limit of the GPU"


def test_a_command_has_its_gpu_hours_at_low_power(tmp_path, capsys):
    time_source = VirtualTime()
    time_source.set_clock(1_772_409_600.0)
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
    meter = MachineMeter(monitor)
    meter.begin()
    samples = WindowSamples(meter, limits_watts(monitor))
    so_far: list[CommandRecord] = []
    samples.keep = lambda each: so_far.append(
        CommandRecord(["train"], None, 1_772_409_600.0, each, dict.fromkeys(each.devices, "A100"), True, [])
    )
    for is_busy in (True, False, True, False, False):
        if is_busy:
            gpu.execute(Work(10.0, 300.0))
        else:
            time_source.advance(10.0)
    whole = meter.end()
    samples.end(whole)
    names = dict.fromkeys(whole.devices, "A100")
    record = CommandRecord(["train"], 0, 1_772_409_600.0, whole, names, True, [], samples=samples)
    (tmp_path / "m.json").write_text(json.dumps(document_of(record)))
    (tmp_path / "killed.json").write_text(json.dumps(document_of(so_far[0])))
    assert main(["runs", "add", "--ended", str(tmp_path / "catalogue"), str(tmp_path / "killed.json")]) == 0
    killed = summed(capsys, tmp_path / "catalogue", "--by", "state")["interrupted"]
    assert killed["runs"] == len(so_far) == 1
    assert killed["gpu_milliseconds"] == pytest.approx(10_000, abs=1001)
    assert killed["unbounded"] == 1, "nobody knows for how long it went on"
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "m.json")]) == 0
    amounts = summed(capsys, tmp_path / "catalogue")["all"]
    assert amounts["runs"] == 1, "what was kept before is the same run"
    assert amounts["seen_gpu_milliseconds"] == pytest.approx(1e3 * whole.time, abs=2)
    assert amounts["low_gpu_milliseconds"] == pytest.approx(30_000, abs=500)
    assert 0 < amounts["low_millijoules"] < amounts["millijoules"] / 2


def test_the_page_has_all_sums_of_a_month_and_stays_small(files, catalogue, tmp_path, capsys):
    page = tmp_path / "october.html"
    command = ["runs", "report", str(catalogue), str(page)]
    assert main([*command, "--month", "2025-09"]) == 0
    text, rows = page.read_text(), list(csv.DictReader(io.StringIO(page.with_suffix(".csv").read_text())))
    assert len(text) < 30_000
    for name in ("Trend", "By team", "By user", "By outcome", "gain most", "idle", "not measured"):
        assert name in text
    capsys.readouterr()
    (whole,) = summed(capsys, catalogue, "--month", "2025-09").values()
    for by in ("", "tag:team", "user", "state", "day"):
        assert sum(int(row["millijoules"]) for row in rows if row["by"] == by) == whole["millijoules"]
    assert main([*command, "--by", "cluster"]) == 0
    assert "By cluster" in page.read_text()
    for options in (["--month", "2020-01"], ["--by", "nobody"], ["--by", "tag:"]):
        assert main([*command, *options]) == 2
    assert main(["runs", "report", str(catalogue), "page.pdf"]) == 2


def test_names_of_any_kind_are_harmless_in_the_page_and_its_table(monkeypatch, tmp_path, capsys):
    for number, value in enumerate(["<script>alert(1)</script>", "=1+1", "'\" & x"]):
        monkeypatch.setenv("ZEUS_TAGS", f"team={value}")
        kept_run(tmp_path / "runs" / f"{number}", steps=3)
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(tmp_path / "runs")]) == 0
    assert main(["runs", "report", str(tmp_path / "catalogue"), str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    rows = csv.DictReader(io.StringIO((tmp_path / "page.csv").read_text()))
    names = {row["name"] for row in rows if row["by"] == "tag:team"}
    assert names == {"<script>alert(1)</script>", "'=1+1", "'\" & x"}, "a spreadsheet computes what begins with ="


def test_ten_thousand_values_of_a_tag_are_groups_and_a_small_page(catalogue, tmp_path, capsys):
    import pyarrow
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(next(path for path in catalogue.iterdir())).slice(0, 1).to_pylist() * 10_000
    many = [
        {
            **row,
            "run": f"{number}",
            "record": number,
            "device": "",
            "millijoules": 10**12,
            "tags": json.dumps({"team": f'{number} \n"x"'}),
        }
        for number, row in enumerate(rows)
    ]
    schema = pyarrow.parquet.read_schema(next(path for path in catalogue.iterdir()))
    folder = tmp_path / "catalogue"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(many, schema=schema), folder / "many.parquet")
    assert len(summed(capsys, folder, "--by", "tag:team")) == 10_000
    assert main(["runs", "report", str(folder), str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert len(text) < 30_000
    ticks = re.findall(r'<text x="(\d+)" y="[\d.]+" text-anchor="end">([^<]+)', text)
    assert len(ticks) == 6
    assert all(8 * len(label) <= int(end) for end, label in ticks), "no digit lies beyond the edge"


def test_a_catalogue_of_an_earlier_version_lacks_what_it_has_not_written(catalogue, tmp_path, capsys):
    import pyarrow.parquet

    new = ("redone_millijoules", "seen_gpu_milliseconds", "low_gpu_milliseconds", "low_millijoules")
    for path in catalogue.iterdir():
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).drop_columns(list(new)), tmp_path / path.name)
    (old,), (sums,) = summed(capsys, tmp_path).values(), summed(capsys, catalogue).values()
    assert old == {**sums, **dict.fromkeys(new, 0)}
    assert sums["low_gpu_milliseconds"] > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root may write anywhere; run this as another user")
def test_folders_that_cannot_be_used_are_named(tmp_path, capsys):
    (tmp_path / "catalogue").mkdir(mode=0o500)
    assert main(["runs", "add", str(tmp_path / "catalogue"), str(kept_run(tmp_path / "run", steps=3))]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "catalogue").chmod(0o300)  # nobody may list it: its sum is not 0
    assert main(["runs", "sum", str(tmp_path / "catalogue")]) == 1
    (tmp_path / "run" / "zeus-energy").chmod(0o300)
    assert main(["runs", "add", str(tmp_path / "new"), str(tmp_path / "run")]) == 1
    errors = capsys.readouterr().err
    (tmp_path / "run" / "zeus-energy").chmod(0o700)
    for folder in ("catalogue", "run/zeus-energy"):
        assert f"the folder {tmp_path / folder} cannot be read" in errors


def test_prometheus_gets_the_savings_of_groups(catalogue, capsys):
    from prometheus_client.parser import text_string_to_metric_families

    sums = summed(capsys, catalogue, "--by", "tag:team")
    assert main(["runs", "sum", str(catalogue), "--by", "tag:team", "--format", "prometheus"]) == 0
    families = {family.name: family for family in text_string_to_metric_families(capsys.readouterr().out)}
    for name, amount in (("energy", "millijoules"), ("saved", "saved_millijoules")):
        samples = families[f"zeus_runs_{name}_joules"].samples
        assert {each.labels["tag_team"]: each.value for each in samples} == {
            team: amounts[amount] / 1e3 for team, amounts in sums.items()
        }
    assert main(["runs", "sum", str(catalogue), "--by", "run", "--format", "prometheus"]) == 2
    assert "series of each metric; Prometheus gets 1,000 at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("list", "--by", "user"), "zeus-core runs list: error: there is no option '--by'"),
        (("list", "--format", "prometheus"), "invalid choice: 'prometheus'"),
        (("report", "october.html", "--output", "x.html"), "name the file after the catalogue"),
    ],
)
def test_an_option_of_another_mode_is_refused(tmp_path, capsys, options, complaint):
    mode, *rest = options
    with pytest.raises(SystemExit, match="2"):
        main(["runs", mode, str(tmp_path), *rest])
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((2.197404512, 2.8e-8), "2.197"),
        ((2533.21, 4e-5), "2,533"),
        ((92.82, 0.93), "92.82 ±0.93"),
        ((0.00209, 2.3e-5, 0.1), "0.002"),
        ((0.4, 0.3), "0.40 ±0.30"),
        ((0.0, 12.0), "0 ±12"),
    ],
)
def test_sums_have_no_more_digits_than_sensors(numbers, shown):
    assert shown_number(*numbers) == shown
