"""Whose run it is: recorded once, in the file of the run, and in nothing that is meant for others."""

import json

import pytest

from tests.support.kept_runs import kept_run
from zeus_core.cli import main
from zeus_core.cli.run._command_file import document_of, write_record
from zeus_core.cli.run._run_record import CommandRecord
from zeus_core.codec import encode
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.ports.run_identity import RunIdentity, identity_here
from zeus_core.training.record.run_file import read_run, record_from_document

SLURM = {
    "SLURM_JOB_ID": "4711_2",  # no digits alone: times in a report may hold them
    "SLURM_JOB_USER": "annabel",
    "SLURM_JOB_ACCOUNT": "account9",
    "SLURM_JOB_NAME": "nightly7",
    "SLURM_CLUSTER_NAME": "cluster8",
}


@pytest.fixture
def slurm(monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ZEUS_TAGS", "team=nlp3, project=moon")


def test_a_trainer_records_whose_run_it_is(slurm, tmp_path):
    identity = read_run(kept_run(tmp_path / "run", steps=3)).latest.identity
    tags = {"team": "nlp3", "project": "moon"}
    assert identity == RunIdentity("annabel", "4711_2", "nightly7", "moon", "cluster8", tags=tags)


def test_nothing_meant_for_others_names_anybody(slurm, tmp_path, capsys):
    run = kept_run(tmp_path / "run", steps=3)
    for kind in ("html", "text", "json", "csv", "card"):
        assert main(["report", str(run), "--format", kind]) == 0
    text = capsys.readouterr().out
    for name in (*SLURM.values(), "nlp3", "moon"):
        assert name not in text


def test_nothing_is_recorded_where_that_is_off(slurm, monkeypatch, tmp_path):
    monkeypatch.setenv("ZEUS_TAGS", "None")
    assert read_run(kept_run(tmp_path / "run", steps=3)).latest.identity is None


def test_a_pod_is_named_by_its_namespace(monkeypatch):
    for name, value in {"KUBERNETES_SERVICE_HOST": "1", "POD_NAMESPACE": "ml", "POD_NAME": "train-0"}.items():
        monkeypatch.setenv(name, value)
    identity = identity_here()
    assert (identity.namespace, identity.pod) == ("ml", "train-0")


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("team=nlp,,project=x,", {"team": "nlp", "project": "x"}),
        ("quoted=\"a\" 'b'", {"quoted": "\"a\" 'b'"}),
        ("a=1\nb=2,c=3", {"c": "3"}),
        ("no pair,=x,ä=1,ok=", {"ok": ""}),
        (f"long={'x' * 300}", {}),
        (",".join(f"t{number}=1" for number in range(10_000)), {f"t{number}": "1" for number in range(32)}),
    ],
)
def test_tags_that_cannot_be_recorded_are_refused_by_name(monkeypatch, caplog, text, tags):
    monkeypatch.setenv("ZEUS_TAGS", text)
    assert identity_here().tags == tags
    assert ("of ZEUS_TAGS are not recorded" in caplog.text) == (
        len(tags) != text.strip(",").replace(",,", ",").count("=")
    )


def test_a_lost_gpu_of_a_command_leaves_its_energy_unknown():
    energies = {
        Device("gpu", 0, "GPU-a"): DeviceEnergy(10.5, 1.0),
        Device("gpu", 1, "GPU-b"): DeviceEnergy.lost("gone"),
    }
    record = CommandRecord(
        ["train"], -9, 1000.0, Measurement(10.0, energies), dict.fromkeys(energies, "H100"), False, []
    )
    run = record_from_document(document_of(record))
    assert run.account.total.energy_joules is None
    assert run.account.total.measured_joules == 10.5
    assert run.latest.results == {"command": "killed by SIGKILL"}


def test_a_command_and_a_trainer_write_the_same_format(tmp_path):
    measurement = Measurement.from_energies(10.0, {0: 100.5, 1: 200.25}, uncertainty_joules=1.0)
    names = dict.fromkeys(measurement.devices, "H100")
    write_record(CommandRecord(["true"], 0, 1000.0, measurement, names, False, ("a note",)), tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    trained = json.loads((kept_run(tmp_path / "run", steps=3) / "zeus-energy" / "run.json").read_text())
    assert document["format"] == trained["format"]
    assert trained.keys() <= document.keys()
    run = read_run(tmp_path / "m.json")
    assert run.account.total.energy_joules == document["totals"]["energy_joules"] == 300.75
    assert encode(run)["account"] == document["account"]
