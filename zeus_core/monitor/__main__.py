"""`python -m zeus_core.monitor power|energy`: two commands of `zeus-core` under their published name."""

import sys

from zeus_core.cli.program import run_program

sys.exit(run_program(sys.argv[1:], "python -m zeus_core.monitor", ("power", "energy")))
