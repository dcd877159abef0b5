"""Power limits of AMD boards, on a tree of files: searched in training, and restored however a process ends."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.test_guardian import ENDS
from tests.support.fake_sysfs import HIGHEST_WATTS, LOWEST_WATTS, ORIGINAL_WATTS, FakeSysfs
from tests.support.sysfs_training import VENDORS, add, train
from tests.support.variants import long_but_first
from zeus_core._sysfs import find_cards
from zeus_core.cli.program import main
from zeus_core.device import discover_gpus
from zeus_core.errors import DeviceHeldError
from zeus_core.kinds import POWER_LIMIT
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import own_ledger
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.settings.restoring import GpusByUuid, restore_device

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can write files of root")

OWNER = """
    import ctypes, os, signal, sys, time
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    knob = PowerLimitKnob(discover_gpus({}), 25)
    knob.apply(knob.settings[-1])
    print("ready", flush=True)
    input()
    END
    time.sleep(60)
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    tree = FakeSysfs(tmp_path)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    monkeypatch.setenv("ZEUS_LEDGER_DIR", str(tmp_path / "ledger"))
    return tree


@pytest.fixture
def start(tree):
    processes = []

    def start_owner(end):
        program = textwrap.dedent(OWNER).replace("END", textwrap.dedent(end).strip())
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", program], start_new_session=True, **pipes))
        assert processes[-1].stdout.readline() == "ready\n", processes[-1].stderr.read()
        return processes[-1]

    yield start_owner
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


FEW_ENDS = ["SIGKILL", "SIGTERM", "exception"]
MORE_ENDS = [name for name in ENDS if "C code" not in name and name not in FEW_ENDS]


def wait_until(condition):
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("end", long_but_first(FEW_ENDS + MORE_ENDS, len(FEW_ENDS)))
def test_the_original_is_restored_at_each_end(tree, start, tmp_path, end):
    boards = [tree.add(), tree.add(serial=False), tree.add_intel()]
    originals = [board.cap_watts for board in boards]
    process = start(ENDS[end])
    assert [board.cap_watts for board in boards] == [LOWEST_WATTS, LOWEST_WATTS, 150]
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: [board.cap_watts for board in boards] == originals)
    wait_until(lambda: not list((tmp_path / "ledger").glob("*.json")))


def test_an_entry_names_its_driver_and_older_ones_are_nvmls(tree):
    tree.add()
    (gpu,) = discover_gpus({})
    entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, POWER_LIMIT, ORIGINAL_WATTS, gpu.driver)
    fields = json.loads(json.dumps(entry.to_json()))
    assert fields["driver"] == "amdgpu"
    assert LedgerEntry.from_json(fields) == entry
    del fields["driver"]
    assert LedgerEntry.from_json(fields).driver == "nvml"
    assert f"echo {ORIGINAL_WATTS}000000 | sudo tee " in entry.command


def test_the_restore_command_restores_what_was_left(tree, start, tmp_path, capsys):
    board = tree.add()
    process = start("")
    (path,) = (tmp_path / "ledger").glob("*.json")
    content = path.read_bytes()
    process.kill()
    wait_until(lambda: board.cap_watts == ORIGINAL_WATTS)
    wait_until(lambda: not path.exists())
    path.write_bytes(content)  # the guardian was killed as well
    board.set_file("hwmon/hwmon3/power1_cap", f"{LOWEST_WATTS}000000\n")
    assert main(["restore", "--stale"]) == 0
    assert board.cap_watts == ORIGINAL_WATTS
    assert "is restored" in capsys.readouterr().out


def test_residue_of_others_is_restored_by_the_next_knob(tree, start, tmp_path, caplog):
    board = tree.add()
    process = start("")
    (path,) = (tmp_path / "ledger").glob("*.json")
    content = path.read_bytes()
    process.kill()
    wait_until(lambda: not path.exists())
    path.write_bytes(content)
    board.set_file("hwmon/hwmon3/power1_cap", f"{LOWEST_WATTS}000000\n")
    knob = PowerLimitKnob(discover_gpus({}), 25)
    assert knob.settings[0] == ORIGINAL_WATTS
    assert "It was left by process" in caplog.text


@pytest.mark.parametrize("is_rated", [True, False])
def test_the_next_start_restores_a_limit_above_what_a_driver_rates(tree, is_rated):
    """The board was left at 150 W: only its driver knows that it accepts more than that, or than its rated power."""
    board = tree.add_intel(rated_watts=250, limit_watts=280)
    if not is_rated:
        (board.hwmon / "power1_rated_max").unlink()
    (gpu,) = discover_gpus({})
    entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, POWER_LIMIT, 280.0, gpu.driver)
    gone = replace(entry.owner, pid=2**22 + 1)
    own_ledger().note(replace(entry, owner=gone, owner_token="gone", values=(150.0,)))
    board.set_file("hwmon/hwmon3/power1_max", "150000000\n")
    knob = PowerLimitKnob(discover_gpus({}), 25)
    assert board.cap_watts == knob.settings[0] == 280


