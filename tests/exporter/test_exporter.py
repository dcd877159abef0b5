"""Totals that never fall, their names for Prometheus, and the dashboard that queries them."""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.nvml_driver import DeviceSpec
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, discover_cpus, discover_gpus, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import UsageError
from zeus_core.exporter.jobs import LABELS, MOST_JOBS, GpuReading, JobTotals
from zeus_core.exporter.prometheus import METRICS, Collector, serve
from zeus_core.exporter.totals import DeviceTotals
from zeus_core.installed import install_command
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.run_identity import RunIdentity, slurm_job
from zeus_core.runs._sums_shown import RUN_METRICS
from zeus_core.testing import FakeRapl, FaultyGpu

ROOT = Path(__file__).parents[2]
NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not wanted here")
UNKNOWN, LOST = 999, 15


def names_of(*kinds):
    return {name for name, metric in METRICS.items() if metric.of in kinds}


@pytest.fixture
def totals(monitor):
    return DeviceTotals(monitor)


def exported(totals):
    """The samples as Prometheus reads them: by name, then by the index of the device."""
    registry = CollectorRegistry()
    registry.register(Collector(totals))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            index = sample.labels.get("gpu", sample.labels.get("package"))
            found.setdefault(sample.name, {})[index] = sample
    return found


def test_totals_are_the_energy_since_the_beginning(totals, gpu, work):
    for _ in range(20):
        gpu.execute(work)
        totals.refresh()
    begin_joules = gpu.exact_energy_joules()
    gpu.execute(work)
    before = exported(totals)["zeus_gpu_energy_joules_total"]["0"].value
    for _ in range(20):
        gpu.execute(work)
    state = exported(totals)
    added = state["zeus_gpu_energy_joules_total"]["0"].value - before
    assert added == pytest.approx((gpu.exact_energy_joules() - begin_joules) * 20 / 21, rel=0.02)
    assert state["zeus_gpu_power_limit_watts"]["0"].value == 350
    assert state["zeus_gpu_energy_unmeasured_seconds_total"]["0"].value == 0
    assert state.keys() - names_of("daemon") == names_of("gpu")


@pytest.fixture
def start_job():
    """Starts processes that wait, with some variables, and returns their ids."""
    processes = []

    def start(**variables):
        processes.append(subprocess.Popen(["sleep", "600"], env={"PATH": "/bin:/usr/bin", **variables}))
        while not Path(f"/proc/{processes[-1].pid}/environ").read_bytes().startswith(b"PATH=/bin"):
            time.sleep(0.001)  # it is still this program
        return processes[-1].pid

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_jobs_share_the_energy_of_their_gpus(monitor, gpu, work, start_job):
    running = []
    gpu.read_process_ids = lambda: running
    one = start_job(SLURM_JOB_ID="7", SLURM_JOB_ACCOUNT="x")
    other = start_job(SLURM_JOB_ID="8", ZEUS_TAGS='project="a\\,big=1')
    hidden = start_job(SLURM_JOB_ID="9", ZEUS_TAGS="none")
    jobs = JobTotals(monitor.time_source)
    totals = DeviceTotals(monitor, jobs)
    begin_joules = totals.refresh()[0].energy_joules
    for present, seconds in (([one], 2), ([one, other], 1), ([], 1), ([hidden], 3), ([2**22 + 1], 1)):
        running[:] = present
        for _ in range(seconds):
            gpu.execute(work)
            totals.refresh()
    found = dict(jobs.exported())
    user = getpass.getuser()
    assert found.keys() == {(user, "7", "", "", "x"), (user, "8", "", "", '"a\\'), ("",) * 5}
    joules = [total.energy_joules for total in found.values()]
    assert joules == pytest.approx([2.5 * joules[2] / 3, 0.5 * joules[2] / 3, joules[2]], rel=0.1)
    assert sum(joules) < totals.refresh()[0].energy_joules - begin_joules  # the rest is nobody's
    assert [total.idle_seconds for total in found.values()] == [0.0, 0.0, 0.0]  # it has just worked when it is read
    assert exported(totals).keys() >= names_of("job")


