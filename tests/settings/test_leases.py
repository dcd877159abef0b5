"""Entries of the ledger: who may claim a device, what is restored of it, and what is kept as evidence."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core._identity import ProcessIdentity
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import (
    DeviceError,
    DeviceHeldError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK
from zeus_core.process.file_locks import release
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.entry_files import UnreadableEntry
from zeus_core.settings.keeper import Keeper
from zeus_core.settings.ledger import Ledger, known_ledgers, own_ledger
from zeus_core.settings.restoring import RestoreOutcome, is_ours, restore_entry
from zeus_core.testing import FaultyGpu, VirtualTime
from zeus_core.validate import shown

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the ledger needs Linux")

ORIGINAL_WATTS = 250.0
GONE = ProcessIdentity(ProcessIdentity.current().boot_id, ProcessIdentity.current().pid_namespace, 2**22 + 1, 1)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "ledger"))


@pytest.fixture
def gpu():
    return FaultyGpu(SimulatedGpu(find_preset("A40"), time_source=VirtualTime(), power_limit_watts=ORIGINAL_WATTS))


def entry_of(gpu, **changes):
    entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, POWER_LIMIT, ORIGINAL_WATTS)
    return replace(entry, **changes)


def left_behind(gpu, value=150.0, **changes):
    """The entry of a process that has ended, and left the GPU at a value."""
    gpu.set_power_limit(value)
    return entry_of(gpu, **{"owner": GONE, "owner_token": "gone", "values": (value,), **changes})


def open_files():
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append((int(link.name), str(link.readlink())))
    return found


def never(entry):
    raise AssertionError("nothing is to be restored")


class TestProcessIdentity:
    def test_this_process_is_alive(self):
        assert ProcessIdentity.current().is_alive()

    def test_an_ended_process_is_dead_even_before_its_parent_waits_for_it(self):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        identity = ProcessIdentity.of(process.pid)
        assert identity.is_alive()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not identity.is_alive()
        process.communicate()
        assert not identity.is_alive()

    @pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
    def test_a_process_with_the_same_id_is_another_one(self, change):
        assert not replace(ProcessIdentity.current(), **change).is_alive()

    def test_one_in_another_namespace_counts_as_alive_as_its_id_says_nothing_here(self):
        assert replace(ProcessIdentity.current(), pid_namespace="pid:[1]").is_alive()
        assert replace(GONE, pid_namespace="pid:[1]").is_alive()


class TestRestoring:
    @pytest.mark.parametrize("values", [(150.0,), (200.0, 150.0), (150.0, 200.0)])
    def test_a_limit_that_is_ours_is_restored(self, gpu, values):
        gpu.set_power_limit(150.0)
        assert restore_entry(gpu, entry_of(gpu, values=values)).kind == "restored"
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS

    def test_a_limit_that_somebody_else_has_set_stays(self, gpu):
        gpu.set_power_limit(175.0)
        outcome = restore_entry(gpu, entry_of(gpu, values=(200.0, 150.0)))
        assert (outcome.kind, outcome.value, gpu.read_power_limit_watts()) == ("replaced", 175.0, 175.0)
        assert "somebody else has set 175 W" in str(outcome)

    def test_a_limit_that_cannot_be_read_is_restored_all_the_same(self, gpu):
        gpu.set_power_limit(150.0)
        gpu.fail("read_power_limit_watts", DeviceLostError("no answer"))
        assert restore_entry(gpu, entry_of(gpu, values=(150.0,))).kind == "restored"
        gpu.heal()
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS

    def test_the_original_is_not_set_again(self, gpu):
        gpu.fail("set_power_limit", AssertionError("a limit was set"))
        assert restore_entry(gpu, entry_of(gpu, values=(150.0,))).kind == "original"

    def test_a_passing_fault_is_retried_and_a_lasting_one_is_reported(self, gpu):
        gpu.set_power_limit(150.0)
        gpu.fail("set_power_limit", DriverFaultError("busy"), times=3)
        assert restore_entry(gpu, entry_of(gpu, values=(150.0,))).kind == "restored"
        gpu.set_power_limit(150.0)
        gpu.fail("set_power_limit", PermissionDeniedError("ask an admin"))
        outcome = restore_entry(gpu, entry_of(gpu, values=(150.0,)))
        assert not outcome.is_done
        assert f"sudo nvidia-smi -i {gpu.uuid} -pl 250`) could not be restored: ask an admin" in str(outcome)

    @pytest.mark.parametrize("original_mhz", [None, 1305.0])
    def test_a_clock_is_locked_or_unlocked_as_it_was(self, original_mhz):
        calls = []

        class Clocks:
            def lock_sm_clock(self, clock_mhz):
                calls.append(clock_mhz)

            def unlock_sm_clock(self):
                calls.append(None)

        entry = LedgerEntry.of_this_process("GPU-1", "A40", SM_CLOCK, original_mhz)
        assert restore_entry(Clocks(), entry).kind == "restored"
        assert calls == [original_mhz]
        before = replace(entry, owner=replace(entry.owner, boot_id="earlier"))
        assert restore_entry(Clocks(), before).kind == "original", "a start of the machine has unlocked it"
        assert calls == [original_mhz]


class TestLedger:
    def test_an_entry_is_read_as_it_was_written(self, ledger, gpu):
        entry = entry_of(gpu).changing_to(150.0)
        assert ledger.claim(entry, never) == entry
        assert ledger.entries() == [entry] == Ledger(ledger.folder).entries()
        ledger.close(entry)
        assert ledger.entries() == []

    @given(st.lists(st.floats(100, 300), min_size=1, max_size=5))
    def test_the_ledger_has_each_value_set_or_shown_and_repeats_none(self, watts):
        entry = LedgerEntry.of_this_process("GPU-1", "A40", POWER_LIMIT, 300.0)
        in_force = ()
        for value in watts:
            shown = value - value % 10
            is_new = value not in entry.values
            begun = entry.changing_to(value, in_force)
            assert begun.is_changing == is_new == (begun is not entry)
            assert set(in_force) <= set(begun.values), "until the change is over"
            entry = begun.showing(shown)
            in_force = (value, shown)
            assert set(in_force) <= set(entry.values)
            assert len(entry.values) <= 4, "others may set what was tried before"
            assert not entry.is_changing
            assert entry.changing_to(value, in_force).showing(shown) is entry
        assert LedgerEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry

    def test_a_device_that_another_process_changes_is_refused_with_its_owner_named(self, ledger, gpu):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            owner = ProcessIdentity.of(other.pid)
            theirs = entry_of(gpu, owner=owner, owner_token="other", program="train.py", uid=7, job="123")
            ledger.claim(theirs, never)
            for knob in ("power_limit", "sm_clock"):
                with pytest.raises(DeviceHeldError) as refusal:
                    ledger.claim(entry_of(gpu, knob=knob), never)
                assert f"is controlled by process {other.pid} (train.py) of user 7, job 123" in str(refusal.value)
            ledger.claim(entry_of(gpu, device_uuid="GPU-another"), never)
            other.communicate(b"\n")
        claimed = ledger.claim(entry_of(gpu), lambda entry: restore_entry(gpu, entry))
        assert ledger.find(claimed.key) == claimed

    def test_one_process_keeps_its_first_original(self, ledger, gpu):
        first = ledger.claim(entry_of(gpu), never)
        assert ledger.claim(entry_of(gpu, original=100.0), never) == first

    def test_a_program_started_by_exec_is_another_owner(self, ledger, gpu):
        before = left_behind(gpu, owner=ProcessIdentity.current(), owner_token="the program before")
        ledger.note(before)
        assert ledger.is_stale(before)
        ledger.claim(entry_of(gpu), lambda entry: restore_entry(gpu, entry))
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS

    def test_what_a_process_has_left_behind_is_restored_before_the_next_claim(self, ledger, gpu):
        ledger.note(left_behind(gpu))
        ledger.claim(entry_of(gpu), lambda entry: restore_entry(gpu, entry))
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS

    def test_a_claim_fails_while_nobody_can_restore_what_was_left_behind(self, ledger, gpu):
        ledger.note(left_behind(gpu))
        gpu.fail("set_power_limit", PermissionDeniedError("ask an admin"))
        with pytest.raises(DeviceError, match="could not be restored"):
            ledger.claim(entry_of(gpu), lambda entry: restore_entry(gpu, entry))
        (kept,) = ledger.entries()
        assert kept.failure == "ask an admin"

    def test_a_dead_keeper_makes_an_entry_stale_although_its_owner_lives(self, ledger, gpu):
        assert ledger.is_stale(entry_of(gpu, keeper=GONE))
        assert not ledger.is_stale(entry_of(gpu, keeper=ProcessIdentity.current()))

    def test_the_lock_of_an_entry_shows_whether_a_process_in_another_namespace_lives(self, ledger, gpu):
        entry = entry_of(gpu, owner=replace(GONE, pid_namespace="pid:[1]"))
        assert ledger.is_stale(entry), "nobody has locked it"
        ledger.claim(entry, never)
        assert not ledger.is_stale(entry)
        with pytest.raises(DeviceHeldError):
            ledger.claim(entry_of(gpu), never)
        release(f"{ledger.folder}/{gpu.uuid}.power_limit.lock")
        assert ledger.is_stale(entry)

    def test_a_forked_child_keeps_no_lock_of_its_parent(self, ledger, gpu):
        entry = ledger.claim(entry_of(gpu, owner=replace(GONE, pid_namespace="pid:[1]")), never)
        with ledger.locked(gpu.uuid):
            child = os.fork()
            if child == 0:
                time.sleep(60.0)
                os._exit(0)
        try:
            assert not ledger.is_stale(entry)
            ledger.close(entry)
            assert ledger.is_stale(entry)
            ledger.claim(entry, never)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_descriptor_that_the_program_has_closed_and_opened_again_is_its_own(self, ledger, gpu, tmp_path):
        entry = ledger.claim(entry_of(gpu), never)
        lock = f"{ledger.folder}/{gpu.uuid}.power_limit.lock"
        (descriptor,) = (number for number, path in open_files() if path == lock)
        os.close(descriptor)  # as a program does that becomes a daemon
        with (tmp_path / "log").open("w", encoding="utf-8") as log:
            os.dup2(log.fileno(), descriptor)
            child = os.fork()
            if child == 0:
                os._exit(0 if (descriptor, log.name) in open_files() else 1)
            assert os.waitpid(child, 0)[1] == 0
            ledger.close(entry)
            assert (descriptor, log.name) in open_files()
        os.close(descriptor)

    def test_stale_entries_alone_are_restored_and_failures_kept(self, ledger, gpu):
        living = entry_of(gpu, device_uuid="GPU-living", values=(150.0,))
        lost = entry_of(gpu, device_uuid="GPU-lost", owner=GONE)
        for entry in (living, lost, left_behind(gpu)):
            ledger.note(entry)

        def restore(entry):
            return Keeper({gpu.uuid: gpu}.__getitem__, None).restore_device(entry)

        outcomes = ledger.restore_stale(restore)
        assert {outcome.entry.device_uuid: outcome.kind for outcome in outcomes} == {
            "GPU-lost": "failed",
            gpu.uuid: "restored",
        }
        assert {entry.device_uuid for entry in ledger.entries()} == {"GPU-lost", "GPU-living"}

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"format": "zeus-core lease", "version": 9}'])
    def test_a_file_that_is_no_entry_is_told_and_stays(self, ledger, gpu, content):
        path = Path(ledger.folder, "GPU-1.power_limit.json")
        path.write_bytes(content)
        (unreadable,) = ledger.read()
        assert isinstance(unreadable, UnreadableEntry)
        assert unreadable.path == str(path)
        assert ledger.entries() == []
        ledger.claim(entry_of(gpu), never)

    @pytest.mark.parametrize(
        ("name", "value", "complaint"),
        [
            *(("uid", value, f"LedgerEntry.uid is {value!r}; it must be a whole number") for value in (True, "7", 7.0)),
            ("uid", "7" * 1000, f"LedgerEntry.uid is {shown('7' * 1000)}; it must be a whole number"),
            ("host", 7, "LedgerEntry.host is 7; it must be text"),
            ("host", None, "LedgerEntry.host is None; it must be text"),
            ("is_changing", 1, "LedgerEntry.is_changing is 1; it must be true or false"),
            ("knob", "fan", "LedgerEntry: knob is 'fan'; it must be power_limit or sm_clock"),
            ("knob", ["sm_clock"], "LedgerEntry.knob is ['sm_clock']; it must be text"),
            *(
                ("original", value, f"LedgerEntry.original is {shown(value)}; it must be a finite number")
                for value in (float("nan"), float("inf"), 10**400, "250", False)
            ),
            ("values", 150.0, "LedgerEntry.values is 150.0; it must be an array"),
            ("values", [150.0, None], "LedgerEntry.values[1] is None; it must be a finite number"),
            ("owner", 71, "LedgerEntry.owner is 71; it must be an object"),
            ("owner", {}, "LedgerEntry.owner lacks boot_id, pid, pid_namespace, start_ticks"),
            ("keeper", {**asdict(GONE), "pid": "1"}, "LedgerEntry.keeper.pid is '1'; it must be a whole number"),
            ("colour", "red", "LedgerEntry has unknown colour"),
        ],
    )
    def test_a_field_that_does_not_fit_is_named(self, gpu, name, value, complaint):
        document = {**entry_of(gpu).to_json(), name: value}
        with pytest.raises(UsageError) as error:
            LedgerEntry.from_json(document)
        assert complaint in str(error.value)

    def test_a_field_that_is_missing_is_named(self, gpu):
        document = entry_of(gpu).to_json()
        for name in document.keys() - {"format", "version", "is_changing", "failure", "driver"}:
            with pytest.raises(UsageError, match=f"LedgerEntry lacks {name};"):
                LedgerEntry.from_json({field: value for field, value in document.items() if field != name})

    def test_a_full_disk_leaves_the_old_entry(self, ledger, gpu, monkeypatch):
        entry = ledger.claim(entry_of(gpu), never)
        monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            ledger.note(entry.changing_to(150.0))
        assert ledger.entries() == [entry]
        assert not list(Path(ledger.folder).glob("*unfinished*"))

    def test_later_values_are_lines_of_which_the_last_complete_one_counts(self, ledger, gpu):
        entry = ledger.claim(entry_of(gpu), never)
        (path,) = Path(ledger.folder).glob("*.json")
        for number in range(3000):
            entry = entry.changing_to(100.0 + number % 150)
            ledger.note_values(entry)
            assert number % 500 or ledger.entries() == [entry]
        assert ledger.entries() == [entry]
        assert path.stat().st_size < 40_000
        with path.open("a") as file:
            file.write("[150.0, 1")
        assert ledger.entries() == [entry]

    def test_nothing_is_left_of_a_device_without_entries(self, ledger, gpu):
        entry = ledger.claim(entry_of(gpu), never)
        ledger.tidy(gpu.uuid)
        assert ledger.entries() == [entry]
        ledger.close(entry)
        ledger.tidy(gpu.uuid)
        assert not list(Path(ledger.folder).glob("*"))
        assert ledger.claim(entry, never) == entry, "the folder is made again"

    def test_two_processes_do_not_claim_a_device_at_the_same_time(self, ledger, gpu, monkeypatch):
        monkeypatch.setattr("zeus_core.settings.ledger._LOCK_SECONDS", 0.02)
        with ledger.locked(gpu.uuid), pytest.raises(DeviceError, match="being restored by another process"):
            ledger.claim(entry_of(gpu), never)

    def test_a_folder_that_others_can_write_to_is_refused(self, tmp_path):
        folder = tmp_path / "open"
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(PermissionError, match="others can change it"):
            Ledger(str(folder))
        (tmp_path / "link").symlink_to(folder)
        with pytest.raises(OSError, match="link"):
            Ledger(str(tmp_path / "link"))

    def test_the_folder_is_the_one_that_a_variable_names(self, tmp_path):
        environment = {"ZEUS_LEDGER_DIR": str(tmp_path / "here")}
        assert own_ledger(environment).folder == str(tmp_path / "here")
        assert str(tmp_path / "here") in [ledger.folder for ledger in known_ledgers(environment)]


class TestKeeper:
    def test_a_device_that_a_new_owner_has_claimed_is_left_to_it(self, ledger, gpu):
        keeper = Keeper(lambda uuid: gpu, ledger)
        before = left_behind(gpu)
        ledger.note(entry_of(gpu).changing_to(150.0))
        assert keeper.restore(before).is_done
        assert gpu.read_power_limit_watts() == 150.0
        assert len(ledger.entries()) == 1

    def test_the_ledger_knows_the_latest_value(self, ledger, gpu):
        told = left_behind(gpu, 200.0)
        ledger.note(left_behind(gpu, 150.0))
        assert Keeper(lambda uuid: gpu, ledger).restore(told).kind == "restored"
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS
        assert ledger.entries() == []

    def test_a_gpu_that_is_gone_is_a_failure_that_is_kept(self, ledger, gpu):
        def open_gpu(uuid):
            raise NoDeviceError("it fell off the bus")

        ledger.note(left_behind(gpu))
        (entry,) = ledger.entries()
        assert not Keeper(open_gpu, ledger).restore(entry).is_done
        assert [kept.failure for kept in ledger.entries()] == ["it fell off the bus"]

    def test_one_device_that_hangs_does_not_hold_up_another(self, gpu):
        is_over, outcomes = threading.Event(), []

        def open_gpu(uuid):
            if uuid == "GPU-hangs":
                assert is_over.wait(30.0)
            return gpu

        keeper = Keeper(open_gpu, None)
        gpu.set_power_limit(150.0)
        hanging = entry_of(gpu, device_uuid="GPU-hangs")

        def done(outcome):
            outcomes.append(outcome.entry.device_uuid)
            is_over.set()

        keeper.restore_each([hanging, entry_of(gpu, values=(150.0,))], done)
        assert outcomes == [gpu.uuid, "GPU-hangs"]


def test_values_that_follow_are_appended_and_read_as_those_of_the_entry(ledger, gpu):
    entry = ledger.claim(entry_of(gpu), never)
    for watts in (200.0, 150.0, 175.0):
        entry = entry.changing_to(watts, entry.values[-2:])
        ledger.note_values(entry)
        assert ledger.find(entry.key) == entry
        entry = entry.showing(watts - 0.6)
        ledger.note_values(entry)
        assert ledger.find(entry.key) == entry
    assert ledger.find(entry.key).values == (150.0, 149.4, 175.0, 174.4)


@pytest.mark.parametrize("torn", ["\n[175.0, 2", "\n", "\n[true, {}]", "\n7", "\n[175.0,"])
def test_a_line_that_was_not_written_completely_counts_for_nothing(ledger, gpu, torn):
    entry = ledger.claim(entry_of(gpu), never).changing_to(175.0)
    ledger.note_values(entry)
    with Path(ledger._files.path(entry.key)).open("a", encoding="utf-8") as file:
        file.write(torn)
    assert ledger.find(entry.key) == entry
    entry = entry.showing(175.0).changing_to(125.0)
    ledger.note_values(entry)
    assert ledger.find(entry.key) == entry, "the next line is one of its own"


def test_a_file_does_not_grow_without_bound(ledger, gpu):
    entry = ledger.claim(entry_of(gpu), never)
    sizes = []
    for number in range(5000):
        entry = entry.changing_to(100.0 + number, entry.values[-1:])
        ledger.note_values(entry)
        sizes.append(Path(ledger._files.path(entry.key)).stat().st_size)
    assert max(sizes) <= 64 * 1024
    assert ledger.find(entry.key) == entry


def test_values_of_an_entry_that_is_gone_are_not_written(ledger, gpu):
    with pytest.raises(FileNotFoundError):
        ledger.note_values(entry_of(gpu).changing_to(175.0))
    assert ledger.entries() == []


def test_values_are_not_written_to_the_entry_of_a_later_owner(ledger, gpu):
    entry = ledger.claim(entry_of(gpu), never).changing_to(175.0)
    ledger.note_values(entry)
    later = entry_of(gpu, owner_token="later")
    ledger.note(later)  # after the first was restored by an administrator
    with pytest.raises(OSError, match="Stale"):
        ledger.note_values(entry.showing(175.0).changing_to(150.0))
    assert ledger.entries() == [later]


def test_files_of_entries_are_closed_when_they_are_removed(ledger, gpu):
    def opened():  # those of others, which garbage collection may close meanwhile, do not count
        links = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
        return [link for link in links if link.startswith(os.path.realpath(ledger.folder) + os.sep)]

    for _ in range(20):
        entry = ledger.claim(entry_of(gpu), never).changing_to(175.0)
        ledger.note_values(entry)
        ledger.close(entry)
    Ledger(ledger.folder).note(entry)
    ledger.note_values(entry)
    assert len(opened()) == 1
    del ledger._files._open[entry.key]
    assert opened() == []


def test_settings_without_an_owner_stay_where_the_ledger_is_unwritable(ledger, gpu, monkeypatch):
    """As that of the daemon, which each user reads."""

    def locked(uuid):
        raise PermissionError(13, "Permission denied")

    ledger.claim(entry_of(gpu), never)
    monkeypatch.setattr(ledger, "locked", locked)
    assert ledger.restore_stale(never) == []


def test_a_limit_of_others_is_reported_also_where_it_is_unknown(gpu):
    assert "somebody else has set 200 W since" in str(RestoreOutcome(entry_of(gpu), "replaced", 200.0))
    assert "somebody else has set another power limit since" in str(RestoreOutcome(entry_of(gpu), "replaced"))


def test_a_file_of_an_earlier_version_is_read(ledger, gpu):
    """It held the value set last and, while another was being set, both; lines behind it held the values alone."""
    entry = entry_of(gpu, values=(200.0,))
    document = {name: value for name, value in entry.to_json().items() if name != "is_changing"}
    path = Path(ledger._files.path(entry.key))
    path.write_text(json.dumps(document) + "\n\n[200.0, 150.0]\n", encoding="utf-8")
    assert ledger.entries() == [replace(entry, values=(200.0, 150.0))]


@pytest.mark.parametrize("values", [(150.0, 300.0), (300.0, 150.0)])
def test_values_on_record_are_not_written_again(ledger, gpu, values):
    entry = ledger.claim(entry_of(gpu, values=values), never)
    for watts in values:
        assert entry.changing_to(watts) is entry
        assert entry.showing(watts) is entry


@pytest.mark.parametrize("watts", [90.0, 120.0, 135.0, 250.0, 275.0])
def test_during_the_first_change_any_value_the_board_shows_is_ours(gpu, watts):
    entry = entry_of(gpu).changing_to(120.0)
    assert is_ours(watts, entry)
    assert not is_ours(watts, entry.showing(118.0)) or watts == 120.0 or watts == ORIGINAL_WATTS
    assert not is_ours(50.0, entry)
    assert not is_ours(290.0, entry), "nobody here sets more than the original"
