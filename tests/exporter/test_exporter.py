"""Totals that never fall, their names for Prometheus and OpenTelemetry, and the dashboard that queries them."""

import json
import re
import shutil
import signal
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
from zeus_core.device import CpuDiscovery, discover_cpus, discover_gpus
from zeus_core.errors import UsageError
from zeus_core.exporter import export_to_opentelemetry
from zeus_core.exporter.serving import METRICS, Collector, serve, write_file
from zeus_core.exporter.totals import DeviceTotals
from zeus_core.monitor import ZeusMonitor
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
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
        assert {name: metric.unit for name, metric in found.items()} == {"hw.energy": "J", "hw.power": "W"}
        assert found["hw.energy"].data.is_monotonic
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
    assert {metric.name: len(metric.data.data_points) for metric in scope.metrics} == {"hw.energy": 2, "hw.power": 2}
    provider.shutdown()


def test_the_page_names_every_metric_with_its_labels():
    page = (ROOT / "docs" / "exporters.md").read_text(encoding="utf-8")
    for metric in METRICS:
        kind, labels = "counter" if metric.is_counter else "gauge", ", ".join(f"`{name}`" for name in metric.labels)
        assert f"| `{metric.name}` | {kind} | {metric.help} | {labels} |" in page


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
    assert set(re.findall(r"\bzeus_\w+", " ".join(queries))) == {metric.name for metric in METRICS}
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    labels = {label for metric in METRICS for label in metric.labels}
    asked = set(re.findall(r"(\w+)=~", " ".join(queries)))
    shown = {name for panel in dashboard["panels"] for name in re.findall(r"{{(\w+)}}", json.dumps(panel))}
    assert asked | shown <= labels


@pytest.mark.long
def test_a_real_prometheus_scrapes_what_the_command_serves(tmp_path):
    """Debian's package `prometheus`: its server, and its check of names and help."""
    if shutil.which("prometheus") is None:
        pytest.skip("NOT CHECKED against a real Prometheus: apt-get install prometheus")
    environment = {"ZEUS_SIMULATED_GPUS": "A40:2", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-u", "-m", "zeus_core", "exporter", "--port", "0", "--period", "1"]
    exporter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    server = None
    try:
        url = re.search(r"http://(\S+)/metrics", exporter.stdout.readline())[1]
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=30) as answer:
            checked = subprocess.run(["promtool", "check", "metrics"], input=answer.read(), capture_output=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        port = free_port()
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: zeus, static_configs: [{{targets: ['{url}']}}]}}]\n"
        )
        options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        server = subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = wait_for_two_increasing_values(port)
        assert {series["metric"]["gpu"] for series in found} == {"0", "1"}
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(timeout=60) == 0
    finally:
        for process in (exporter, server):
            if process is not None:
                process.kill()
                process.wait()
        exporter.stdout.close()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def wait_for_two_increasing_values(port):
    """Ask the server for the energies until it has seen those of both GPUs rise."""
    query = "increase(zeus_gpu_energy_joules_total%5B1m%5D)%20%3E%200"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=30) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:  # it starts
            found = []
        if len(found) == 2:
            return found
        time.sleep(0.3)
    raise AssertionError("Prometheus has not seen the energies rise within 2 minutes")
