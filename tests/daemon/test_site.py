"""A site: jobs of two users between the scripts of Slurm, its defaults, its catalogue; and a rehearsal of it."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from urllib.parse import urlencode

import pytest

from tests.daemon.conftest import GROUP, HOLD_LIMIT, MEMBER, ORIGINAL_WATTS, REPOSITORY, WAIT_SECONDS, needs_root, until
from tests.support.ports import free_port
from zeus_core.exporter.prometheus import METRICS
from zeus_core.runs._catalogue import Catalogue
from zeus_core.runs._counting import counted, sums

OTHER = 64003  # a second user of the group

RUN = """
    import sys
    from zeus_core.cli import main
    sys.exit(main(["run", *{options!r}, "--", "sh", "-c", "echo ready; read line"]))
"""
TRAINING = """
    import sys
    from zeus_core.training import TrainingEnergy
    energy = TrainingEnergy(folder={folder!r})
    energy.on_train_begin()
    with energy.step():
        pass
    energy.log()
    print("ready", flush=True)
    sys.stdin.readline()
"""
pytestmark = needs_root


@pytest.mark.long
def test_jobs_of_two_users_are_in_one_catalogue_and_originals_are_back(world):
    """Prologue, a job that ends or is killed, epilogue: four times, beside a record that somebody else has forged."""
    catalogue, own = world.folder / "catalogue", world.folder / "own"
    for folder in (catalogue, catalogue / "new", own):
        folder.mkdir()
    for folder in (catalogue / "new", own):
        folder.chmod(0o1777)
    defaults = world.folder / "defaults.json"
    defaults.write_text(json.dumps({"tags": {"team": "nlp"}, "catalogue": str(catalogue)}))
    program = world.folder / "zeus-core"  # the scripts split words, and this Python may lie below a folder with a space
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zeus_core "$@"\n')
    program.chmod(0o755)
    world.environment |= {"ZEUS_DEFAULTS": str(defaults), "ZEUS_CORE": str(program), "USER": ""}

    def script(name, job, uid):
        environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger), "CATALOGUE": str(catalogue)}
        environment |= {"SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid)}
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
    training = world.client(TRAINING.format(folder=str(own / "training")), OTHER, SLURM_JOB_ID="4", LOGNAME="user")
    assert training.stdout.readline() == "ready\n"
    until(lambda: list((catalogue / "new").glob("4-*.json")), "what has been trained is recorded")
    training.kill()
    training.wait()
    script("epilog.sh", "4", OTHER)
    assert list((catalogue / "new").iterdir()) == [forged]
    assert world.entries() == []
    table = Catalogue(catalogue).table()
    assert {row["tags"] for row in table.to_pylist()} == {'{"team": "nlp"}'}
    found = sums(table, counted(table), "job")
    assert found.pop("4")["runs"] == 1
    assert sums(table, counted(table), "state")["interrupted"]["runs"] == 1
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


def job_on(world, uid, **variables):
    """Start a process of a user that a driver can show, and return its id."""
    process = world.client("import sys\nprint('ready')\nsys.stdin.readline()", uid, **variables)
    assert process.stdout.readline() == "ready\n"
    return process.pid


HELD = """
    from zeus_core.device import discover_gpus
    from zeus_core.exporter.jobs import JobTotals
    from zeus_core.exporter.prometheus import Collector
    from zeus_core.exporter.totals import DeviceTotals
    from zeus_core.monitor import ZeusMonitor
    monitor = ZeusMonitor(gpus=discover_gpus({{}}))
    for family in Collector(DeviceTotals(monitor, {jobs})).collect():
        for sample in family.samples:
            if sample.name in ("zeus_daemon_up", "zeus_gpu_held_setting", "zeus_daemon_events_total"):
                print(sample.name, *[sample.labels.get(name) for name in ("user", "job_id", "event")], sample.value)
"""


def test_the_exporter_says_who_holds_a_setting_unless_it_is_to_name_nobody(world):
    holder = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]), SLURM_JOB_ID="7")
    assert holder.stdout.readline() == "ready\n"
    for jobs, user, job in (("JobTotals(monitor.time_source)", f"{MEMBER}", "7"), ("None", "", "")):
        lines = world.run(HELD.format(jobs=jobs))[0].splitlines()
        assert "zeus_daemon_up None None None 1.0" in lines
        assert f"zeus_gpu_held_setting {user} {job} None 250.0" in lines
        assert "zeus_daemon_events_total None None set 1.0" in lines


def asked(port, query):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}") as answer:
        return json.load(answer)["data"]["result"]


def served(text):
    """Serve metrics until the process ends, as a node exporter does those of its textfile collector."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_address[1]}"


