"""Checks that the lines of a result do not contradict each other, and timings that other work has disturbed."""

import math
import re

_SLOWDOWN = re.compile(r"(?P<value>[+-][\d.]+)% ±(?P<off>[\d.]+|\?) (?P<what>time per step|over the run)")
_SAVING = re.compile(r"(?P<value>-?[\d.]+)% ±(?P<off>[\d.]+|\?)")
_ROUNDING = 0.11  # of two numbers with one decimal each


def noise_factors(random, count):
    """Return by how much each of some steps takes longer: single steps, blocks or whole phases of them, or none."""
    kind = random.choice(["none", "steps", "blocks", "phases"])
    factors, factor, left = [], 1.0, 0
    for _ in range(count):
        if left == 0 and kind in ("blocks", "phases"):
            left = random.randint(5, 40) if kind == "blocks" else random.randint(count // 5, count // 2)
            factor = random.choice([1.0, random.uniform(1.0, 2.5)])
        left -= 1
        share = 0.1 if kind == "steps" else 0.02
        factors.append(factor * (random.uniform(1.0, 2.5) if random.random() < share else 1.0))
    return [1.0] * count if kind == "none" else factors


def check_result(rows, selector, original):
    """See that the line on the choice says no more, and no less, than the numbers beside it.

    Args:
        rows: The result as labelled lines.
        selector: The rule, in words.
        original: The original setting in words, such as "400 W".

    Returns:
        The verdict of the line: True, False or None; "original" if that was chosen, "unkept" if it is to return,
        "unfinished" if nothing was chosen.
    """
    line = rows["power limit"]
    ends = {"search unfinished": "unfinished", f"the original {original}": "original", "back at": "original"}
    for beginning, name in ends.items():
        if line.startswith(beginning):
            return name
    if "is not kept" in line:
        unkept = _SAVING.search(rows.get("saving", ""))
        assert unkept is None or _interval(unkept)[0] <= _ROUNDING, rows
        return "unkept"
    verdict = True if " is the best of " in line else False if ", but " in line else None
    assert verdict or " is chosen of " in line, line
    factor = re.search(r"(?:MaxSlowdownConstraint\(factor|EnergyWithin\(slowdown)=([\d.]+)\)", selector)
    if factor or selector == "Time()":
        _check_bound(rows, line, verdict, float(factor[1]) if factor else 1.005)
    saving = _SAVING.search(rows.get("saving", ""))
    saved = (-math.inf, math.inf) if saving is None else _interval(saving)
    if verdict and (factor or selector == "Energy()"):
        assert saved[1] >= -_ROUNDING, rows
    if verdict and selector == "Energy()":
        assert saved[0] >= -_ROUNDING, rows
    if "took more energy" in line or (verdict is False and selector == "Energy()"):
        assert saved[1] <= _ROUNDING, rows
    return verdict


def _check_bound(rows, line, verdict, factor):
    bound = 100 * (factor - 1)
    slowdowns = {found["what"]: _interval(found) for found in _SLOWDOWN.finditer(rows.get("slowdown", ""))}
    low, high = slowdowns.get("over the run") or slowdowns.get("time per step") or (-math.inf, math.inf)
    if verdict:
        assert high <= bound + _ROUNDING, rows
        is_for_run = "whose bound the run kept" in line and "over the run" in slowdowns
        assert is_for_run or all(one <= bound + _ROUNDING for one, _ in slowdowns.values()), rows
    elif verdict is None:
        assert low - _ROUNDING <= bound <= high + _ROUNDING, rows
    elif "took more energy" not in line:
        assert low >= bound - _ROUNDING, rows


def _interval(found):
    off = math.inf if found["off"] == "?" else float(found["off"])
    return float(found["value"]) - off, float(found["value"]) + off
