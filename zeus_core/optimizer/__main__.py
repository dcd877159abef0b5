"""`python -m zeus_core.optimizer` prints the phases of each optimizer, as diagrams in Mermaid's language."""

import sys

from zeus_core.optimizer.power_limit._phases import PHASES

DIAGRAMS = {"power-limit.md": PHASES.diagram()}
"""The diagram of each optimizer, by the page of the documentation that shows it."""

if __name__ == "__main__":
    for page, diagram in DIAGRAMS.items():
        sys.stdout.write(f"<!-- docs/{page} -->\n```mermaid\n{diagram}```\n")
