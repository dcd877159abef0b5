"""`python -m zeus_core.optimizer` prints the phases of each optimizer, as diagrams in Mermaid's language."""

import sys

from zeus_core.optimizer._global_setting._phases import PHASES as POWER_LIMIT_PHASES
from zeus_core.optimizer._global_setting._phases import WINDOWS
from zeus_core.optimizer.pipeline_frequency._phases import PHASES as PIPELINE_FREQUENCY_PHASES

DIAGRAMS = {
    "power-limit.md": (POWER_LIMIT_PHASES.diagram(), WINDOWS.diagram()),
    "pipeline.md": (PIPELINE_FREQUENCY_PHASES.diagram(),),
}
"""The diagrams of each optimizer, by the page of the documentation that shows them."""

if __name__ == "__main__":
    sys.stdout.writelines(
        f"<!-- docs/{name} -->\n```mermaid\n{text}```\n" for name, texts in DIAGRAMS.items() for text in texts
    )
