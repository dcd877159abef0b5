"""Where the commands and options of before 0.1.0 are now, for messages; goes with the first release."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    # "devices": "zeus-core top --once",
}
"""What to type for each command that went."""

_BEST_HOUR = "zeus-core carbon says which hour is best to start, for `sbatch --begin` or `at`"

OPTIONS: dict[tuple[str, str], str] = {
    ("run", "--node-power"): "run measures GPUs, CPUs and memory; node_exporter reads the meter of a machine",
    ("run", "--step-pattern"): "--trainer finds steps in torch programs; TrainingEnergy measures a loop of your own",
    ("run", "--start-by"): _BEST_HOUR,
    ("run", "--deadline"): _BEST_HOUR,
    ("run", "--duration"): _BEST_HOUR,
}
"""What to do instead of each option of a command that went."""
