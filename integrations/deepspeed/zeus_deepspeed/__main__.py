"""Runs a training script with Perseus: `torchrun ... -m zeus_deepspeed train.py ...`.

The launcher of DeepSpeed puts its own options before the script, and they are passed on to it: `deepspeed --module
zeus_deepspeed train.py ...` arrives here as `--local_rank=0 train.py ...`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the script that the command line names, as Python itself would."""
    arguments = sys.argv[1:]
    script = next((argument for argument in arguments if not argument.startswith("-")), None)
    if script is None:
        raise SystemExit("usage: python -m zeus_deepspeed SCRIPT [ARGUMENT ...]")
    import zeus_deepspeed.auto  # noqa: F401 - enables Perseus on every engine whose configuration has the block

    arguments.remove(script)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