@pytest.mark.parametrize(
    ("cgroups", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", "123"),
        ("12:pids:/\n9:memory:/slurm/uid_1000/job_45/step_batch\n1:name=systemd:/user.slice\n", "45"),
        ("0::/user.slice/user-0.slice/my_job_7.scope\n", ""),
    ],
)
def test_slurms_control_group_names_the_job(cgroups, job):
    assert slurm_job(cgroups) == job


def test_the_number_of_jobs_is_bounded_and_old_ones_go(time_source, monkeypatch):
    jobs = JobTotals(time_source)
    for number in range(MOST_JOBS + 5):
        monkeypatch.setattr("zeus_core.exporter.jobs.identity_of", lambda *_, n=number: RunIdentity(job=f"{n}"))
        jobs.add([GpuReading({(1, 2)}, 1.0, 1.0, 0.0)])
    found = dict(jobs.exported())
    assert len(found) == MOST_JOBS + 1
    assert found[("other",) * len(LABELS)].energy_joules == 5
    time_source.advance(3601.0)
    assert jobs.exported() == []
    jobs.add([GpuReading({(1, 2)}, 1.0, 1.0, 0.0)])
    ((values, total),) = jobs.exported()  # there is room for new ones again
    assert (values, total.gpus) == (("", f"{MOST_JOBS + 4}", "", "", ""), 1.0)


def test_labels_identify_the_device(totals, gpu):
    sample = exported(totals)["zeus_gpu_power_watts"]["0"]
    assert sample.labels == {
        "gpu": "0",
        "gpu_uuid": gpu.uuid,
        "gpu_name": gpu.name,
        "hostname": socket.gethostname(),
    }


@pytest.mark.real_time
def test_totals_never_fall_over_faults_and_a_restart_of_the_driver(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    (device, other) = driver
    totals = DeviceTotals(ZeusMonitor(gpus=discover_gpus({}), cpus=NO_CPUS))
    faults = [
        lambda: device.reset_counter(),
        lambda: device.fail("nvmlDeviceGetTotalEnergyConsumption", UNKNOWN, 3),
        lambda: driver.forget_sessions(),
        lambda: driver.fail(None, UNKNOWN, 20),
        lambda: other.fail(None, LOST),
        lambda: None,
    ]
    latest = {}
    for fault in faults:
        for number in range(4):
            if number == 1:
                fault()
            time.sleep(0.06)
            for name, samples in exported(totals).items():
                for index, sample in samples.items():
                    if name.endswith("_total"):
                        assert sample.value >= latest.get((name, index), 0.0), name
                        latest[name, index] = sample.value
    driver.clear_faults()
    assert latest["zeus_gpu_energy_joules_total", "0"] > 0
    assert latest["zeus_gpu_energy_unmeasured_seconds_total", "1"] > 0  # GPU 1 was lost, and that is said


def test_cpus_and_memory_have_metrics_of_their_own(tmp_path, gpu, time_source):
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    dram = rapl.add_zone("dram", within=package)
    cpus = discover_cpus(rapl.root, read_text=rapl.read_text)
    totals = DeviceTotals(ZeusMonitor(gpus=[gpu], cpu_indices=[0], cpus=cpus, time_source=time_source))
    time_source.advance(1.0)
    rapl.add_energy(package, 5_000_000)
    rapl.add_energy(dram, 2_000_000)
    found = exported(totals)
    assert found.keys() - names_of("daemon") == names_of("gpu", "cpu", "dram")
    assert found["zeus_cpu_energy_joules_total"]["0"].value == pytest.approx(5)
    assert found["zeus_dram_energy_joules_total"]["0"].value == pytest.approx(2)


def test_the_port_answers_and_a_second_program_hears_it_is_in_use(totals):
    with serve(totals, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240) as answer:
            assert "zeus_gpu_power_watts{" in answer.read().decode()
        taken = pytest.raises(UsageError, match=rf"port {port} of 127.0.0.1 cannot be used: .*--port 0")
        with taken, serve(totals, "127.0.0.1", port):
            pass


def test_a_driver_that_hangs_is_waited_for_once_and_the_other_gpu_is_answered_for():
    hanging, other = (FaultyGpu(SimulatedGpu(find_preset("A40"), index)) for index in range(2))
    totals = DeviceTotals(ZeusMonitor(gpus=[hanging, other], cpus=NO_CPUS))
    hanging.hang("read_power_watts")
    try:
        first, second = exported(totals), exported(totals)
    finally:
        hanging.heal()
    for found in (first, second):
        assert found["zeus_gpu_power_watts"].keys() == {"1"}
        assert found["zeus_gpu_energy_joules_total"].keys() == {"0", "1"}


@pytest.mark.parametrize(("identity", "is_named"), [("", True), ("none", False)])
def test_a_job_is_named_unless_the_exporter_is_to_name_nobody(identity, is_named):
    own = {"ZEUS_SIMULATED_GPUS": "A40", "SLURM_JOB_ID": "7", "ZEUS_TAGS": identity, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "zeus_core", "exporter", "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[2].rstrip(",")
        text = urllib.request.urlopen(url, timeout=240).read().decode()
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0
    assert ('job_id="7"' in text) is is_named
    assert "zeus_gpu_power_watts{" in text
    assert "zeus_daemon_up{" in text


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch, capsys):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["exporter"]) == 2
    assert install_command("prometheus") in capsys.readouterr().err


