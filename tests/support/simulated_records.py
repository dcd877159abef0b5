"""Files of simulated runs of ten clusters, some of them damaged, and their sum by another way than the catalogue's."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from zeus_core.codec import encode
from zeus_core.training.account import Account
from zeus_core.training.record.run_records import DeviceRecord, PartRecord

__all__ = ["Kept", "independent_sums", "run_document", "simulated_files"]

BEGIN = 1_759_254_000.0  # 2025-09-30, 17:40 UTC: runs go on over the end of a month; 100,000 of them take 64 days
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
SUMS = ("runs", "millijoules", "tokens", "gpu_milliseconds", "low_gpu_milliseconds", "overlapping_runs")
CLUSTERS, NODES, USERS = 10, 40, 60
FIRST = 0.0987654321  # of the energy, in the first quarter of the time; with so many digits that nothing ends at a half
NOTHING = {"energy_joules": 0.0, "uncertainty_joules": 0.0, "method": "counted", "lost_because": None}


class Kept(NamedTuple):
    """A file; `document` is None where it is damaged."""

    name: str
    text: str
    document: dict[str, Any] | None


def _whole(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record in JSON types, with the defaults of those that are not given."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = encode(field.default_factory())
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = encode(field.default)
    return {**defaults, **fields}


def _tally(seconds: float, joules: float, off_joules: float) -> dict[str, Any]:
    measured = {**NOTHING, "energy_joules": joules, "uncertainty_joules": off_joules}
    return {"seconds": seconds, "measured": measured, "lost_seconds": 0.0}


def _energy_and_power(seconds: float, joules: float, off_joules: float) -> dict[str, Any]:
    power = [[0.0, 0.0], [seconds / 4, FIRST * joules], [seconds, joules]]
    return {"energy": _tally(seconds, joules, off_joules), "power": power}


def _part(
    rng: random.Random, place: tuple[int, int], begin: float, seconds: float, step: int, user: int | None = None
) -> dict[str, Any]:
    cluster, node = place
    begin, seconds = (round(1024 * each) / 1024 for each in (begin, seconds))  # whose sum is exact
    devices = [
        _whole(
            DeviceRecord,
            {"uuid": f"GPU-{cluster}-{node}-{number}", "index": number, "name": MODELS[cluster % 3]}
            | {"is_simulated": False, "driver": "570.1", "limit_watts": 400.0, "count": 1}
            | _energy_and_power(seconds, seconds * rng.uniform(80.0, 600.0), rng.uniform(0.1, 40.0)),
        )
        for number in range(rng.choice((1, 2)))
    ]
    user = rng.randrange(USERS) if user is None else user
    identity = {
        "user": f"user{user}",
        "job": f"{rng.randrange(10**6)}",
        "job_name": "train",
        "namespace": "",
        "pod": "",
    }
    identity |= {"project": f"project{user % 7}", "cluster": f"cluster{cluster}"}
    identity |= {"namespace": "", "tags": {"team": f"team{user % 5}"}}
    fields = {
        "name": f"{rng.getrandbits(128):032x}",
        "state": rng.choice(("ended", "ended", "ended", "failed", "running")),
        "begin_step": step,
        "step": step + 100,
        "begun_at_seconds": begin,
        "until_seconds": begin + seconds,
        "ranks": [{"host": f"node{node}", "devices": devices, "cpus": [], "account": None, "count": 1}],  # not unique
        "identity": identity,
    }
    return _whole(PartRecord, fields)


def _run(rng: random.Random, parts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    devices = [device for part in parts for device in part["ranks"][0]["devices"]]
    seconds = sum(part["until_seconds"] - part["begun_at_seconds"] for part in parts)
    joules = sum(device["energy"]["measured"]["energy_joules"] for device in devices)
    more = rng.choice((0.0, 0.0, 1234.5678))  # of a part that the file has no more
    off = sum(device["energy"]["measured"]["uncertainty_joules"] for device in devices)
    steps = _tally(seconds * 0.9, joules * 0.9, off)
    account = {
        "total": _tally(seconds, joules + more, off),
        "activities": {"steps": steps, "idle": _tally(seconds * 0.1, joules * 0.1, off)},
        "redone": _tally(0.0, 0.0, 0.0),
        "samples": 100,
        "tokens": rng.choice((0, rng.randrange(10**12))),
        "host": _tally(0.0, 0.0, 0.0),
        "charges": {},
        "interruptions": len(parts) - 1,
        "unrecorded_joules": 0.0 if len(parts) == 1 else 55.5,
    }
    electricity = None
    if rng.random() < 0.5:
        electricity = {"signals": [], "pue": 1.2, "location": None}
        for unit, basis, factor in (("g", "average", 380.0), (rng.choice(("EUR", "USD")), None, 0.3)):
            signal = {"unit": f"{unit}/kWh", "source": "a test", "basis": basis, "average": factor}
            amount = (joules + more) / 3.6e6 * factor
            electricity["signals"].append(signal)
            charge = {"amount": amount, "uncertainty": 0.01 * amount, "joules": joules, "stale_joules": 0.0}
            account["charges"][unit] = charge | {"missed_seconds": 0.0}
    fields: dict[str, Any] = {"saving_fraction": None, "saving_uncertainty": None, "electricity": electricity}
    fields |= {"run": name, "account": _whole(Account, account), "parts": parts}
    return {"format": "zeus-core run file", "version": 2, **fields}


def run_document(
    begin: float, pieces: list[tuple[float, float]], device: str = "GPU-0", name: str = "", **fields: Any
) -> dict[str, Any]:
    """Return the document of a run on one GPU.

    Args:
        begin: Seconds after the begin of all.
        pieces: Those of its time, each in seconds, and its power in watts.
        device: The GPU.
        name: That of the run; a new one if it is empty.
        fields: Fields of its part, its device (`power`, `limit_watts`) and its identity (`user`, `job`).
    """
    seconds, joules = sum(each for each, _ in pieces), sum(each * watts for each, watts in pieces)
    rng = random.Random(f"{begin} {pieces} {device} {fields}")
    part = _part(rng, (0, 0), BEGIN + begin, seconds, 0)
    of_device = {**part["ranks"][0]["devices"][0], "uuid": device, "energy": _tally(seconds, joules, 0.0)}
    places = (of_device, part["identity"], part)
    part["ranks"][0]["devices"] = [of_device]
    of_device["power"], part["state"] = [], "ended"
    for field, value in fields.items():
        next(place for place in places if field in place)[field] = value
    document = _run(rng, [part], name or f"{rng.getrandbits(128):032x}")
    document["account"]["total"] = _tally(seconds, joules, 0.0)
    return {**document, "electricity": None, "account": {**document["account"], "charges": {}}}


def simulated_files(seed: int, count: int) -> Iterator[Kept]:
    """Yield so many files, of which 1 % are damaged.

    They are of trainings, resumed ones twice, commands around one, and jobs of which 0 to 100 % are at the same time.
    """
    rng = random.Random(seed)
    free = {(cluster, node): BEGIN for cluster in range(CLUSTERS) for node in range(NODES)}
    number = 0
    while number < count:
        place = rng.choice(list(free)) if count < 1000 else (rng.randrange(CLUSTERS), rng.randrange(NODES))
        begin, seconds = free[place] + rng.uniform(0.0, 3600.0), rng.uniform(60.0, 20_000.0)
        name = f"{rng.getrandbits(128):032x}"
        user = rng.randrange(USERS)
        parts = [_part(rng, place, begin, seconds, 0, user)]
        documents = []
        kind = rng.random()
        if kind < 0.1:  # it was interrupted, and both files are there
            documents.append(_run(rng, [{**parts[0], "state": "running"}], name))
            parts.append(_part(rng, place, begin + seconds + 60.0, seconds, 100, user))
        elif kind < 0.2:  # by a command, which another file has
            outer = _part(rng, place, begin - 5.0, seconds + 10.0, 0)
            documents.append(_run(rng, [outer], f"{rng.getrandbits(128):032x}"))
        elif kind < 0.5:  # up to three jobs at a time
            for _ in range(rng.choice((1, 1, 2))):
                other = _part(rng, place, begin + seconds * rng.uniform(0.0, 1.0), seconds * rng.uniform(0.01, 1.0), 0)
                documents.append(_run(rng, [other], f"{rng.getrandbits(128):032x}"))
        documents.append(_run(rng, parts, name))
        if kind > 0.98:
            documents.append(documents[-1])  # a copy
        free[place] = begin + 2 * seconds + 120.0
        for document in documents:
            if number < count:
                yield _kept(rng, number, document)
                number += 1


def _kept(rng: random.Random, number: int, document: dict[str, Any]) -> Kept:
    name, text = f"{number // 1000}/{number}/zeus-energy/run.json", json.dumps(document)
    if rng.random() >= 0.01:
        return Kept(name, text, document)
    future = {**document, "parts": [{**part, "until_seconds": 9e9} for part in document["parts"]]}
    back = {**document, "parts": [{**part, "begun_at_seconds": 9e9} for part in document["parts"]]}
    damaged = (
        text[: rng.randrange(100, len(text))],
        text.replace('"version": 2', '"version": 99', 1),
        text.replace('"parts"', '"pieces"', 1),
        json.dumps(future),
        json.dumps(back),
    )
    return Kept(name, rng.choice(damaged), None)


def independent_sums(files: Iterable[Kept], by: str | None = None) -> dict[str, dict[str, int]]:
    """Add up the files by the words of the README, with Python's own numbers: no arrays, no codes, no sorting of rows.

    Args:
        files: All files, in any order.
        by: A name of an identity, "month", or None.
    """
    latest = _latest(files)
    sums: dict[str, dict[str, int]] = {}

    def add(group: str, name: str, amount: int) -> None:
        of_group = sums.setdefault(group, dict.fromkeys(SUMS, 0))
        of_group[name] += amount

    counting, overlapping = set(), set()
    for intervals in _intervals(latest, by).values():
        for each in intervals:
            begin, end, run, group = each.begin, each.end, each.run, each.group
            others = [other for other in intervals if other is not each and other.begin < end and begin < other.end]
            if others:
                overlapping.add((run, group))
            counted = 0
            for first, last in _uncovered(each, [other for other in others if other.order < each.order]):
                counted += last - first
                add(group, "millijoules", each.until(last) - each.until(first))
            if counted:
                counting.add(run)
            add(group, "gpu_milliseconds", counted)
            add(group, "low_gpu_milliseconds", round(each.low * (counted / (end - begin))))
    for _, group in overlapping:
        add(group, "overlapping_runs", 1)
    for name, run in latest.items():
        group = _group(run["parts"][0 if by == "month" else -1], by)
        devices = [device for part in run["parts"] for device in part["ranks"][0]["devices"]]
        own = sum(round(1000 * device["energy"]["measured"]["energy_joules"]) for device in devices)
        add(group, "runs", 1)
        add(group, "tokens", run["account"]["tokens"])
        if name in counting:
            add(group, "millijoules", round(1000 * run["account"]["total"]["measured"]["energy_joules"]) - own)
    return dict(sorted(sums.items()))


def _uncovered(interval: _Interval, others: list[_Interval]) -> Iterator[tuple[int, int]]:
    begin, end = interval.begin, interval.end
    edges = sorted({begin, end, *(min(max(at, begin), end) for other in others for at in other[:2])})
    for first, last in itertools.pairwise(edges):
        if not any(other.begin <= first and last <= other.end for other in others):
            yield first, last


def _group(part: dict[str, Any], by: str | None) -> str:
    if by == "month":
        return datetime.fromtimestamp(part["begun_at_seconds"], UTC).strftime("%Y-%m")
    return part["identity"][by] if by else "all"


def _latest(files: Iterable[Kept]) -> dict[str, dict[str, Any]]:
    latest: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.document is not None:
            name, until = file.document["run"], file.document["parts"][-1]["until_seconds"]
            if name not in latest or until > latest[name]["parts"][-1]["until_seconds"]:
                latest[name] = file.document
    return latest


class _Interval(NamedTuple):
    """What a device did in a part of a run: milliseconds, millijoules, and milliseconds at low power."""

    begin: int
    end: int
    run: str
    joules: int
    low: int
    group: str

    @property
    def order(self) -> tuple[int, int, str]:
        """The longest comes first."""
        return self.begin - self.end, self.begin, self.run

    def until(self, moment: int) -> int:
        """Return the energy until a moment: straight within each 16th of the time."""
        shares = [FIRST * k / 4 if k <= 4 else FIRST + (1 - FIRST) * (k - 4) / 12 for k in range(17)]
        place, rest = divmod((moment - self.begin) * 16, self.end - self.begin)
        here, after = (round(self.joules * shares[min(at, 16)]) for at in (place, place + 1))
        return here + (after - here) * rest // (self.end - self.begin)


def _intervals(latest: dict[str, dict[str, Any]], by: str | None) -> dict[str, list[_Interval]]:
    """Return what each device did."""
    taken: dict[str, list[_Interval]] = {}
    for run in latest.values():
        for part in run["parts"]:
            ends = int(part["begun_at_seconds"] * 1000 // 1), int(part["until_seconds"] * 1000 // 1)
            for device in part["ranks"][0]["devices"]:
                joules = round(1000 * device["energy"]["measured"]["energy_joules"])
                (_, _), (quarter, first), (last, all_) = device["power"]
                low = [quarter] * (first / quarter < 160.0) + [last - quarter] * (
                    (all_ - first) / (last - quarter) < 160.0
                )
                found = _Interval(*ends, run["run"], joules, round(1000 * sum(low)), _group(part, by))
                taken.setdefault(device["uuid"], []).append(found)
    return taken
