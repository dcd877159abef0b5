"""`zeus-core statement`: the energy of trainings as model cards, regulators and papers ask for it."""

from __future__ import annotations

import argparse
from functools import partial

from zeus_core.cli._report import read_runs, shown, write_output
from zeus_core.cli.arguments import path
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.errors import UsageError

SUMMARY = "State the energy of trainings for a model card, regulator or paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs",
        type=path,
        nargs="+",
        metavar="RUN",
        help="the output folder of a training, or its zeus-energy/run.json; several are added up",
    )
    parser.add_argument(
        "--format",
        choices=("markdown", "json", "yaml"),
        default="markdown",
        help="markdown (the default), json, or yaml: co2_eq_emissions alone, for a model card",
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="write to this file, in place of the terminal")
    parser.add_argument("--location", metavar="PLACE", help="where the computers are, such as 'Frankfurt, Germany'")
    parser.add_argument("--training-type", choices=("pre-training", "fine-tuning"), help="for the model card")
    add_electricity(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Write the statement."""
    from zeus_core.report.energy_statement import Statement, statement_of

    runs = read_runs(arguments.runs)
    if arguments.price is not None:
        raise UsageError("--price is given, and a statement has no cost; see zeus-core report")
    electricity = electricity_from(arguments)
    if len(runs) < len(arguments.runs):
        raise UsageError(
            "a sum without some of its runs states nothing; leave them out, or give those that can be read"
        )
    repeated = {run.run for _, run in runs}
    if len(repeated) < len(runs):
        raise UsageError("two of the runs are the same training, which would count twice; name it once")
    forms = {
        "markdown": Statement.to_markdown,
        "json": Statement.to_json,
        "yaml": Statement.to_yaml,
    }
    stated = partial(statement_of, runs, electricity, arguments.location, arguments.training_type)
    write_output(shown(lambda: forms[arguments.format](stated())), arguments.output)
    return 0
