"""The journal of a run: what it keeps of many lines, and which lines it leaves out."""

import json
from dataclasses import replace

import pytest

from zeus_core.codec import encode
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.files import without_links, write_atomically
from zeus_core.measurement import DeviceEnergy
from zeus_core.training import TrainingEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.journal import Journal, earlier_account
from zeus_core.training.record.journal_lines import Entry
from zeus_core.training.record.resume import CHECKPOINT, Checkpoint

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
    document = CHECKPOINT.to_json(Checkpoint("run", 1, ENTRY.account))
    document["account"]["total"]["measured"]["energy_joules"] = None
    with pytest.raises(UsageError, match=r"measured\.energy_joules is None"):
        CHECKPOINT.from_json(document)


def part_of(name, begin_step, steps, is_ended):
    """Return entries at a power that changes, one at each step."""
    entries = []
    for step in range(1, steps + 1):
        total = Tally(2.5 * step, DeviceEnergy(7.0 * step**1.5, 0.25 * step), 1.5 * (step > 30))
        account = Account(total, {Activity.STEPS: total}, samples=step)
        is_end = is_ended and step == steps
        entries.append(Entry("run", name, begin_step, begin_step + step, account, 1e9 + begin_step + step, is_end))
    return entries


def lines_of(folder):
    return (folder / "rank-0.jsonl").read_text().splitlines()


def accounts(entries):
    return [earlier_account([entries], "run", step, 2e9) for step in (0, 7, 60, 119, 130, 200, 400)]


@pytest.mark.parametrize("is_ended", [True, False])
def test_one_line_stands_for_all_of_a_part(is_ended, tmp_path):
    parts = [*part_of("a", 0, 150, is_ended), *part_of("b", 120, 300, is_ended)]
    for entry in parts[:150]:
        Journal(tmp_path, 0, 1).append(entry)
    journal = Journal(tmp_path, 0, 1)
    before = journal.read("run")
    assert len(lines_of(tmp_path)) == 1
    assert before == Journal(tmp_path, 0, 1).read("run")
    for entry in parts[150:]:
        journal.append(entry)
    assert len(lines_of(tmp_path)) == (2 if is_ended else 301)
    (known,) = journal.read("run")
    assert len(lines_of(tmp_path)) == 2
    assert accounts(known) == accounts(parts)


def test_a_part_goes_on_after_one_line_stands_for_it(tmp_path):
    entries = part_of("a", 0, 250, True)
    for entry in entries[:200]:
        Journal(tmp_path, 0, 1).append(entry)
    Journal(tmp_path, 0, 1).read("run")
    for entry in entries[200:]:
        Journal(tmp_path, 0, 1).append(entry)
    (known,) = Journal(tmp_path, 0, 1).read("run")
    assert accounts(known) == accounts(entries)


def test_lines_of_others_survive_that_a_journal_is_written_anew(tmp_path):
    others = ['{"run": "run", "part": "x", "first_step": 0}', json.dumps(encode(replace(ENTRY, run="another")))]
    for line in others:
        append_line(tmp_path, line)
    journal = Journal(tmp_path, 0, 1)
    for entry in part_of("a", 0, 150, True):
        journal.append(entry)
    assert lines_of(tmp_path)[:2] == others
    assert len(lines_of(tmp_path)) == 3


def test_the_latest_good_line_of_a_part_counts(journal, tmp_path, caplog):
    append_line(tmp_path, json.dumps({**encode(ENTRY), "step": "2"}))
    fields = encode(replace(ENTRY, step=3))
    fields["account"]["samples"] = -0.5
    append_line(tmp_path, json.dumps(fields))
    assert journal.read("run") == [[ENTRY]]
    assert "2 lines" in caplog.text


@pytest.mark.parametrize("damage", [{"part": ["run"]}, {"step": 10**400}, {"run": None, "part": "run"}])
def test_a_line_of_other_types_is_left_out(journal, tmp_path, damage):
    append_line(tmp_path, json.dumps({**encode(ENTRY), **damage}))
    append_line(tmp_path, '{"part": "run", ' + json.dumps(encode(ENTRY)).partition(",")[2])
    assert journal.read("run") == [[ENTRY]]


