"""The boxes that the end of training shows on standard error."""

import re

from zeus_core.search import GridSearch

ENERGY = ["measured on", "energy", "steps", "per sample", "spent on"]
LIMIT = ["power limit", "saving", "slowdown", "per step", "search"]
QUICK = {"search": GridSearch, "wait_steps": 0, "warmup_steps": 0, "profile_steps": 2, "pl_step": 125}
SEARCH_STEPS = 4 * 2  # of three limits from 350 W down, and the confirmation


def boxes(capsys):
    """Return what was shown since the previous call, box by box."""
    return capsys.readouterr().err.split("+- zeus-core ")[1:]


def rows(box):
    """Return the rows of a box; a long one goes on in further lines."""
    found = {}
    for label, text in re.findall(r"^\| (\S.*?|)  +(\S.*?) *\|$", box, re.MULTILINE):
        label = label or list(found)[-1]
        found[label] = f"{found[label]} {text}" if label in found else text
    return found


def check_search_of_example(printed):
    """See that an example, which searches from 400 W, shows one result.

    Its steps take real time: beside other processes they spread, and a search then takes longer than the run, or knows
    of no limit that is worth it.
    """
    ends = (
        r"\S.* W (is|was) (the best|chosen) of \d+ tried, of \d+|search unfinished: \d|(back at )?the original 400 W: "
    )
    assert printed.count("| power limit") == 1, printed
    assert re.match(ends, rows(printed)["power limit"]), printed


def labels(box):
    """Return what the lines of a box are about, in order, without the one that only a busy machine shows."""
    return [label for label in rows(box) if label != "in hooks"]