@pytest.mark.long
def test_prometheus_sees_two_jobs_and_the_daemon(world):
    """Debian's package `prometheus`: labels, counters, the number of series, the dashboard's queries and the rules."""
    if shutil.which("prometheus") is None:
        pytest.skip("NOT CHECKED against a real Prometheus: apt-get install prometheus")
    nlp = job_on(world, MEMBER, SLURM_JOB_ID="7", SLURM_JOB_ACCOUNT="nlp")
    world.driver[0].set_processes((nlp, 0, 0))
    world.driver[1].set_processes(
        (nlp, 0, 0), (job_on(world, OTHER, SLURM_JOB_ID="8", SLURM_JOB_ACCOUNT="vision"), 0, 0)
    )
    holder = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]), SLURM_JOB_ID="7")
    assert holder.stdout.readline() == "ready\n"
    command = [sys.executable, "-u", "-m", "zeus_core", "exporter", "--port", "0"]
    exporter = subprocess.Popen(
        command, env=world.environment, cwd=world.folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    world.processes.append(exporter)
    url = exporter.stdout.readline().split()[2].removeprefix("http://").rstrip(",").removesuffix("/metrics")
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=240) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    port = free_port()
    sums = ["sum", world.folder / "runs", "--by", "project", "--format", "prometheus"]
    for arguments in (["add", world.folder / "runs", REPOSITORY / "tests" / "samples" / "run"], sums):
        savings = subprocess.run([*command[:4], "runs", *arguments], check=True, capture_output=True).stdout
    collected = served(savings)
    grafana = REPOSITORY / "docs" / "grafana"
    config = world.folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 500ms, evaluation_interval: 1s}\n"
        f"rule_files: ['{grafana / 'zeus-core.rules.yml'}']\n"
        f"scrape_configs: [{{job_name: zeus, static_configs: [{{targets: ['{url}', '{collected}']}}]}}]\n"
    )
    options = [f"--config.file={config}", f"--storage.tsdb.path={world.folder / 'data'}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    world.processes.append(
        subprocess.Popen(["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"], **quiet)
    )

    def is_recorded():
        with contextlib.suppress(OSError):
            return asked(port, "project:zeus_job_power_watts:rate5m") and asked(
                port, "count_over_time(zeus_daemon_up[1m]) > 5"
            )
        return False

    until(is_recorded, "a recorded rule")
    labels = ("user", "job_id", "project", "exported_job")
    found = {
        tuple(each["metric"].get(name) for name in labels): float(each["value"][1])
        for each in asked(port, "rate(zeus_job_energy_joules_total[1m])")
    }
    jobs = [(f"{MEMBER}", "7", "nlp", None), (f"{OTHER}", "8", "vision", None)]
    assert sorted(found) == jobs
    assert found[jobs[0]] == pytest.approx(3 * found[jobs[1]], rel=0.2)  # a GPU, and half of one, of 75 W each
    held = {name: asked(port, f"zeus_{name}")[0] for name in ("gpu_held_setting", "daemon_up")}
    assert held["daemon_up"]["value"][1] == "1"
    assert (held["gpu_held_setting"]["metric"]["job_id"], held["gpu_held_setting"]["value"][1]) == ("7", "250")
    assert [each["value"][1] for each in asked(port, 'zeus_daemon_events_total{event="set"}')] == ["1"]
    totals = {name for name, metric in METRICS.items() if name.endswith("_total") and metric.of in {"job", "daemon"}}
    for name in totals:
        assert {each["value"][1] for each in asked(port, f"resets({name}[1m])")} == {"0"}, name
    ((_, series),) = [each["value"] for each in asked(port, 'count({__name__=~"zeus_job_.*"})')]
    assert int(series) == 2 * 4
    dashboard = json.loads((grafana / "zeus-core.json").read_text())
    for panel in dashboard["panels"]:
        for query in (target["expr"] for target in panel["targets"]):
            for name, value in {
                "$hostname": ".*",
                "$__range": "1m",
                "$__rate_interval": "1m",
                "$intensity": "380",
                "$price": "0.3",
            }.items():
                query = query.replace(name, value)
            answer = asked(port, query)
            assert answer or any(name in query for name in ("zeus_cpu", "zeus_dram", "zeus_gpu_residue")), query