def test_the_page_names_every_metric_with_its_labels():
    page = (ROOT / "docs" / "exporters.md").read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        labels = ", ".join(f"`{label}`" for label in [*metric.labels, "hostname"])
        has_row_of_its_own = metric.of in {"gpu", "cpu", "dram"}
        assert f"| `{name}` | {kind} | {metric.sentence} | {labels} |" in page or not has_row_of_its_own
        assert f"| `{name}` | {metric.sentence} |" in page or has_row_of_its_own
    for name, (sentence, _) in RUN_METRICS.items():
        assert f"| `{name}` | {sentence} |" in page


def queries_of(dashboard):
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if "refId" in variable["query"]
    )


def test_the_dashboard_queries_every_metric_and_no_other_name():
    dashboard = json.loads((ROOT / "docs" / "grafana" / "zeus-core.json").read_text(encoding="utf-8"))
    queries = list(queries_of(dashboard))
    names = {*METRICS, *RUN_METRICS}
    assert set(re.findall(r"\bzeus_\w+", " ".join(queries))) == names
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    labels = {label for metric in METRICS.values() for label in metric.labels} | {"hostname"}
    asked = set(re.findall(r"(\w+)=~", " ".join(queries)))
    shown = {name for panel in dashboard["panels"] for name in re.findall(r"{{(\w+)}}", json.dumps(panel))}
    assert asked | shown <= labels


@pytest.mark.long
def test_promtool_accepts_the_rules_and_the_alerts_fire(tmp_path):
    if shutil.which("promtool") is None:
        pytest.skip("NOT CHECKED by promtool: apt-get install prometheus")
    shutil.copy(ROOT / "docs" / "grafana" / "zeus-core.rules.yml", tmp_path)
    gpu = 'gpu="0", gpu_uuid="GPU-1", gpu_name="A40", hostname="n"'
    left = 'gpu_uuid="GPU-1", knob="power_limit", hostname="n"'
    alerts = [("ZeusGpuIdleAtHighPower", "25m"), ("ZeusResidueOfDeadJob", "2m")]
    values = {"utilization_ratio": "0", "power_watts": "120", "power_limit_watts": "300"}
    series = {f"zeus_gpu_{name}{{{gpu}}}": value for name, value in values.items()} | {
        f"zeus_gpu_residue{{{left}}}": "1"
    }
    busy = {f"zeus_gpu_{name}{{{gpu}}}": value for name, value in {**values, "utilization_ratio": "0.9"}.items()}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": f"{value}x40"} for name, value in given.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                    "eval_time": at,
                    "exp_samples": fires,
                }
                for name, at in alerts
            ],
        }
        for given, fires in ((series, [{"labels": "{}", "value": 1}]), (busy, []))
    ]
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["zeus-core.rules.yml"], "tests": tests}))
    checked = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
