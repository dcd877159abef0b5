"""List the imports that go through the private doors of another package.

    python tools/private_doors.py [FOLDER...]

A module or folder whose name begins with an underscore, and a name that does, are private to the package they lie in:
only modules of that package, or of a package within it, may import them. The folders are those of the product; tests
are counted if they are named.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PRODUCT = ("zeus_core", "integrations")
OURS = ("zeus_core", "zeus_huggingface", "zeus_lightning", "zeus_deepspeed")


def private_imports(folders: tuple[str, ...] = PRODUCT) -> list[tuple[str, str]]:
    """Return each importing module with what it may not import."""
    return sorted(
        (importer, name)
        for folder in folders
        for path in (REPOSITORY / folder).rglob("*.py")
        for importer in [name_of(path)]
        for name in imported_by(path)
        if name.partition(".")[0] in OURS and not may_import(importer, name)
    )


def name_of(path: Path) -> str:
    """Return the dotted name of a module: by the folder that is on the path of Python."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[2:] if parts[0] == "integrations" else parts).removesuffix(".__init__")


def imported_by(path: Path) -> Iterator[str]:
    """Yield every name a file imports, wherever in the file it does: `a.b.c` for `from a.b import c`."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def may_import(importer: str, name: str) -> bool:
    """Return whether a module lies in the packages that hold the private parts of a name."""
    parts = name.split(".")
    for number, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            holder = parts[:number]
            if number == len(parts) - 1 and not is_module(name) and not is_package(holder):
                holder = holder[:-1]  # a name of a module is its package's
            if importer.split(".")[: len(holder)] != holder:
                return False
    return True


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module or a package."""
    return is_package(name.split(".")) or _path_of(name.split(".")).with_suffix(".py").exists()


def is_package(parts: list[str]) -> bool:
    """Return whether the parts of a dotted name are a package."""
    return (_path_of(parts) / "__init__.py").exists()


def _path_of(parts: list[str]) -> Path:
    home = {"zeus_huggingface": "huggingface", "zeus_lightning": "lightning", "zeus_deepspeed": "deepspeed"}
    root = REPOSITORY / "integrations" / home[parts[0]] if parts[0] in home else REPOSITORY
    return root.joinpath(*parts)


if __name__ == "__main__":
    found = private_imports(tuple(sys.argv[1:]) or PRODUCT)
    print(*(f"{importer} -> {name}" for importer, name in found), f"{len(found)} private doors", sep="\n")
