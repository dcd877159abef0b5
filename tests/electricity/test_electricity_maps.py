"""The live source: against a server of the tests that answers well, badly, or not at all."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.contracts.signal import SignalContract
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.electricity import Electricity, ElectricityMaps, Signal
from zeus_core.electricity.signal import ForecastSignal
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualBackground, VirtualTime
from zeus_core.training import TrainingEnergy

MARCH = 1_772_323_200.0  # 2026-03-01 00:00 UTC
HOUR = 3600.0
GOOD = {
    "zone": "DE",
    "history": [
        {"zone": "DE", "carbonIntensity": 300, "datetime": "2026-03-01T00:00:00.000Z"},
        {"zone": "DE", "carbonIntensity": 350.5, "datetime": "2026-03-01T01:00:00.000Z"},
        {"zone": "DE", "carbonIntensity": None, "datetime": "2026-03-01T02:00:00.000Z"},
    ],
}


class Server:
    """Answers on this machine with what it is given."""

    def __init__(self) -> None:
        self.status, self.answer, self.headers = 200, json.dumps(GOOD), dict[str, str]()
        self.asked: list[tuple[str, str | None]] = []
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["auth-token"]))
                if outer.hangs.is_set():
                    outer.goes_on.wait(240)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.answer.encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def live(server: Server, time_source: VirtualTime | None = None) -> ElectricityMaps:
    time_source = VirtualTime() if time_source is None else time_source
    background = VirtualBackground(time_source)
    return ElectricityMaps("DE", 380, "secret", url=server.url, background=background)


class TestContract(SignalContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Server) -> None:
        self.server = server

    def make_signal(self) -> Signal:
        return live(self.server)


def test_it_asks_with_the_token_and_knows_the_last_hours(server: Server) -> None:
    signal = live(server)
    assert server.asked == [("/carbon-intensity/history?zone=DE", "secret")]
    (part,) = signal.parts(MARCH + 1.5 * HOUR, MARCH + 2.5 * HOUR)
    assert part.value == 350.5
    assert signal.parts(MARCH + 5 * HOUR, MARCH + 5 * HOUR)[0].is_stale


def test_what_is_known_is_kept_and_added_to(server: Server) -> None:
    time_source = VirtualTime()
    signal = live(server, time_source)
    later = {"carbonIntensity": 200, "datetime": "2026-03-01T02:00:00.000Z"}
    server.answer = json.dumps({"history": [later]})
    time_source.sleep(901.0)
    assert [part.value for part in signal.parts(MARCH, MARCH + 3 * HOUR)] == [300, 350.5, 200]
    signal.close()
    time_source.sleep(9000.0)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, "<html>"),
        (200, "[]"),
        (200, '{"history": [{"carbonIntensity": -5, "datetime": "2026-03-01T00:00:00Z"}]}'),
        (200, '{"history": [{"carbonIntensity": "much", "datetime": "2026-03-01T00:00:00Z"}]}'),
        (200, '{"history": [{"carbonIntensity": 5, "datetime": "yesterday"}]}'),
        (200, '{"history": []}'),
        (401, '{"error": "bad token"}'),
        (500, ""),
        (200, "[" * 100_000),
    ],
)
def test_garbage(server: Server, status: int, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    server.status, server.answer = status, answer
    with caplog.at_level(logging.INFO):
        (part,) = live(server).parts(MARCH, MARCH + HOUR)
    assert (part.value, part.is_stale) == (380, True)
    assert "secret" not in caplog.text
    if answer != '{"history": []}':
        assert "no carbon intensity from Electricity Maps for DE" in caplog.text


def test_failures_are_logged_once_and_tried_less_and_less_often(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.status, time_source = 500, VirtualTime()
    signal = live(server, time_source)
    time_source.sleep(86_400.0)
    assert 5 <= len(server.asked) <= 12  # not 96
    assert caplog.text.count("no carbon intensity") == 1
    server.status = 200
    time_source.sleep(6 * HOUR + 900.0)
    assert signal.parts(MARCH, MARCH)[0].value == 300


def test_a_redirect_does_not_get_the_token(server: Server) -> None:
    other = Server()
    server.status, server.headers = 302, {"Location": other.url}
    assert live(server).parts(MARCH, MARCH)[0].is_stale
    assert not other.asked
    other.close()


def test_nobody_waits_for_a_server_that_hangs(server: Server) -> None:
    server.hangs.set()
    signal = ElectricityMaps("DE", 380, "secret", url=server.url)
    assert signal.parts(MARCH, MARCH)[0].is_stale
    server.goes_on.set()
    until = time.monotonic() + 240
    while signal.parts(MARCH, MARCH)[0].is_stale and time.monotonic() < until:
        time.sleep(0.01)
    assert signal.parts(MARCH, MARCH)[0].value == 300
    signal.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": ""}, "ELECTRICITYMAPS_TOKEN"),
        ({"token": "a\nb"}, "token"),
        ({"forecast_hours": 25}, "forecast_hours"),
        ({"average": -1}, "average"),
        ({"url": "file:///etc/passwd"}, "https"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElectricityMaps(**{"zone": "DE", "average": 380, "token": "secret", **options})  # type: ignore[arg-type]


def test_the_token_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELECTRICITYMAPS_TOKEN", raising=False)
    with pytest.raises(UsageError, match="ELECTRICITYMAPS_TOKEN"):
        ElectricityMaps("DE", 380)
    monkeypatch.setenv("ELECTRICITYMAPS_TOKEN", "of the environment")
    ElectricityMaps("DE", 380, url=server.url, background=VirtualBackground(VirtualTime()))
    assert server.asked[0][1] == "of the environment"


def test_a_copy_asks_for_itself(server: Server) -> None:
    signal = live(server)
    copied = pickle.loads(pickle.dumps(signal))
    while len(server.asked) < 2:
        time.sleep(0.01)
    copied.close()
    assert copied.facts == signal.facts
    assert server.asked[0] == server.asked[1]


def test_a_training_goes_on_while_a_server_hangs(server: Server) -> None:
    server.hangs.set()
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    signal = ElectricityMaps("DE", 380, "secret", url=server.url)
    with TrainingEnergy(monitor, electricity=Electricity(signal), quiet=True) as energy:
        for _ in range(20):
            with energy.step():
                gpu.execute(Work(0.5, 400.0))
            logged = energy.log()
    signal.close()
    assert not server.goes_on.is_set()
    assert logged["co2_eq_g"] == pytest.approx(logged["total_energy_j"] / 3.6e6 * 380)
    assert energy.summary.not_measured is None
    assert energy.summary.values()["train_co2_eq_stale_fraction"] == 1


class BusyBackground(VirtualBackground):
    def soon(self, action: Callable[[], object]) -> None:
        self.later(action, 1.0)


def test_a_closed_signal_asks_for_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.status, time_source = 401, VirtualTime()
    background = BusyBackground(time_source)
    ElectricityMaps("DE", 380, "secret", url=server.url, background=background).close()
    time_source.sleep(HOUR)
    assert not server.asked
    assert not caplog.records


def test_a_forecast_is_asked_for_and_its_first_values_are_kept(server: Server) -> None:
    time_source = VirtualTime()

    def entry(hour: int, value: float) -> dict[str, object]:
        return {"carbonIntensity": value, "datetime": f"2026-03-01T{hour:02}:00:00.000Z"}

    server.answer = json.dumps({**GOOD, "forecast": [entry(2, 210), entry(3, 220), entry(4, 230)]})
    signal = ElectricityMaps(
        *("DE", 380, "secret"),
        url=server.url,
        background=VirtualBackground(time_source),
        forecast_hours=24,
    )
    assert isinstance(signal, ForecastSignal)
    assert [path for path, _ in server.asked] == [
        "/carbon-intensity/forecast?zone=DE&horizonHours=24",
        "/carbon-intensity/history?zone=DE",
    ]
    now = MARCH + 1.5 * HOUR
    assert [part.value for part in signal.forecast(now, now, MARCH + 4.5 * HOUR)] == [210, 220, 230]
    history = {"history": [*GOOD["history"][:2], entry(2, 250)]}  # type: ignore[index]
    server.answer = json.dumps({**history, "forecast": [entry(3, 300), entry(4, 310)]})
    time_source.sleep(901.0)
    assert [part.value for part in signal.forecast(now + HOUR, MARCH + 2 * HOUR, MARCH + 5 * HOUR)] == [210, 300, 310]
    assert signal.parts(MARCH + 2 * HOUR, MARCH + 2 * HOUR)[0].value == 250, "a forecast is never charged"


def test_without_its_forecast_the_past_is_known(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    time_source = VirtualTime()
    signal = ElectricityMaps(
        *("DE", 380, "secret"),
        url=server.url,
        background=VirtualBackground(time_source),
        forecast_hours=48,
    )
    time_source.sleep(2000.0)
    assert signal.parts(MARCH, MARCH)[0].value == 300
    assert signal.forecast(MARCH, MARCH, MARCH + HOUR) == []
    assert caplog.text.count("no forecast from Electricity Maps for DE") == 1
    copied = pickle.loads(pickle.dumps(signal))
    copied.close()  # it asks for itself, in a thread
    assert copied.facts == signal.facts


@pytest.mark.parametrize(
    ("status", "answer", "named"),
    [
        (401, '{"error": "bad"}', ["HTTP 401", "token", "ELECTRICITYMAPS_TOKEN", "zone DE"]),
        (403, "", ["HTTP 403", "ELECTRICITYMAPS_TOKEN", "zone DE"]),
        (429, "", ["HTTP 429"]),
        (200, "<html>log in</html>", ["no JSON", "proxy"]),
        (200, '{"data": []}', ["not as its version 3", "'history'"]),
    ],
)
def test_one_message_says_what_is_wrong(
    server: Server, status: int, answer: str, named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server.status, server.answer, time_source = status, answer, VirtualTime()
    ElectricityMaps(
        *("DE", 380, "secret"),
        url=server.url,
        background=VirtualBackground(time_source),
        forecast_hours=24,
    )
    time_source.sleep(4 * HOUR)
    (message,) = [record.getMessage() for record in caplog.records]
    assert all(word in message for word in named), message
    assert "secret" not in message


def test_estimates_and_random_values_are_marked(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    first, second, _ = GOOD["history"]
    estimate = {**second, "isEstimated": True, "estimationMethod": "TIME_SLICER_AVERAGE"}  # type: ignore[dict-item]
    server.answer, time_source = json.dumps({"history": [first, estimate]}), VirtualTime()
    signal = live(server, time_source)
    assert signal.facts.source.endswith("1 of 2 values estimated")
    random = {**second, "isEstimated": True, "estimationMethod": "SANDBOX_MODE_DATA"}  # type: ignore[dict-item]
    server.answer = json.dumps({"history": [first, random]})
    time_source.sleep(4 * HOUR)
    assert signal.facts.source.endswith("random values of a token for tests")
    assert caplog.text.count("its token is for tests") == 1
    server.answer = json.dumps({"history": [first, second]})
    time_source.sleep(HOUR)
    assert signal.facts.source == "Electricity Maps, DE, life cycle"
