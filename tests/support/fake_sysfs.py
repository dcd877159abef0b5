"""A folder in the place of /sys with boards of AMD and Intel, as the kernel documents them; a test advances energies.

The tables of `gpu_metrics` are written out here, byte by byte, from the structs in the kernel's kgd_pp_interface.h.
"""

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# By revision: the header (size in two bytes, format, content), the whole size, the place of the power in watts (two
# bytes) and of the energy in 2^-16 J (eight bytes).
TABLES = {
    "1.1": (b"\x60\x00\x01\x01", 96, 22, 24),
    "1.2": (b"\x68\x00\x01\x02", 104, 22, 24),
    "1.3": (b"\x78\x00\x01\x03", 120, 22, 24),
    "1.4": (b"\x20\x01\x01\x04", 288, 10, 24),
    "1.5": (b"\x68\x01\x01\x05", 360, 10, 88),
    "1.6": (b"\x80\x06\x01\x06", 1664, 10, 16),
    "1.7": (b"\xa0\x08\x01\x07", 2208, 10, 24),
    "1.8": (b"\x20\x0d\x01\x08", 3360, 10, 24),
    "1.6 of another size": (b"\x48\x06\x01\x06", 1608, 10, 88),
    "1.9": (b"\x00\x02\x01\x09", 512, 10, 24),
    "2.3": (b"\x98\x00\x02\x03", 152, 40, 48),
}
IDLE_WATTS, STATIC_WATTS, BUSY_WATTS = 90.0, 100.0, 700.0
HIGHEST_WATTS, LOWEST_WATTS, DEFAULT_WATTS, ORIGINAL_WATTS = 750, 300, 750, 700


