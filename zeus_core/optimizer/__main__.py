"""`python -m zeus_core.optimizer` prints the phases of each optimizer, as diagrams in Mermaid's language."""

import sys

from zeus_core.optimizer.power_limit._phases import PHASES

for table in (PHASES,):
    sys.stdout.write(f"```mermaid\n{table.diagram()}```\n")
