"""`zeus-core top`: one table, or one after the other, for any user."""

import json
import re
import signal
import subprocess
import sys

from tests.daemon.conftest import GROUP, HOLD_LIMIT, MEMBER, STRANGER, needs_root
from tests.support.users import run_by

pytestmark = needs_root


def top(world, *arguments, **variables):
    command = [sys.executable, "-m", "zeus_core", "top", *arguments]
    environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger), **variables}
    options = {"cwd": world.folder, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(**run_by(MEMBER, [], command), env=environment, **options)


def test_the_table_shows_what_is_in_force_since_when_and_by_whom(world):
    holder = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]), SLURM_JOB_ID="12345")
    assert holder.stdout.readline() == "ready\n"
    world.driver[0].enforced_cap_watts = 240.0
    world.driver[0].set_processes((holder.pid, 0, 0))
    world.driver[1].scale_power(1.2)
    output, errors = top(world, "--once").communicate(timeout=240)
    assert errors == ""
    load, settings = output.rstrip("\n").split("\n\n")
    header, first, second = load.splitlines()
    assert " ".join(header.split()) == "GPU name busy memory temp power limit enforced possible SM clock used by"
    use, possible = r"NVIDIA H200 +100% +", r"200 to 700 W +1980 MHz"
    by = rf"process {holder.pid} \(-c\) of user {MEMBER}, job 12345, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf" *0  {use}1/80 GiB +45 °C +75 W +250 W +240 W +{possible}  {MEMBER} 12345", first)
    assert re.fullmatch(rf" *1  {use}0/80 GiB +45 °C +90 W +450 W +450 W +{possible}  -", second)
    assert re.fullmatch(rf"GPU .*\n0    power limit +250 W +450 W  held +{by}", settings)
    output, _ = top(world, "--json").communicate(timeout=240)
    first, second = json.loads(output)["gpus"]
    assert (first["index"], first["memory_bytes"], first["limit_watts"]) == (0, 80 << 30, 250.0)
    assert (first["users"], first["utilization"]) == ([[f"{MEMBER}", "12345"]], 1.0)
    (lease,) = json.loads(output)["leases"]
    assert (lease["device_uuid"], lease["owner"]["pid"], lease["is_stale"]) == (first["uuid"], holder.pid, False)


def test_what_was_left_behind_is_said_to_be(world):
    holder = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]))
    assert holder.stdout.readline() == "ready\n"
    world.daemon.kill()
    world.daemon.wait()
    process = top(world, "--once", "--gpus", "0")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    assert re.search(r"^0    power limit +250 W +450 W  left behind  process", output, re.MULTILINE)


def test_tables_follow_each_other_until_ctrl_c(world):
    process = top(world, "--period", "0.01", "--gpus", "1")
    tables = [[process.stdout.readline() for _ in range(6)] for _ in range(3)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=240)
    assert process.returncode == 0
    for moment, header, row, _, settings, empty in tables:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, after \d\.\d s\n", moment)
        assert header.startswith("GPU")
        assert "NVIDIA H200" in row
        assert settings == "No GPU is controlled.\n"
        assert empty == "\n"


def test_a_machine_without_a_gpu_says_so(world):
    world.driver.fail(None, 9)
    process = top(world, "--once")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "the NVIDIA driver is not loaded" in errors


def doctor(world, uid, gids):
    command = [sys.executable, "-m", "zeus_core", "doctor"]
    options = {"cwd": world.folder, "text": True, "capture_output": True, "timeout": 240, "check": True}
    return subprocess.run(**run_by(uid, gids, command), env=world.environment, **options).stdout


def test_the_doctor_reports_whether_the_daemon_serves_this_user_and_why_not(world):
    said = doctor(world, MEMBER, [GROUP])
    assert re.search(r"ok +set power limits +by the zeus-core daemon, as .*: GPU 0: 200 to 450 W, GPU 1: 200 to", said)
    assert re.search(r"ok +lock clocks +by the zeus-core daemon, as .*: GPU 0: 345 to 1980 MHz", said)
    said = doctor(world, STRANGER, [])
    assert re.search(r"missing +set power limits .*and this process may not use the zeus-core daemon at", said)
    world.daemon.terminate()
    world.daemon.wait()
    said = doctor(world, MEMBER, [GROUP])
    assert re.search(r"missing +set power limits .*and no zeus-core daemon runs at .*daemon.sock", said)
