#!/bin/sh
# Before a job, as root on each node: slurm.conf has Prolog=/etc/slurm/zeus-core-prolog.sh, a copy of this file.
# Restores what an earlier job may have left. It never fails: Slurm would drain the node.
# Defaults of the site need nothing here: programs read /etc/zeus-core/defaults.json (docs/deployment.md).
ZEUS_CORE=${ZEUS_CORE:-/opt/zeus-core/bin/python -I -m zeus_core}

$ZEUS_CORE restore --stale 2>&1 | logger -t zeus-core 2>/dev/null
exit 0
