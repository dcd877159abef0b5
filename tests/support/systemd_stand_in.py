"""A stand-in for systemd, written for the tests: it runs one service as a unit file says, and no more than that.

It follows systemd.service(5), systemd.unit(5) and sd_notify(3) for Type=notify, ExecStart, Restart, RestartSec,
WatchdogSec, WatchdogSignal, TimeoutStartSec, TimeoutStartFailureMode, TimeoutStopSec, StartLimitIntervalSec and
StartLimitBurst. Users, confinement, control groups and everything else of a unit are ignored.
"""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import signal
import socket
import subprocess
import threading
import time

__all__ = ["StandInForSystemd"]

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0}
_FOREVER = 1e9
# systemd-system.conf(5)
_DEFAULTS = {
    "Restart": "no",
    "RestartSec": "100ms",
    "TimeoutStartSec": "90",
    "TimeoutStartFailureMode": "terminate",
    "TimeoutStopSec": "90",
    "WatchdogSec": "0",
    "WatchdogSignal": "SIGABRT",
    "StartLimitIntervalSec": "10",
    "StartLimitBurst": "5",
}


def seconds_of(text):
    number, unit = re.fullmatch(r"([\d.]+) *([a-z]*)", text).groups()
    return float(number) * _UNITS[unit]


class StandInForSystemd:
    """Runs one service until `stop`, in a thread.

    Args:
        unit: The text of the unit file.
        words: Returns the words to execute for those of ExecStart.
        environment: The variables of the service.
        folder: For its socket, and for `journal`, what the service says on standard error.
        stdout: The standard output of the service.
    """

    def __init__(self, unit, words, environment, folder, stdout=subprocess.DEVNULL):
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.optionxform = str
        parsed.read_string(unit)
        self.settings = {**_DEFAULTS, **parsed["Unit"], **parsed["Service"]}
        assert self.settings["Type"] == "notify"
        self.words = words(shlex.split(self.settings["ExecStart"]))
        self.environment = environment
        self.stdout = stdout
        self.journal = folder / "journal"
        self.events = []
        """Moments of `time.monotonic()` and what happened then: "started", "ready", "answered", "killed", "ended"."""
        self.main = None
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run)

    def start(self):
        self._thread.start()

    def stop(self):
        """`systemctl stop`: end the service, and wait for that."""
        self._is_stopping = True
        self._thread.join()
        self._notify.close()

    def times(self, what):
        return [moment for moment, event in list(self.events) if event == what]

    def _seconds(self, name):
        return seconds_of(self.settings[name])

    def _note(self, event):
        self.events.append((time.monotonic(), event))

    def _run(self):
        while True:
            self._spawn()
            self._supervise()
            self._note("ended")
            if self._is_stopping or self.settings["Restart"] != "always":
                return
            time.sleep(self._seconds("RestartSec"))
            recent = [
                at for at in self.times("started") if at > time.monotonic() - self._seconds("StartLimitIntervalSec")
            ]
            if len(recent) >= int(self.settings["StartLimitBurst"]):
                self._note("start limit hit")
                return

    def _spawn(self):
        environment = {**self.environment, "NOTIFY_SOCKET": self._notify.getsockname()}
        words = self.words
        if self._seconds("WatchdogSec"):
            environment["WATCHDOG_USEC"] = str(round(self._seconds("WatchdogSec") * 1e6))
            words = ["/bin/sh", "-c", 'export WATCHDOG_PID=$$; exec "$@"', "sh", *words]
        with self.journal.open("a") as journal:
            self.main = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=self.stdout, stderr=journal
            )
        self._note("started")

    def _supervise(self):
        """Wait for the end of the process, and bring it about where the unit says so."""
        deadline, is_ready, is_told_to_end = time.monotonic() + self._seconds("TimeoutStartSec"), False, False
        while self.main.poll() is None:
            message = self._receive()
            if "READY=1" in message:
                is_ready = True
                self._note("ready")
            if "WATCHDOG=1" in message:
                self._note("answered")
            if is_ready and not is_told_to_end and {"READY=1", "WATCHDOG=1"} & set(message):
                deadline = time.monotonic() + (self._seconds("WatchdogSec") or _FOREVER)
            if (self._is_stopping or "STOPPING=1" in message) and not is_told_to_end:
                is_told_to_end = True
                self.main.terminate()
                deadline = time.monotonic() + self._seconds("TimeoutStopSec")
            if time.monotonic() > deadline:
                deadline = time.monotonic() + self._seconds("TimeoutStopSec")
                self._end(is_ready, is_told_to_end)
                is_told_to_end = True

    def _end(self, is_ready, is_told_to_end):
        name = "SIGKILL"
        if is_ready and not is_told_to_end:
            name = self.settings["WatchdogSignal"]
        elif not is_told_to_end and self.settings["TimeoutStartFailureMode"] == "terminate":
            name = "SIGTERM"
        self._note("killed")
        self.main.send_signal(getattr(signal, name))

    def _receive(self):
        self._notify.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            return self._notify.recv(4096).decode().splitlines()
        return []
