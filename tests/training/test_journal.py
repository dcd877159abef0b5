"""The journal of a run: lines that this version cannot use are left out, and said why."""

import json

import pytest

from zeus_core.codec import encode
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.journal import Entry, Journal
from zeus_core.training.record.resume import Checkpoint

ENTRY = Entry("run", "part", 0, 1, Account(Tally(10.0, DeviceEnergy(2000.0, 5.0))))


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path, 0, 1)
    journal.append(ENTRY)
    return journal


def append_line(folder, line):
    with (folder / "rank-0.jsonl").open("a") as file:
        file.write(line + "\n")


def test_a_line_that_a_kill_has_cut_is_called_damaged(journal, tmp_path, caplog):
    append_line(tmp_path, json.dumps(encode(ENTRY))[:-20])
    assert journal.read("run") == [[ENTRY]]
    (record,) = caplog.records
    assert "1 lines" in record.message
    assert "are damaged and left out" in record.message


def test_a_line_of_another_version_is_not_called_damaged(journal, tmp_path, caplog):
    append_line(tmp_path, '{"run": "run", "part": "part", "first_step": 0, "energy_joules": 5.0}')
    assert journal.read("run") == [[ENTRY]]
    (record,) = caplog.records
    assert "another version of zeus-core wrote them" in record.message
    assert "Entry lacks account" in record.message
    assert "damaged" not in record.message


def test_an_energy_that_is_null_is_not_0_joules(journal, tmp_path, caplog):
    fields = encode(ENTRY)
    fields["account"]["total"]["measured"]["energy_joules"] = None
    append_line(tmp_path, json.dumps(fields))
    assert journal.read("run") == [[ENTRY]]
    assert "measured.energy_joules is None" in caplog.text
    document = Checkpoint("run", 1, ENTRY.account).to_json()
    document["account"]["total"]["measured"]["energy_joules"] = None
    with pytest.raises(UsageError, match=r"measured\.energy_joules is None"):
        Checkpoint.from_json(document)