def test_a_second_process_is_refused(tree, start):
    tree.add()
    start("")
    knob = PowerLimitKnob(discover_gpus({}), 25)
    with pytest.raises(DeviceHeldError, match="is controlled by process"):
        knob.apply(knob.settings[-1])


def test_an_original_out_of_the_range_gives_way_to_the_default(tree):
    board = tree.add()
    (gpu,) = discover_gpus({})
    entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, POWER_LIMIT, ORIGINAL_WATTS, gpu.driver)
    gpu.set_power_limit(400)
    tree.set_range(board, LOWEST_WATTS, 650)
    board.set_file("hwmon/hwmon3/power1_cap_default", "600000000\n")
    POWER_LIMIT.restore(gpu, ORIGINAL_WATTS)
    assert board.cap_watts == 600
    assert restore_device(GpusByUuid().gpu, replace(entry, values=(600.0,))).is_done


# In training.


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_search_keeps_the_bound_and_restores(tree, time_source, tmp_path, vendor):
    board, before = add(tree, vendor)
    summary, slowdown, phase = train(tree, time_source, tmp_path)
    assert (phase, board.cap_watts) == (Phase.DONE, before.cap_watts)
    assert slowdown <= 1.2
    assert summary.saving_fraction > 0.1
    total = summary.account.total
    assert total.energy_joules == pytest.approx(board.joules - before.joules, rel=0.01)
    assert not list((tmp_path / "ledger").glob("*.json"))


@pytest.mark.parametrize("vendor", long_but_first(VENDORS))
def test_a_range_that_moves_in_a_search_ends_it_with_the_original(tree, time_source, tmp_path, caplog, vendor):
    board, before = add(tree, vendor)

    def narrow(step):
        if step == 40 and vendor == "AMD":
            tree.set_range(board, 550, HIGHEST_WATTS)
        elif step == 40:  # a rated power that rises, of which half is the lowest
            board.set_file("hwmon/hwmon3/power1_rated_max", "420000000\n")

    _, slowdown, phase = train(tree, time_source, tmp_path, during=narrow)
    assert ("accepts 550 to 750 W" if vendor == "AMD" else "accepts 210 to 420 W") in caplog.text
    assert slowdown <= 1.2
    assert (phase, board.cap_watts) == (Phase.OFF, before.cap_watts)


@pytest.mark.parametrize("vendor", long_but_first(VENDORS))
def test_a_board_that_takes_less_than_asked_is_searched_and_restored(tree, time_source, tmp_path, vendor):
    board, before = add(tree, vendor)
    (card,) = find_cards(str(tree.root))
    write, taken = card.set_power_limit, []

    def take_less(limit_watts):
        taken.append(limit_watts - (3 if limit_watts < before.cap_watts else 0))
        write(taken[-1])

    card.set_power_limit = take_less
    summary, slowdown, phase = train(tree, time_source, tmp_path, cards=[card])
    assert len(set(taken)) > 3
    assert slowdown <= 1.2
    assert summary.saving_fraction > 0.1
    assert (phase, board.cap_watts) == (Phase.DONE, before.cap_watts)


@pytest.mark.long
def test_limits_clamped_in_silence_are_searched_and_restored(tree, time_source, tmp_path, caplog):
    board, before = add(tree, "Intel", clamp_watts=200)
    (card,) = find_cards(str(tree.root))
    _, slowdown, phase = train(tree, time_source, tmp_path, cards=[board.read_through(card)])
    assert slowdown <= 1.2
    assert (phase, board.cap_watts) == (Phase.DONE, before.cap_watts)
    assert "but 200 W is enforced" in caplog.text


@pytest.mark.parametrize("trouble", long_but_first(["unplugged", "asleep"]))
def test_a_board_that_fails_in_a_search_harms_no_other(tree, time_source, tmp_path, monkeypatch, trouble):
    (board, before), (other, _) = add(tree, "AMD"), add(tree, "Intel")
    read = os.read

    def fail(step):
        if step == 60 and trouble == "unplugged":
            tree.boards.remove(other)
            shutil.rmtree(other.folder)
        elif step == 60:
            monkeypatch.setattr(os, "read", refuse)
        elif step == 70:
            monkeypatch.setattr(os, "read", read)

    def refuse(descriptor, size):
        if str(other.folder) in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise PermissionError(1, "Operation not permitted")
        return read(descriptor, size)

    summary, slowdown, _ = train(tree, time_source, tmp_path, during=fail)
    assert summary.account.total.measured.energy_joules > 0
    assert slowdown <= 1.2
    assert board.cap_watts == before.cap_watts
    if trouble == "asleep":
        assert other.cap_watts == 280
