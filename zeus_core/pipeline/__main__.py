"""`python -m zeus_core.pipeline` prints the phases of the optimizer, as a diagram in Mermaid's language."""

import sys

from zeus_core.pipeline.optimizer.frequency_phases import PHASES

DIAGRAMS = {"decisions/02-optimizers-are-tables.md": (PHASES.diagram(),)}
"""The diagrams, by the page of the documentation that shows them."""

if __name__ == "__main__":
    sys.stdout.writelines(
        f"<!-- docs/{name} -->\n```mermaid\n{text}```\n" for name, texts in DIAGRAMS.items() for text in texts
    )
