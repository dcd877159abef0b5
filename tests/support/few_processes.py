"""A machine with few process ids, which are used again all the time."""

from zeus_core._identity import ProcessIdentity, ProcessTable


class FewProcesses(ProcessTable):
    """Processes of one boot, by id. None runs at first."""

    def __init__(self):
        self.began = {}
        self.ticks = 0

    def boot_id(self):
        return ProcessIdentity.current().boot_id

    def namespace(self):
        return "pid:[1]"

    def start_ticks(self, pid):
        if pid not in self.began:
            raise ProcessLookupError(pid)
        return self.began[pid]

    def begin(self, pid):
        """Start a process with an id; the one that had it, if any, has ended."""
        self.ticks += 1
        self.began[pid] = self.ticks
        return ProcessIdentity.of(pid, self)