def test_an_energy_of_unknown_uncertainty_counts(journal, tmp_path):
    entry = replace(ENTRY, part="b", account=Account(Tally(10.0, DeviceEnergy(2000.0, None))))
    append_line(tmp_path, json.dumps(encode(entry)))
    assert journal.read("run") == [[ENTRY, entry]]


def test_lines_that_come_while_a_journal_is_written_anew_stay(tmp_path, monkeypatch):
    entries = part_of("a", 0, 150, False)
    for entry in entries:
        Journal(tmp_path, 0, 1).append(entry)
    line = replace(ENTRY, part="b").to_line()
    path = tmp_path / "rank-0.jsonl"
    other = path.open("a")
    print(line[:50], end="", file=other, flush=True)  # the rest comes before the file is replaced

    def write(*arguments):
        print(line[50:], end="", file=other, flush=True)
        write_atomically(*arguments)

    monkeypatch.setattr("zeus_core.training.record.journal.write_atomically", write)
    Journal(tmp_path, 0, 1).read("run")
    other.close()
    (known,) = Journal(tmp_path, 0, 1).read("run")
    assert [entry.part for entry in known] == ["a", "b"]
    assert accounts(known[:1]) == accounts(entries)


def test_a_line_written_to_a_file_that_was_replaced_is_written_again(tmp_path, monkeypatch):
    for entry in part_of("a", 0, 150, False):
        Journal(tmp_path, 0, 1).append(entry)
    path = tmp_path / "rank-0.jsonl"

    def opened(*arguments):
        descriptor = without_links(*arguments)
        monkeypatch.undo()
        write_atomically(path, path.read_text())  # as another process does between the two
        return descriptor

    journal = Journal(tmp_path, 0, 1)
    journal.append(ENTRY)
    monkeypatch.setattr("zeus_core.training.record.journal.without_links", opened)
    journal.append(replace(ENTRY, part="b"))
    assert [entry.part for entry in journal.read("run")[0]] == ["a", "part", "b"]


def test_lines_without_earlier_entries_are_those_of_before():
    assert "before" not in json.loads(ENTRY.to_line())


def test_a_line_leaves_out_what_an_account_has_none_of_and_longer_ones_of_before_read_the_same(tmp_path):
    tally = Tally(2.0, DeviceEnergy(600.0, 7.0))
    entries = [
        Entry("run", "a", 0, 5, Account()),
        Entry("run", "b", 0, 5, Account(tally, {Activity.STEPS: tally}, samples=3)),
        Entry("run", "c", 0, 5, Account(tally, {Activity.STEPS: tally}, redone=tally, visits={Activity.REWARD: 2})),
    ]
    assert [set(json.loads(entry.to_line())["account"]) for entry in entries] == [
        {"total"},
        {"total", "activities", "samples"},
        {"total", "activities", "redone", "visits"},
    ]
    path = tmp_path / "rank-0.jsonl"
    for lines in (
        [entry.to_line() for entry in entries],
        [json.dumps({**encode(entry), "before": []}) + "\n" for entry in entries],
    ):
        path.write_text("".join(lines))
        assert Journal(tmp_path, 0, 1).read("run") == [entries]


def test_logs_of_a_long_run_leave_lines_as_its_logarithm_and_checkpoints_are_exact(tmp_path, monitor, monkeypatch):
    """Each log wrote a line: 0.6 GB in a million of steps."""
    monkeypatch.setattr("zeus_core.training._run_part.ENTRY_FRACTION", 0.1)  # a short part stands for a long one
    energy = TrainingEnergy(monitor, folder=tmp_path, quiet=True)
    energy.on_train_begin()
    path = tmp_path / "zeus-energy" / "rank-0.jsonl"

    def entries_after(steps):
        for _ in range(steps):
            with energy.step():
                monitor.time_source.advance(1)
            energy.log()
        (part,) = Journal(path.parent, 0, 1).read(json.loads(path.read_text().splitlines()[0])["run"])[0]
        return part

    first, second = entries_after(60), entries_after(60)
    assert len(first.points) < 35
    assert len(second.points) - len(first.points) < 12
    assert 120 - second.account.total.seconds <= 0.1 * 120 + 1
    energy.state_dict()
    latest = entries_after(0)
    assert (latest.step, round(latest.account.total.seconds)) == (120, 120)
    energy.on_train_end()
