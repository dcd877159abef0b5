"""Where the commands and options of before 0.1.0 are now, for messages; goes with the first release."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "devices": "zeus-core top --once",
    "leases": "zeus-core top --once",
    "selfcheck": "zeus-core doctor --measure",
    "completion": "shtab --shell=bash zeus_core.cli.program.make_parser, after pip install shtab",
    "replay": "zeus-core jobs replay",
    "statement": "zeus-core report --format card, or json",
}
"""The command to type for each command that went."""

_BEST_HOUR = "zeus-core carbon says which hour is best to start, for `sbatch --begin` or `at`"
_ONE_SERIES = "keep one column of values, and the rows of one area, in the file; docs/electricity.md shows how"
_IN_FILE = "it follows the file's name: FILE,UNIT,ZONE, such as carbon.csv,g/kWh,UTC"
_DURATIONS = "give --duration 48h, the time at full power, and --deadline 60h, the longest time"
_ALLOCATE = "it is an argument of zeus_core.mixed.allocation.allocate"
_PROFILE = "it is an argument of zeus_core.mixed.allocation.DeviceProfile.from_csv"
_PLAN = "it is an argument of zeus_core.pipeline.make_plan"

OPTIONS: dict[tuple[str, str], str] = {
    **{
        (command, option): _ONE_SERIES
        for command in ("run", "report", "runs", "carbon")
        for option in ("--column", "--where")
    },
    ("allocate", "--eta"): f"{_ALLOCATE}: ZeusCost(eta_knob=0.5), the default here",
    ("allocate", "--max-batch"): "it is an argument of zeus_core.mixed.allocation.DeviceProfile.options",
    ("allocate", "--min-batch"): _ALLOCATE,
    ("allocate", "--multiple-of"): _ALLOCATE,
    ("allocate", "--objective"): f"{_ALLOCATE}: Energy() or Time()",
    ("allocate", "--pictures"): "the picture is SVG, and drawn with --output where matplotlib is installed",
    ("allocate", "--reduce-seconds"): _ALLOCATE,
    ("allocate", "--samples-per-epoch"): _PROFILE,
    ("allocate", "--where"): _PROFILE,
    ("carbon", "--begin"): "give a file that begins then: the gain is the mean of runs over all of it",
    ("carbon", "--hours"): _DURATIONS,
    ("carbon", "--signal"): "name the file first: zeus-core carbon FILE,UNIT,ZONE",
    ("carbon", "--slowdown"): _DURATIONS,
    ("carbon", "--unit"): _IN_FILE,
    ("carbon", "--zone"): _IN_FILE,
    ("daemon", "--drop-in"): "docs/hardware.md has the lines that write the drop-in",
    ("doctor", "--rapl-root"): "RAPL is read from /sys/class/powercap",
    ("energy", "--seconds"): "--once measures for one --period",
    ("exporter", "--intensity"): "Grafana multiplies the energy by the intensity: docs/grafana/zeus-core.json",
    ("exporter", "--labels"): "labels are fixed; ZEUS_TAGS=none in its environment names no job and no user",
    ("exporter", "--period"): "devices are read every 5 s, and whenever Prometheus scrapes",
    ("exporter", "--price"): "Grafana multiplies the energy by the price: docs/grafana/zeus-core.json",
    ("exporter", "--pue"): "multiply the intensity and the price in Grafana by it",
    ("exporter", "--textfile"): "Prometheus scrapes the exporter of a node, which counts short jobs, too",
    ("jobs replay", "--csv"): "--format csv prints it",
    ("jobs replay", "--power"): "name the file second: zeus-core jobs replay summary_train.csv summary_power_v100.csv",
    ("jobs replay", "--train"): "name the file first: zeus-core jobs replay summary_train.csv summary_power_v100.csv",
    ("jobs show", "--html"): "--format html prints the page",
    ("plan", "--device"): "PipelineProfile.check_clocks checks the clocks of a profile",
    ("plan", "--dwell-seconds"): _PLAN,
    ("plan", "--example"): "name the example as the profile: zeus-core plan gpt3-like",
    ("plan", "--node-power"): "it is an argument of zeus_core.pipeline.PipelineProfile.from_csv: node_power_watts",
    ("plan", "--pictures"): "pictures are SVG, and drawn with --output where matplotlib is installed",
    ("plan", "--precision"): "it is an argument of zeus_core.pipeline.Frontier.from_profile",
    ("plan", "--stages-per-rank"): "give it with the schedule: --schedule interleaved:4",
    ("plan", "--switch-joules"): _PLAN,
    ("plan", "--time"): f"--slowdown 10% bounds the time; {_PLAN}: time_seconds",
    ("power", "--count"): "it ends with --once after one view, and with Ctrl-C",
    ("predict", "--gpu"): "name the GPU alone: zeus-core predict A100",
    ("predict", "--gpu-hours"): "kWh are GPU hours times the power in kW; the saving is a share of them",
    ("predict", "--limits"): "give the limits in place of the GPU: zeus-core predict 100-350W",
    ("predict", "--work"): "--draw, the power of a GPU as it trains, narrows the range",
    ("report", "--any-baseline"): "give a baseline of the same GPUs and work",
    ("run", "--deadline"): _BEST_HOUR,
    ("run", "--duration"): _BEST_HOUR,
    ("run", "--node-power"): "run measures GPUs, CPUs and memory; node_exporter reads the meter of a machine",
    ("run", "--start-by"): _BEST_HOUR,
    ("run", "--step-pattern"): "--trainer finds steps in torch programs; TrainingEnergy measures a loop of your own",
    ("runs add", "--users-as-recorded"): "root's files are of whom they name: add them as root",
    ("runs export", "--output"): "name the file after the catalogue: zeus-core runs export catalogue all.parquet",
    ("runs report", "--output"): "name the file after the catalogue: zeus-core runs report catalogue page.html",
    ("runs", "--timezone"): "the variable TZ names the zone: TZ=Europe/Berlin zeus-core runs ...",
    ("top", "--job"): "--json is for programs that choose",
    ("top", "--sort"): "GPUs are in the order of their index; --json is for programs that sort",
    ("top", "--user"): "--json is for programs that choose",
}
"""The thing to do in place of each option that went, by its command, and by its mode where that decides."""

FORMATS: dict[str, str] = {"markdown": "text is Markdown"}
"""The thing to do in place of each format of `zeus-core report` that went."""
