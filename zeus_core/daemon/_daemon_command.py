"""`zeus-core daemon`: set limits and clocks, and read CPU energies, for processes without the right."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from zeus_core.cli.arguments import path
from zeus_core.cli.text import write
from zeus_core.errors import NoDeviceError

SUMMARY = "Set limits and clocks for users without the right, and restore them"

_POLICY, _AUDIT = Path("/etc/zeus-core/daemon.toml"), Path("/var/log/zeus-core/audit.jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--socket", type=path, metavar="PATH", help="its socket (/run/zeus-core-socket/daemon.sock)")
    parser.add_argument("--policy", type=path, metavar="PATH", help=f"who may do what ({_POLICY}, if it exists)")
    parser.add_argument("--audit", metavar="PATH", help=f"the log of all changes ({_AUDIT}); - is standard output")
    parser.add_argument(
        "--simulate",
        metavar="A100-SXM4-80GB:4",
        help="serve simulated GPUs, beside a daemon of the machine's, with its log and ledger beside its socket "
        "(/run/zeus-core/rehearsal/daemon.sock); for clients with ZEUS_SIMULATED_GPUS=daemon",
    )
    parser.add_argument(
        "--drop-in",
        action="store_true",
        help="print the lines that let the service write the limits of GPUs whose driver shows them as files, and end",
    )
    parser.add_argument("--rapl-root", type=path, metavar="PATH", help="where /sys/class/powercap is, if elsewhere")


def execute(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C."""
    from zeus_core.daemon._daemon import Settings, run_daemon
    from zeus_core.daemon._policy_file import find_policy
    from zeus_core.device.rapl.powercap import POWERCAP_ROOT
    from zeus_core.device.remote.protocol import REHEARSAL_SOCKET, socket_path

    if arguments.drop_in:
        write(_drop_in(), sys.stdout)
        return 0
    logging.getLogger("zeus_core.daemon").setLevel(logging.INFO)
    policy = arguments.policy or find_policy(_POLICY)
    socket = arguments.socket or Path(REHEARSAL_SOCKET if arguments.simulate else socket_path())
    named = arguments.audit or (socket.parent / _AUDIT.name if arguments.simulate else _AUDIT)
    audit = None if named == "-" else Path(named)
    run_daemon(Settings(socket, policy, audit, arguments.rapl_root or POWERCAP_ROOT, arguments.simulate or ""))
    return 0


def _drop_in() -> str:
    """Return a drop-in for the unit: /sys stays read-only, but for these very files. One that is gone does no harm."""
    from zeus_core.device import discover_gpus

    files = dict.fromkeys(path for gpu in discover_gpus({}) if (path := getattr(gpu, "limit_path", None)) is not None)
    if not files:
        raise NoDeviceError("no GPU has its power limit in a file: the unit needs no drop-in")
    return "\n".join(["[Service]", *(f"ReadWritePaths=-{file}" for file in files)])
