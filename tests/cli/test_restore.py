"""`zeus-core leases`, `zeus-core restore` and the report of `doctor`: what processes have left changed."""

import json
import os

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from zeus_core._identity import ProcessIdentity
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.kinds import POWER_LIMIT, SM_CLOCK
from zeus_core.settings.ledger import Ledger

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)


@pytest.fixture
def left(on_driver):
    """Two GPUs: a process that has ended has left the first at 250 W, and this one has locked the second's clock."""
    program, driver = on_driver(DEVICE, DEVICE)
    ledger = Ledger(str(driver.ledger_path))
    gone = ProcessIdentity.current().replacing(pid=4_000_001)
    entry = LedgerEntry.of_this_process(driver[0].uuid, driver[0].name, POWER_LIMIT, ORIGINAL_WATTS)
    ledger.note(entry.replacing(owner=gone, owner_token="gone", values=(250.0,), program="train.py", job="77"))
    clock = LedgerEntry.of_this_process(driver[1].uuid, driver[1].name, SM_CLOCK, None)
    ledger.note(clock.replacing(values=(900.0,)))
    driver[0].power_limit_watts = 250.0
    driver[1].locked_clock_mhz = 900
    return program, driver, ledger


def test_leases_are_listed_with_their_holders(left):
    program, driver, _ = left
    ended = program("leases")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()[1:]
    first, second = sorted(lines, key=lambda line: driver[0].uuid not in line)
    assert "250 W" in first
    assert "left behind" in first
    assert "process 4000001 (train.py) of user" in first
    assert "job 77" in first
    assert "held" in second
    report = json.loads(program("leases", "--json").stdout)
    stale = {lease["device_uuid"]: lease["is_stale"] for lease in report["leases"]}
    assert stale == {driver[0].uuid: True, driver[1].uuid: False}


def residue(program):
    """The check of the doctor."""
    checks = json.loads(program("doctor", "--json").stdout)["checks"]
    return next(check for check in checks if check["name"] == "restored")


def test_the_doctor_reports_what_was_left(left):
    program, driver, _ = left
    check = residue(program)
    assert check["state"] == "limited"
    assert (
        "250 W in force, board default 650 W, original 450 W, left by process 4000001 (train.py)" in (check["sentence"])
    )
    ours = f"sudo nvidia-smi -i {driver[0].uuid} -pl 450"  # in a ledger that root does not trust
    assert check["fix"] == ("sudo zeus-core restore --stale" if os.geteuid() == 0 else ours)
    assert driver[0].power_limit_watts == 250.0, "it changes nothing"


def allow(driver):
    """Give everybody the right that the administrator has."""
    for device in driver:
        device.allow_control()


def refuse_then_allow(program, driver):
    """A user without the right changes nothing, and is told the command that does; then with it."""
    before = driver[0].power_limit_watts
    refused = program("restore", "--stale")
    assert refused.returncode == 1
    assert f"`sudo nvidia-smi -i {driver[0].uuid} -pl 450`" in refused.stdout
    assert driver[0].power_limit_watts == before
    allow(driver)


def test_restore_stale_restores_what_was_left_and_nothing_else(left):
    program, driver, ledger = left
    if is_unprivileged():
        refuse_then_allow(program, driver)
    ended = program("restore", "--stale")
    assert ended.returncode == 0
    assert "to 450 W is restored. It was changed by process 4000001" in ended.stdout
    assert (driver[0].power_limit_watts, driver[1].locked_clock_mhz) == (ORIGINAL_WATTS, 900)
    assert len(ledger.entries()) == 1
    assert program("restore", "--stale").stdout == "Nothing is to be restored.\n"
    assert program("leases").returncode == 0


def test_restore_restores_what_is_in_use_too(left):
    program, driver, ledger = left
    if is_unprivileged():
        refuse_then_allow(program, driver)
    assert program("restore").returncode == 0
    assert (driver[0].power_limit_watts, driver[1].locked_clock_mhz) == (ORIGINAL_WATTS, None)
    assert ledger.entries() == []


def test_a_limit_that_somebody_else_has_set_since_stays(left):
    program, driver, ledger = left
    driver[0].power_limit_watts = 300.0
    ended = program("restore", "--stale")
    assert ended.returncode == 0
    assert "somebody else has set 300 W since, which stays" in ended.stdout
    assert driver[0].power_limit_watts == 300.0
    assert len(ledger.entries()) == 1


def test_what_cannot_be_restored_is_kept_and_told(left):
    program, driver, _ = left
    driver[0].deny_control()
    ended = program("restore", "--stale")
    assert ended.returncode == 1
    assert "could not be restored" in ended.stdout
    assert f"sudo nvidia-smi -i {driver[0].uuid} -pl 450" in ended.stdout
    assert "failed" in program("leases").stdout
    assert "and could not be restored" in residue(program)["sentence"]
    allow(driver)
    assert program("restore", "--stale").returncode == 0


def test_a_driver_that_hangs_does_not_keep_a_prologue_from_ending(left):
    _, driver, _ = left
    driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    patience = "import zeus_core.cli._restore as restore; restore._PATIENCE_SECONDS = 0.2; "
    ended = driver.start(f"{patience}from zeus_core.cli import main; raise SystemExit(main(['restore', '--stale']))")
    _, errors = ended.communicate(timeout=240)
    assert ended.returncode == 1
    assert "is not restored: the driver does not answer" in errors
    driver[0].release()


def test_a_file_that_is_no_entry_is_reported(left):
    program, driver, _ = left
    (driver.ledger_path / "GPU-1.power_limit.json").write_text("garbage")
    assert "GPU-1.power_limit.json cannot be read" in program("leases").stdout
    assert "GPU-1.power_limit.json" in residue(program)["sentence"]
