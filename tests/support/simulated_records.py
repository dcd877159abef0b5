"""Files of simulated runs of ten clusters, some of them damaged, and their sum by another way than the catalogue's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

__all__ = ["Kept", "independent_sums", "simulated_files"]

BEGIN = 1_759_254_000.0  # 2025-09-30, 17:40 UTC: runs go on over the end of a month; 100,000 of them take 64 days
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
SUMS = ("runs", "millijoules", "tokens", "gpu_milliseconds", "low_gpu_milliseconds")
CLUSTERS, NODES, USERS = 10, 40, 60
NOTHING = {"energy_joules": 0.0, "uncertainty_joules": 0.0, "method": "counted", "lost_because": None}


class Kept(NamedTuple):
    """A file; `document` is None where it is damaged."""

    name: str
    text: str
    document: dict[str, Any] | None


def _tally(seconds: float, joules: float, off_joules: float) -> dict[str, Any]:
    measured = {**NOTHING, "energy_joules": joules, "uncertainty_joules": off_joules}
    return {"seconds": seconds, "measured": measured, "lost_seconds": 0.0}


def _energy_and_power(seconds: float, joules: float, off_joules: float) -> dict[str, Any]:
    power = [[0.0, 0.0], [seconds / 4, joules / 10], [seconds, joules]]
    return {"energy": _tally(seconds, joules, off_joules), "power": power}


def _part(rng: random.Random, place: tuple[int, int], begin: float, seconds: float, step: int) -> dict[str, Any]:
    cluster, node = place
    devices = [
        {"uuid": f"GPU-{cluster}-{node}-{number}", "index": number, "name": MODELS[cluster % 3], "is_simulated": False}
        | {"driver": "570.1", "limit_watts": 400.0, "count": 1}
        | _energy_and_power(seconds, seconds * rng.uniform(80.0, 600.0), rng.uniform(0.1, 40.0))
        for number in range(rng.choice((1, 2)))
    ]
    user = rng.randrange(USERS)
    identity = {
        "user": f"user{user}",
        "job": f"{rng.randrange(10**6)}",
        "job_name": "train",
        "namespace": "",
        "pod": "",
    }
    identity |= {"project": f"project{user % 7}", "cluster": f"cluster{cluster}"}
    identity |= {"namespace": "", "tags": {"team": f"team{user % 5}"}}
    return {
        "name": f"{rng.getrandbits(128):032x}",
        "state": "ended",
        "begin_step": step,
        "step": step + 100,
        "begun_at_seconds": begin,
        "until_seconds": begin + seconds,
        "ranks": [{"host": f"node{node}", "devices": devices, "cpus": [], "account": None, "count": 1}],  # not unique
        "identity": identity,
    }


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
    fields = {"saving_fraction": None, "saving_uncertainty": None, "electricity": electricity}
    return {"format": "zeus-core run file", "version": 1, "run": name, "account": account, "parts": parts, **fields}


def simulated_files(seed: int, count: int) -> Iterator[Kept]:
    """Yield so many files: trainings, resumed ones twice, commands around one, two jobs at a time; 1 % are damaged."""
    rng = random.Random(seed)
    free = {(cluster, node): BEGIN for cluster in range(CLUSTERS) for node in range(NODES)}
    number = 0
    while number < count:
        place = rng.choice(list(free)) if count < 1000 else (rng.randrange(CLUSTERS), rng.randrange(NODES))
        begin, seconds = free[place] + rng.uniform(0.0, 3600.0), rng.uniform(60.0, 20_000.0)
        name = f"{rng.getrandbits(128):032x}"
        parts = [_part(rng, place, begin, seconds, 0)]
        documents = []
        kind = rng.random()
        if kind < 0.1:  # it was interrupted, and both files are there
            documents.append(_run(rng, [{**parts[0], "state": "running"}], name))
            parts.append(_part(rng, place, begin + seconds + 60.0, seconds, 100))
        elif kind < 0.2:  # by a command, which another file has
            outer = _part(rng, place, begin - 5.0, seconds + 10.0, 0)
            documents.append(_run(rng, [outer], f"{rng.getrandbits(128):032x}"))
        elif kind < 0.25:  # two jobs at a time
            other = _part(rng, place, begin + seconds * rng.uniform(0.1, 0.9), seconds, 0)
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
        text.replace('"version": 1', '"version": 99', 1),
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

    counting = set()
    for intervals in _intervals(latest, by).values():
        chosen: list[tuple[int, int]] = []
        for begin, end, run, joules, low, group in sorted(
            intervals, key=lambda each: (each[0] - each[1], each[0], each[2])
        ):
            if all(end <= other_begin or other_end <= begin for other_begin, other_end in chosen):
                chosen.append((begin, end))
                counting.add(run)
                add(group, "millijoules", joules)
                add(group, "gpu_milliseconds", end - begin)
                add(group, "low_gpu_milliseconds", low)
    for name, run in latest.items():
        group = _group(run["parts"][0 if by == "month" else -1], by)
        devices = [device for part in run["parts"] for device in part["ranks"][0]["devices"]]
        own = sum(round(1000 * device["energy"]["measured"]["energy_joules"]) for device in devices)
        add(group, "runs", 1)
        add(group, "tokens", run["account"]["tokens"])
        if name in counting:
            add(group, "millijoules", round(1000 * run["account"]["total"]["measured"]["energy_joules"]) - own)
    return dict(sorted(sums.items()))


def _group(part: dict[str, Any], by: str | None) -> str:
    if by == "month":
        return datetime.fromtimestamp(part["begun_at_seconds"], timezone.utc).strftime("%Y-%m")
    return part["identity"][by] if by else "all"


def _latest(files: Iterable[Kept]) -> dict[str, dict[str, Any]]:
    latest: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.document is not None:
            name, until = file.document["run"], file.document["parts"][-1]["until_seconds"]
            if name not in latest or until > latest[name]["parts"][-1]["until_seconds"]:
                latest[name] = file.document
    return latest


def _intervals(
    latest: dict[str, dict[str, Any]], by: str | None
) -> dict[str, list[tuple[int, int, str, int, int, str]]]:
    """Return begin, end, run, millijoules, milliseconds at low power and group of what each device did."""
    taken: dict[str, list[tuple[int, int, str, int, int, str]]] = {}
    for run in latest.values():
        for part in run["parts"]:
            ends = int(part["begun_at_seconds"] * 1000 // 1), int(part["until_seconds"] * 1000 // 1)
            for device in part["ranks"][0]["devices"]:
                joules = round(1000 * device["energy"]["measured"]["energy_joules"])
                group = _group(part, by)
                (_, _), (quarter, first), (last, all_) = device["power"]
                low = [quarter] * (first / quarter < 160.0) + [last - quarter] * (
                    (all_ - first) / (last - quarter) < 160.0
                )
                amounts = joules, round(1000 * sum(low))
                taken.setdefault(device["uuid"], []).append((*ends, run["run"], *amounts, group))
    return taken
