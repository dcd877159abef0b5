"""Where the commands and options of before 0.1.0 are now, for messages; goes with the first release."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "devices": "zeus-core top --once",
    "leases": "zeus-core top --once",
    "selfcheck": "zeus-core doctor --measure",
}
"""The command to type for each command that went."""

_BEST_HOUR = "zeus-core carbon says which hour is best to start, for `sbatch --begin` or `at`"
_ONE_SERIES = "keep one column of values, and the rows of one area, in the file; docs/electricity.md shows how"
_IN_FILE = "it follows the file's name: FILE,UNIT,ZONE, such as carbon.csv,g/kWh,UTC"
_DURATIONS = "give --duration 48h, the time at full power, and --deadline 60h, the longest time"

OPTIONS: dict[tuple[str, str], str] = {
    **{
        (command, option): _ONE_SERIES
        for command in ("run", "report", "statement", "runs", "runs sum", "runs report", "carbon")
        for option in ("--column", "--where")
    },
    ("carbon", "--signal"): "name the file first: zeus-core carbon FILE,UNIT,ZONE",
    ("carbon", "--unit"): _IN_FILE,
    ("carbon", "--zone"): _IN_FILE,
    ("carbon", "--hours"): _DURATIONS,
    ("carbon", "--slowdown"): _DURATIONS,
    ("carbon", "--begin"): "give a file that begins then: the gain is the mean of runs over all of it",
    ("run", "--node-power"): "run measures GPUs, CPUs and memory; node_exporter reads the meter of a machine",
    ("run", "--step-pattern"): "--trainer finds steps in torch programs; TrainingEnergy measures a loop of your own",
    ("run", "--start-by"): _BEST_HOUR,
    ("run", "--deadline"): _BEST_HOUR,
    ("run", "--duration"): _BEST_HOUR,
    ("doctor", "--rapl-root"): "RAPL is read from /sys/class/powercap",
    ("power", "--count"): "it ends with --once after one view, and with Ctrl-C",
    ("energy", "--seconds"): "--once measures for one --period",
    ("top", "--sort"): "the order is that of the index; --json is for programs that sort",
    ("top", "--user"): "--json is for programs that choose",
    ("top", "--job"): "--json is for programs that choose",
    ("exporter", "--intensity"): "Grafana multiplies the energy by the intensity: docs/grafana/zeus-core.json",
    ("exporter", "--price"): "Grafana multiplies the energy by the price: docs/grafana/zeus-core.json",
    ("exporter", "--pue"): "multiply the intensity and the price in Grafana by it",
    ("exporter", "--period"): "devices are read every 5 s, and whenever Prometheus scrapes",
    ("exporter", "--labels"): "labels are fixed; ZEUS_IDENTITY=none in its environment names no job and no user",
    ("exporter", "--textfile"): "Prometheus scrapes the exporter of a node, which counts short jobs, too",
}
"""The thing to do in place of each option that went, by its command."""
