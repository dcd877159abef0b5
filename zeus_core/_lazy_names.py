"""Names that a package imports on their first use."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def imported_on_use(
    package: str, homes: "Mapping[str, str]"
) -> "tuple[Callable[[str], object], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` of a package.

    A package hides them from type checkers, which would take every name for one of it.

    Args:
        package: Its name.
        homes: The module of each name. A module of the package is its own.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        home = homes[name]
        module = importlib.import_module(home)
        return module if home == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        import sys

        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