@dataclass
class Board:
    """One board, or one die of it: its folder, and what its sensors show."""

    folder: Path
    revision: str
    watts: float = IDLE_WATTS
    joules: float = 5000.0
    energy: str = "counts"  # or "zero", "frozen", "all-ones", "double"
    shows_power: bool = True
    clock_mhz: float = 1980.0
    busy_watts: float = BUSY_WATTS
    static_watts: float = STATIC_WATTS

    @property
    def hwmon(self) -> Path:
        return self.folder / "hwmon" / "hwmon3"

    @property
    def cap_watts(self) -> float:
        return int((self.hwmon / "power1_cap").read_text().strip() or "0") / 1e6

    def set_file(self, name: str, text: str) -> None:
        """Write a file so that a reader finds the old or the new text, and never a part."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{threading.get_ident()}")
        new.write_text(text)
        new.replace(path)

    def write(self) -> None:
        """Write the sensors."""
        self.set_file("hwmon/hwmon3/freq1_input", f"{round(self.clock_mhz * 1e6)}\n")
        header, size, power_at, energy_at = TABLES[self.revision]
        units = {"zero": 0, "frozen": 327_680_000, "all-ones": 2**64 - 1}.get(self.energy, int(self.joules * 65536))
        watts = round(self.watts) if self.shows_power else 0
        table = bytearray(size)
        table[:4] = header
        table[power_at : power_at + 2] = watts.to_bytes(2, "little")
        table[energy_at : energy_at + 8] = (units * (2 if self.energy == "double" else 1)).to_bytes(8, "little")
        new = self.folder / f".gpu_metrics.{threading.get_ident()}"
        new.write_bytes(table)
        new.replace(self.folder / "gpu_metrics")
        self.set_file("hwmon/hwmon3/power1_average", f"{round(self.watts * 1e6) if self.shows_power else 0}\n")

    def advance(self, seconds: float, watts: float | None = None) -> None:
        """Let some time pass, at a power."""
        self.watts = self.watts if watts is None else watts
        self.joules += self.watts * seconds
        self.write()

    def speed_and_watts(self) -> tuple[float, float]:
        """The speed of work at the limit, as a fraction of the highest, and its power."""
        watts = min(self.cap_watts, self.busy_watts)
        return ((watts - self.static_watts) / (self.busy_watts - self.static_watts)) ** (1 / 3), watts


@dataclass
class IntelBoard(Board):
    """A board of Intel: a register of 32 bits in 2^-14 J, which the driver adds up when `energy1_input` is read.

    `read_through` has a card of the product read it so; without it, the file is as fresh as the latest `advance`.
    """

    busy_watts: float = 270.0
    static_watts: float = 40.0
    driver: str = "xe"
    clamp_watts: int = 0
    channel: int = 1
    clock_file: str = "tile0/gt0/freq0/act_freq"
    _register: int = 0
    _sum: int = 0

    def write(self) -> None:
        register = int(self.joules * 2**14) % 2**32
        # As i915_hwmon.c has it: a unit less each time that it wraps around.
        self._sum += register - self._register if register >= self._register else 2**32 - 1 - self._register + register
        self._register = register
        self.set_file(f"hwmon/hwmon3/energy{self.channel}_input", f"{self._sum * 10**6 >> 14}\n")
        self.set_file(self.clock_file, f"{round(self.clock_mhz)}\n")
        limit = self.hwmon / f"power{self.channel}_max"
        if limit.exists() and 0 < int(limit.read_text()) < self.clamp_watts * 10**6:
            self.set_file(f"hwmon/hwmon3/power{self.channel}_max", f"{self.clamp_watts}000000\n")

    @property
    def cap_watts(self) -> float:
        return int((self.hwmon / f"power{self.channel}_max").read_text().strip() or "0") / 1e6

    def read_through(self, card):
        """Have a card ask the driver each time that it reads, and the board draw its power meanwhile unseen."""
        read = card.read

        def ask(name):
            if "energy" in name or "_max" in name:
                self.write()
            return read(name)

        card.read = ask
        return card


class FakeSysfs:
    """The tree. `root` takes the place of /sys, by `ZEUS_SYSFS`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sys"
        self.boards: list[Board] = []
        (self.root / "class" / "drm").mkdir(parents=True)

    def add(self, revision="1.8", *, model="0x74a1", name="AMD Instinct MI300X OAM", serial=True, **sensors) -> Board:
        """Add a board, the next on the bus."""
        number = len(self.boards)
        address = f"0000:{0xC1 + 5 * number:02x}:00.0"
        board = Board(self.root / "devices" / "pci0000:00" / address, revision, **sensors)
        for file, text in {
            "vendor": "0x1002\n",
            "device": f"{model}\n",
            "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={address}\n",
            "product_name": f"{name}\n",
            "hwmon/hwmon3/name": "amdgpu\n",
        }.items():
            board.set_file(file, text)
        if serial:
            board.set_file("unique_id", f"{0x51DE0000ABCD0000 + number:016x}\n")
        self.set_range(board, LOWEST_WATTS, HIGHEST_WATTS)
        board.set_file("hwmon/hwmon3/power1_cap_default", f"{DEFAULT_WATTS}000000\n")
        board.set_file("hwmon/hwmon3/power1_cap", f"{ORIGINAL_WATTS}000000\n")
        board.write()
        self._link(board)
        return board

    def add_intel(self, driver="xe", *, rated_watts=300, limit_watts=280, **sensors) -> IntelBoard:
        """Add a board of Intel, the next on the bus, with the sensors of a part of it beside its own."""
        number = len(self.boards)
        address = f"0000:{0x03 + number:02x}:00.0"
        board = IntelBoard(self.root / "devices" / "pci0000:00" / address, "none", driver=driver, **sensors)
        if driver == "i915":
            board.clock_file = f"drm/card{number}/gt_act_freq_mhz"
        files = {
            "vendor": "0x8086\n",
            "device": "0x56a0\n",
            "uevent": f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME={address}\n",
            "hwmon/hwmon2/name": f"{driver}_gt0\n",
            "hwmon/hwmon2/energy1_input": "1\n",
            "hwmon/hwmon3/name": f"{driver}\n",
            f"hwmon/hwmon3/power{board.channel}_rated_max": f"{rated_watts}000000\n",
            f"hwmon/hwmon3/power{board.channel}_max": f"{limit_watts}000000\n",
            "hwmon/hwmon3/temp2_input": "61000\n",
        }
        for file, text in files.items():
            board.set_file(file, text)
        board.write()
        self._link(board)
        return board

    def _link(self, board) -> None:
        card = self.root / "class" / "drm" / f"card{len(self.boards)}"
        card.mkdir()
        (card / "device").symlink_to(os.path.relpath(board.folder, card))
        self.boards.append(board)

    def add_second_die(self) -> Board:
        """Add a die that shows neither energy nor power, and accepts no limit."""
        die = self.add("1.3", model="0x740c", name="AMD Instinct MI250X", energy="zero", shows_power=False)
        for name in ("power1_cap", "power1_cap_default", "power1_cap_min", "power1_cap_max"):
            die.set_file(f"hwmon/hwmon3/{name}", "0\n")
        return die

    def set_range(self, board, lowest_watts, highest_watts):
        board.set_file("hwmon/hwmon3/power1_cap_min", f"{lowest_watts * 10**6}\n")
        board.set_file("hwmon/hwmon3/power1_cap_max", f"{highest_watts * 10**6}\n")

    def add_topology(self, *boards: Board) -> None:
        """Write ROCm's nodes: a CPU, and one for each board in this order; a board of several partitions repeats."""
        nodes = self.root / "class" / "kfd" / "kfd" / "topology" / "nodes"
        (nodes / "0").mkdir(parents=True)
        (nodes / "0" / "properties").write_text("cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\n")
        for number, board in enumerate(boards, 1):
            bus = int(board.folder.name[5:7], 16)
            partition = boards[: number - 1].count(board)
            serial = int((board.folder / "unique_id").read_text(), 16)
            (nodes / str(number)).mkdir()
            (nodes / str(number) / "properties").write_text(
                f"cpu_cores_count 0\nsimd_count 1216\nlocation_id {bus << 8 | partition << 28}\ndomain 0\n"
                f"unique_id {serial + partition}\n"
            )

    @classmethod
    def of(cls, *boards: Board) -> "FakeSysfs":
        """The tree of some boards that are there, in another process."""
        tree = cls.__new__(cls)
        tree.root, tree.boards = boards[0].folder.parents[2], list(boards)
        return tree

    def run(self, watts: float) -> "Running":
        """Let real time pass in a thread, at a power, until the block ends."""
        return Running(self.boards, watts)


class Running:
    """Boards that draw power in real time: at most their limit."""

    def __init__(self, boards, watts, period_seconds=0.01):
        self._boards, self._watts, self._period_seconds = boards, watts, period_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _work(self):
        last = time.monotonic()
        while not self._is_over.wait(self._period_seconds):
            now = time.monotonic()
            for board in self._boards:
                if board.shows_power:
                    board.advance(now - last, min(self._watts, board.cap_watts or self._watts))
            last = now


if __name__ == "__main__":  # a process that lets real time pass on a tree, until its input ends
    with FakeSysfs.of(*(Board(Path(folder).resolve(), "1.8") for folder in sys.argv[2:])).run(float(sys.argv[1])):
        sys.stdin.read()
