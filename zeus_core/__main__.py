"""`python -m zeus_core`: the command line."""

import sys

if sys.argv[1:2] == ["daemon"] and sys.platform == "linux":
    from zeus_core.settings.first_stage import restore_left_behind

    restore_left_behind()

from zeus_core.cli import main

sys.exit(main())
