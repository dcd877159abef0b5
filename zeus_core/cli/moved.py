"""Where the commands and options of before 0.1.0 are now, for messages; goes with the first release."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "devices": "zeus-core top --once",
    "leases": "zeus-core top --once",
    "selfcheck": "zeus-core doctor --measure",
}
"""What to type for each command that went."""

OPTIONS: dict[tuple[str, str], str] = {
    ("doctor", "--rapl-root"): "RAPL is read from /sys/class/powercap",
    ("power", "--count"): "it ends with --once after one view, and with Ctrl-C",
    ("energy", "--seconds"): "--once measures for one --period",
    ("top", "--sort"): "the order is that of the index; --json is for programs that sort",
    ("top", "--user"): "--json is for programs that choose",
    ("top", "--job"): "--json is for programs that choose",
    # ("run", "--column"): "name the column in the file's argument",
}
"""What to do instead of each option of a command that went."""
