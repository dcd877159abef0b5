"""The command line `zeus-core`: one module per command, and `main`.

Importing it loads neither the driver's binding nor the measuring parts: a command imports what it needs when it runs.
"""

from zeus_core.cli.program import main

__all__ = ["main"]
