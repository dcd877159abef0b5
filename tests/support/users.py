"""Another user of the same machine, for tests that run as root: what that user has prepared must not harm us."""

import os
import shutil
import tempfile
import traceback
from pathlib import Path

import pytest

OTHER_USER = 65534  # nobody

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="NOT TESTED: files of another user can only be prepared by root; run these tests as root in a container",
)


def as_other_user(action):
    """Call a function in a child process that is the other user's, and wait for it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture
def common_folder():
    """A folder like /tmp: everybody may write to it, and nobody may remove the files of others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # those of pytest are closed to other users
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
