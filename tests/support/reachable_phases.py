"""The phases of a table that can be reached."""


def reachable(table):
    """Return the phases that some sequence of happenings leads to."""
    reached = set()
    added = {table.first, *table.from_every_phase.values()}
    while added:
        reached |= added
        added = {after for (before, _), after in table.transitions.items() if before in reached} - reached
    return reached
