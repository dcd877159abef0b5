"""A site: jobs of two users between the scripts of Slurm, its defaults, its catalogue; and a rehearsal of it."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.daemon.conftest import GROUP, MEMBER, ORIGINAL_WATTS, REPOSITORY, WAIT_SECONDS, needs_root, until
from zeus_core.runs._catalogue import Catalogue
from zeus_core.runs._counting import counted, sums

OTHER = 64003  # a second user of the group

RUN = """
    import sys
    from zeus_core.cli import main
    sys.exit(main(["run", *{options!r}, "--", "sh", "-c", "echo ready; read line"]))
"""
pytestmark = needs_root


@pytest.mark.long
def test_jobs_of_two_users_are_in_one_catalogue_and_originals_are_back(world):
    """Prologue, a job that ends or is killed, epilogue: three times, beside a record that somebody else has forged."""
    catalogue, own = world.folder / "catalogue", world.folder / "own"
    for folder in (catalogue, catalogue / "new", own):
        folder.mkdir()
    for folder in (catalogue / "new", own):
        folder.chmod(0o1777)
    defaults = world.folder / "defaults.json"
    defaults.write_text(json.dumps({"tags": {"team": "nlp"}, "catalogue": str(catalogue)}))
    world.environment |= {"ZEUS_DEFAULTS": str(defaults), "USER": ""}

    def script(name, job, uid):
        environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger), "CATALOGUE": str(catalogue)}
        environment |= {"ZEUS_CORE": f"{sys.executable} -m zeus_core", "SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid)}
        subprocess.run([REPOSITORY / "examples" / "slurm" / name], env=environment, check=True, timeout=WAIT_SECONDS)

    jobs = [("1", MEMBER, None), ("2", OTHER, signal.SIGTERM), ("3", MEMBER, signal.SIGTERM)]
    for job, uid, end in jobs:
        script("prolog.sh", job, uid)
        options = ["--limit", "320W", "--output", str(own / f"{job}.json")]
        process = world.client(RUN.format(options=options), uid, SLURM_JOB_ID=job, LOGNAME=f"user{uid}")
        assert process.stdout.readline() == "ready\n"
        assert [device.power_limit_watts for device in world.driver] == [320.0] * 2
        if end is not None:
            process.send_signal(end)
        _, errors = process.communicate("go on\n" if end is None else None, timeout=WAIT_SECONDS)
        assert "zeus-core: defaults of this site" in errors
        if job == "1":
            forged = catalogue / "new" / "1-forged.json"
            forged.write_text((own / "1.json").read_text().replace('"start_time": 1', '"start_time": 0'))
            os.chown(forged, OTHER, -1)
        script("epilog.sh", job, uid)
        until(lambda: [device.power_limit_watts for device in world.driver] == [ORIGINAL_WATTS] * 2)
    assert list((catalogue / "new").iterdir()) == [forged]
    assert world.entries() == []
    table = Catalogue(catalogue).table()
    assert {row["tags"] for row in table.to_pylist()} == {'{"team": "nlp"}'}
    found = sums(table, counted(table), "job")
    joules = {job: json.loads((own / f"{job}.json").read_text())["totals"]["energy_joules"] for job, *_ in jobs}
    assert {job: each["runs"] for job, each in found.items()} == {"1": 1, "2": 1, "3": 1}
    assert {job: each["millijoules"] / 1e3 for job, each in found.items()} == pytest.approx(joules, abs=2e-3)
    audited = world.audited("ended")
    assert {(line["uid"], line["job"], line["outcome"]) for line in audited} == {
        (uid, job, "restored") for job, uid, _ in jobs
    }


def test_a_rehearsal_holds_users_to_the_policy_without_a_gpu(make_world):
    made = make_world()
    made.write_policy(f"group = {GROUP}\n[[allow]]\ngroups = [{GROUP}]\npower_limit_watts = [250, 400]\n")
    made.start_daemon("--simulate", "A100-SXM4-80GB:2", "--socket", made.socket)
    variables = {"ZEUS_SIMULATED_GPUS": "daemon"}
    process = made.client(RUN.format(options=["--gpus", "1", "--limit", "300W"]), **variables)
    assert process.stdout.readline() == "ready\n"
    look = (
        "from zeus_core.device import discover_gpus\nprint([gpu.read_power_limit_watts() for gpu in discover_gpus()])"
    )
    assert made.run(look, **variables)[0] == "[400.0, 300.0]"
    process.kill()
    until(lambda: [line["outcome"] for line in made.audited("ended")] == ["restored"])
    refused = made.client(RUN.format(options=["--limit", "200W"]), **variables)
    assert "was not changed to 200 W: 200 W is not allowed" in refused.communicate("go on\n", timeout=WAIT_SECONDS)[1]
    assert [line["value"] for line in made.audited("refused")] == [200.0]
    assert [device.power_limit_watts for device in made.driver] == [ORIGINAL_WATTS]  # no GPU of the machine was touched
