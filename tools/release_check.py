"""Check that this checkout can be published: `make release-check`. One line a check, and 1 if one of them fails.

The wheel and the source distribution are built twice, at the time of the commit, and compared byte by byte. A version
is published from the tag `v` + version, and has a dated heading in the CHANGELOG.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("zeus_core", "zeus_huggingface", "zeus_lightning", "zeus_deepspeed")
FIELDS = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Classifier")


def changelog_fault(changelog: str, version: str) -> str | None:
    """Return what the heading of a version lacks."""
    heading = re.search(rf"^## {re.escape(version)} \((.*)\)$", changelog, re.MULTILINE)
    if heading is None:
        return f"CHANGELOG.md has no heading '## {version} (DATE)'"
    is_dated = re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1])
    return None if is_dated else f"CHANGELOG.md says {version} ({heading[1]}); give the date, such as 2026-11-30"


def tag_fault(tags: str, version: str) -> str | None:
    """Return what is wrong with the tags of the commit, one a line."""
    return None if f"v{version}" in tags.split() else f"this commit has no tag v{version}: git tag v{version}"


def wheel_fault(wheel: Path) -> str | None:
    """Return what a wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    files = [f"{package}/py.typed" for package in PACKAGES]
    files += ["zeus_core/_examples/huggingface/train_causal_lm.py"]
    lacking = [name for name in files if name not in names] + [name for name in FIELDS if not fields[name]]
    return f"{wheel.name} lacks {', '.join(lacking)}" if lacking else None


def source_fault(source: Path) -> str | None:
    """Return what a source distribution lacks."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "zeus_core/__init__.py",
        "examples/pytorch/toy.py",
    )
    lacking = [name for name in files if name not in names]
    return f"{source.name} lacks {', '.join(lacking)}" if lacking else None


def build(folder: Path) -> list[Path]:
    """Build both distributions, and return them in order of their names."""
    epoch = output("git", "log", "-1", "--format=%ct").strip()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def output(*command: str) -> str:
    """Return the output of a command in the checkout."""
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def twine_fault(files: list[Path]) -> str | None:
    """Return the complaint of `twine check`."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True)
    return None if ended.returncode == 0 else (ended.stdout + ended.stderr).strip()


def main() -> int:
    """Print each check."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        files, again = build(Path(first)), build(Path(second))
        wheel, source = sorted(files, key=lambda file: file.suffix, reverse=True)  # .whl, .gz
        version = wheel.name.split("-")[1]
        changed = [one.name for one, other in zip(files, again, strict=True) if one.read_bytes() != other.read_bytes()]
        faults = {
            "no uncommitted change": ", ".join(output("git", "status", "--porcelain").split("\n")[:-1]) or None,
            "twine check": twine_fault(files),
            "wheel": wheel_fault(wheel),
            "source distribution": source_fault(source),
            "reproducible": f"two builds differ: {', '.join(changed)}" if changed else None,
            "changelog": changelog_fault((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version),
            "tag": tag_fault(output("git", "tag", "--points-at", "HEAD"), version),
        }
    for name, fault in faults.items():
        print(f"{'ok' if fault is None else 'wrong':6} {name}" + ("" if fault is None else f": {fault}"))
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
