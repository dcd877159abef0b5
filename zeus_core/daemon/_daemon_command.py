"""`zeus-core daemon`: set limits and clocks, and read CPU energies, for processes without permission."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from zeus_core.cli.arguments import path

PLACE = "For a machine or a cluster", 41
SUMMARY = "Set limits and clocks for users without root, and restore them"
EXAMPLE = "zeus-core daemon --simulate A100-SXM4-80GB:4 --socket rehearsal/daemon.sock"

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


def execute(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C."""
    from zeus_core.daemon._first_restoring import restore_first

    restored = [] if arguments.simulate else restore_first()  # before the rest is loaded, which takes 0.1 s
    from zeus_core.daemon._daemon import DaemonSettings, run_daemon
    from zeus_core.daemon._policy_file import find_policy
    from zeus_core.device.remote.protocol import REHEARSAL_SOCKET, socket_path

    logging.getLogger("zeus_core.daemon").setLevel(logging.INFO)
    policy = arguments.policy or find_policy(_POLICY)
    socket = arguments.socket or Path(REHEARSAL_SOCKET if arguments.simulate else socket_path())
    named = arguments.audit or (socket.parent / _AUDIT.name if arguments.simulate else _AUDIT)
    audit = None if named == "-" else Path(named)
    run_daemon(DaemonSettings(socket, policy, audit, simulated=arguments.simulate or ""), restored)
    return 0
