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

_ONE_SERIES = "keep one column of values, and the rows of one area, in the file; docs/electricity.md shows how"
_ALLOCATE = "it is an argument of zeus_core.mixed.allocation.allocate, or of DeviceProfile: docs/mixed-gpus.md"
_PLAN = "it is an argument of zeus_core.pipeline: of make_plan, Frontier.from_profile or PipelineProfile.from_csv"
_CARBON = "zeus-core carbon FILE,UNIT,ZONE --duration 48h, the time at full power, and --deadline 60h, the longest"
_TRACES = "name the files: zeus-core jobs replay summary_train.csv summary_power_v100.csv"
_GRAFANA = "Grafana multiplies the energy by intensity, price and PUE: docs/grafana/zeus-core.json"

# The command, with its mode where that decides, and options that went; then the thing to do in their place.
_PLACES = {
    "allocate --eta --max-batch --min-batch --multiple-of --objective": _ALLOCATE,
    "allocate --reduce-seconds --samples-per-epoch --where": _ALLOCATE,
    "allocate --pictures": "pictures are SVG, and drawn with --output where matplotlib is installed",
    "carbon --begin --hours --signal --slowdown --unit --zone": _CARBON,
    "carbon --column --where": _ONE_SERIES,
    "daemon --drop-in": "docs/hardware.md has the lines that write the drop-in",
    "doctor --rapl-root": "RAPL is read from /sys/class/powercap",
    "energy --seconds": "--once measures for one --period",
    "exporter --intensity --price --pue": _GRAFANA,
    "exporter --labels --period --textfile": "Prometheus scrapes it, and its labels are fixed: docs/exporters.md",
    "jobs replay --csv": "--format csv prints it",
    "jobs replay --power --train": _TRACES,
    "jobs show --html": "--format html prints the page",
    "plan --device --dwell-seconds --node-power --precision --switch-joules --time": _PLAN,
    "plan --example": "name the example as the profile: zeus-core plan gpt3-like",
    "plan --pictures": "pictures are SVG, and drawn with --output where matplotlib is installed",
    "plan --stages-per-rank": "give it with the schedule: --schedule interleaved:4",
    "power --count": "it ends with --once after one view, and with Ctrl-C",
    "predict --gpu": "name the GPU alone: zeus-core predict A100",
    "predict --gpu-hours": "kWh are GPU hours times the power in kW; the saving is a share of them",
    "predict --limits": "give the limits in place of the GPU: zeus-core predict 100-350W",
    "predict --work": "--draw, the power of a GPU as it trains, narrows the range",
    "report --any-baseline": "give a baseline of the same GPUs and work",
    "report --column --where": _ONE_SERIES,
    "run --column --where": _ONE_SERIES,
    "run --deadline --duration --start-by": "zeus-core carbon says which hour is best, for `sbatch --begin` or `at`",
    "run --node-power": "run measures GPUs, CPUs and memory; node_exporter reads the meter of a machine",
    "run --step-pattern": "--trainer finds steps in torch programs; TrainingEnergy measures a loop of your own",
    "runs --column --where": _ONE_SERIES,
    "runs --timezone": "the variable TZ names the zone: TZ=Europe/Berlin zeus-core runs ...",
    "runs add --users-as-recorded": "root's files are of whom they name: add them as root",
    "runs export --output": "name the file after the catalogue: zeus-core runs export catalogue all.parquet",
    "runs report --output": "name the file after the catalogue: zeus-core runs report catalogue page.html",
    "top --job --sort --user": "--json is for programs that choose and sort",
}

OPTIONS: dict[tuple[str, str], str] = {
    (command, f"--{option}"): place
    for words, place in _PLACES.items()
    for command, *options in [words.split(" --")]
    for option in options
}
"""The thing to do in place of each option that went, by its command, and by its mode where that decides."""

FORMATS: dict[str, str] = {"markdown": "text is Markdown"}
"""The thing to do in place of each format of `zeus-core report` that went."""
