"""`python -m zeus_core.optimizer` prints the phases of the search for a setting, as diagrams in Mermaid's language."""

import sys

from zeus_core.optimizer.global_setting.phases import PHASES, WINDOWS

DIAGRAMS = {
    "decisions/02-optimizers-are-tables.md": (PHASES.diagram(), WINDOWS.diagram()),
}
"""The diagrams, by the page of the documentation that shows them."""

if __name__ == "__main__":
    sys.stdout.writelines(
        f"<!-- docs/{name} -->\n```mermaid\n{text}```\n" for name, texts in DIAGRAMS.items() for text in texts
    )
