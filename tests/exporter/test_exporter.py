"""Totals that never fall, their names for Prometheus and OpenTelemetry, and the dashboard that queries them."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.nvml_driver import DeviceSpec
from tests.support.pages import blocks
from zeus_core.adapters import install_command
from zeus_core.cli import main
from zeus_core.cli._exporter import _LABELS
from zeus_core.device import discover_cpus, discover_gpus
from zeus_core.device.rapl.rapl_discovery import CpuDiscovery
from zeus_core.errors import UsageError
from zeus_core.exporter import export_to_opentelemetry
from zeus_core.exporter.jobs import MOST_JOBS, GpuReading, JobTotals
from zeus_core.exporter.machine_metrics import DAEMON_METRICS, JOB_METRICS
from zeus_core.exporter.serving import METRICS, Collector, serve, write_file
from zeus_core.exporter.totals import DeviceTotals
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.run_identity import RunIdentity, slurm_job
from zeus_core.runs._sums_shown import RUN_METRICS
from zeus_core.testing import FakeRapl

ROOT = Path(__file__).parents[2]
NO_CPUS = CpuDiscovery(cpus=(), psys=(), unavailable_because="not wanted here")
UNKNOWN, LOST = 999, 15
OF_GPUS = {metric.name for metric in METRICS if metric.kind == "gpu"}


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
    assert state.keys() == OF_GPUS


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
    one = start_job(SLURM_JOB_ID="7", ZEUS_TAGS="team=nlp", SLURM_JOB_ACCOUNT="x")
    other = start_job(SLURM_JOB_ID="8", ZEUS_TAGS='team="a\\,big=1')
    hidden = start_job(SLURM_JOB_ID="9", ZEUS_TAGS="none")
    jobs = JobTotals(("job_id", "project", "tag:team"), monitor.time_source)
    totals = DeviceTotals(monitor, jobs)
    begin_joules = totals.refresh()[0].energy_joules
    for present, seconds in (([one], 2), ([one, other], 1), ([], 1), ([hidden], 3), ([2**22 + 1], 1)):
        running[:] = present
        for _ in range(seconds):
            gpu.execute(work)
            totals.refresh()
    found = dict(jobs.exported())
    assert found.keys() == {("7", "x", "nlp"), ("8", "", '"a\\'), ("", "", "")}
    joules = [total.energy.energy_joules for total in found.values()]
    assert joules == pytest.approx([2.5 * joules[2] / 3, 0.5 * joules[2] / 3, joules[2]], rel=0.1)
    assert sum(joules) < totals.refresh()[0].energy_joules - begin_joules  # the rest is nobody's
    assert [total.idle_seconds for total in found.values()] == [0.0, 0.0, 0.0]  # it has just worked when it is read
    names = {name: samples for name, samples in exported(totals).items() if name in JOB_METRICS}
    assert names.keys() == JOB_METRICS.keys() - {"zeus_job_emissions_grams_total", "zeus_job_cost_total"}


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
    jobs = JobTotals(("job_id",), time_source)
    for number in range(MOST_JOBS + 5):
        monkeypatch.setattr("zeus_core.exporter.jobs.identity_of", lambda *_, n=number: RunIdentity(job=f"{n}"))
        jobs.add([GpuReading({(1, 2)}, DeviceEnergy(1.0, 0.0), 1.0, 0.0)])
    found = dict(jobs.exported())
    assert len(found) == MOST_JOBS + 1
    assert found["other",].energy.energy_joules == 5
    time_source.advance(3601.0)
    assert jobs.exported() == []
    jobs.add([GpuReading({(1, 2)}, DeviceEnergy(1.0, 0.0), 1.0, 0.0)])
    ((values, total),) = jobs.exported()  # there is room for new ones again
    assert (values, total.gpus) == ((f"{MOST_JOBS + 4}",), 1.0)


@pytest.mark.parametrize("labels", ["user,who", "user,user", "tag:", ",".join(f"tag:{n}" for n in range(11))])
def test_labels_that_cannot_be_are_refused(labels, capsys):
    assert main(["exporter", "--labels", labels]) == 2
    assert "--labels is" in capsys.readouterr().err


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
    assert found.keys() == {metric.name for metric in METRICS}
    assert found["zeus_cpu_energy_joules_total"]["0"].value == pytest.approx(5)
    assert found["zeus_dram_energy_joules_total"]["0"].value == pytest.approx(2)


def test_the_port_answers_and_a_second_program_hears_it_is_in_use(totals):
    with serve(totals, "127.0.0.1", 0, 60.0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240) as answer:
            assert "zeus_gpu_power_watts{" in answer.read().decode()
        taken = pytest.raises(UsageError, match=rf"port {port} of 127.0.0.1 cannot be used: .*--port 0")
        with taken, serve(totals, "127.0.0.1", port, 60.0):
            pass


def test_a_file_is_replaced_once_more_at_the_end(totals, gpu, work, tmp_path):
    file, stop = tmp_path / "zeus.prom", threading.Event()
    thread = threading.Thread(target=write_file, args=(totals, file, 3600.0, stop))
    thread.start()
    while not file.exists():
        time.sleep(0.01)
    gpu.execute(work)
    stop.set()
    thread.join()
    assert "zeus_gpu_energy_joules_total{" in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_written_is_named(totals, tmp_path):
    with pytest.raises(UsageError, match=r"--textfile .*none/zeus.prom cannot be written"):
        write_file(totals, tmp_path / "none" / "zeus.prom", 1.0, threading.Event())


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch, capsys):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["exporter"]) == 2
    assert install_command("prometheus") in capsys.readouterr().err


def test_opentelemetry_sees_the_conventional_names(gpu, monitor, work):
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export_to_opentelemetry(monitor, provider)
    points = []
    for _ in range(2):
        gpu.execute(work)
        (resource,) = reader.get_metrics_data().resource_metrics
        (scope,) = resource.scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        named = {name: metric.unit for name, metric in found.items() if not name.startswith("zeus_")}
        assert named == {"hw.energy": "J", "hw.power": "W"}
        assert found["hw.energy"].data.is_monotonic
        same = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=monitor.time_source)
        of_prometheus = exported(DeviceTotals(same))
        for name, samples in of_prometheus.items():
            (point,) = found[name].data.data_points
            assert dict(point.attributes) == samples["0"].labels
            assert getattr(found[name].data, "is_monotonic", False) is name.endswith("_total")
        assert of_prometheus.keys() == found.keys() - named.keys()
        points.append(found["hw.energy"].data.data_points[0])
    assert points[1].value > points[0].value
    assert dict(points[0].attributes) == {"hw.id": gpu.uuid, "hw.type": "gpu", "hw.name": gpu.name}
    provider.shutdown()


def test_the_page_exports_to_the_provider_of_the_program(monkeypatch):
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    (block,) = blocks("exporters.md")
    exec(compile(block, "<page>", "exec"), {})
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    counts = {metric.name: len(metric.data.data_points) for metric in scope.metrics}
    assert counts == dict.fromkeys(("hw.energy", "hw.power", *OF_GPUS), 2)
    provider.shutdown()


def test_the_page_measures_a_short_job_into_a_file(tmp_path):
    (block,) = blocks("exporters.md", "bash")
    file = tmp_path / "zeus.prom"
    (tmp_path / "train.py").write_text(f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.05)")
    shell = f'zeus-core() {{ exec {shlex.quote(sys.executable)} -m zeus_core "$@"; }}\n'
    shell += f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
    script = shell + block.replace("/var/lib/node_exporter/zeus.prom", "zeus.prom") + 'wait "$exporter"'
    environment = {**os.environ, "ZEUS_SIMULATED_GPUS": "A40", "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, timeout=240, check=True)
    assert "zeus_gpu_energy_joules_total{" in file.read_text()


def test_the_page_names_every_metric_with_its_labels():
    page = (ROOT / "docs" / "exporters.md").read_text(encoding="utf-8")
    for metric in METRICS:
        kind, labels = "counter" if metric.is_counter else "gauge", ", ".join(f"`{name}`" for name in metric.labels)
        assert f"| `{metric.name}` | {kind} | {metric.help} | {labels} |" in page
    sentences = {**JOB_METRICS, **{name: sentence for name, (sentence, _) in {**DAEMON_METRICS, **RUN_METRICS}.items()}}
    for name, sentence in sentences.items():
        assert f"| `{name}` | {sentence} |" in page


def test_wrong_arguments_of_opentelemetry_are_named(monitor):
    with pytest.raises(UsageError, match="monitor is 3"):
        export_to_opentelemetry(3)
    with pytest.raises(UsageError, match="meter_provider is 3"):
        export_to_opentelemetry(monitor, 3)


def queries_of(dashboard):
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if "refId" in variable["query"]
    )


def test_the_dashboard_queries_every_metric_and_no_other_name():
    dashboard = json.loads((ROOT / "docs" / "grafana" / "zeus-core.json").read_text(encoding="utf-8"))
    queries = list(queries_of(dashboard))
    names = {*(metric.name for metric in METRICS), *JOB_METRICS, *DAEMON_METRICS, *RUN_METRICS}
    assert set(re.findall(r"\bzeus_\w+", " ".join(queries))) == names
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    labels = {label for metric in METRICS for label in metric.labels} | {*_LABELS, "currency"}
    labels |= {label for _, names in DAEMON_METRICS.values() for label in names}
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
