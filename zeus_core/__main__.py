"""`python -m zeus_core`: the command line."""

import sys

from zeus_core.cli import main

sys.exit(main())
