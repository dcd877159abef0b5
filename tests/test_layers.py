"""The allowed imports between layers, and public lists that are complete."""

import ast
import importlib.util
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import zeus_core

CORE = Path(zeus_core.__file__).parent
REPOSITORY = CORE.parent
MODULES = sorted(path for path in CORE.rglob("*.py") if path.name != "__main__.py")  # entrances, above everything
PACKAGES = sorted([*CORE.rglob("__init__.py"), *REPOSITORY.glob("integrations/*/*/__init__.py")])

FRAMEWORKS = {
    *("torch", "jax", "cupy", "tensorflow"),
    *("transformers", "accelerate", "trl", "peft", "datasets"),
    *("lightning", "pytorch_lightning", "deepspeed", "megatron", "torchtitan"),
}
INTEGRATIONS = {"zeus_huggingface", "zeus_lightning", "zeus_deepspeed"}

# The drawing of ARCHITECTURE.md: each part of the core with the parts it may import.
VALUES = {"errors", "units", "measurement", "_lazy_names"}
TOOLS = {"codec", "validate", "files", "_documents", "_identity", "_nvml", "_sysfs", "process"}
BASE = {*VALUES, *TOOLS, "_launch", "ports", "events", "adapters"}
WINGS = {
    "daemon",
    "jobs",
    "mixed",
    "pipeline",
    "runs",
    "selfcheck",
}  # products of their own: no part of the core, and no other wing, imports one
MAY_NAME_WINGS = {"zeus_core.optimizer"}  # for the types of its lazy table
# The folders that import torch.
TORCH = (
    "zeus_core.pytorch",
    "zeus_core.mixed.levelling.work_end",
    "zeus_core.selfcheck.check_load",
    "zeus_core.batches.pytorch",
    "zeus_core.pipeline.taps",
)
KINDS = "kinds"  # what devices, files and searches call by name
PLANNER = "pipeline.planner"  # pure, and below the rest of its wing
TAPS, FAKES = "pipeline.taps", "pipeline.testing"
FOLDERS_APART = {name: name for name in (PLANNER, TAPS, FAKES)} | {
    "pipeline.schedules": PLANNER,
    "pipeline.baselines": PLANNER,
}
PURE = {"search", "electricity"}
MEASURING = {*BASE, KINDS, "device", "settings", "attribution", "monitor"}
OPTIMIZING = {*MEASURING, *PURE, "optimizer"}
MAY_IMPORT: dict[str, set[str]] = {
    **{part: {*VALUES, *TOOLS} for part in (*VALUES, *TOOLS)},
    "_launch": set(),  # it is loaded in programs that train nothing
    "_start": {"_launch"},
    "ports": {*VALUES, *TOOLS, "_launch"},
    "events": {*VALUES, "validate", "ports"},
    "adapters": {*VALUES, *TOOLS},
    KINDS: {*VALUES, *TOOLS},
    "device": {*BASE, KINDS},
    "settings": {*BASE, KINDS, "device"},
    "daemon": {*BASE, KINDS, "device", "settings", "cli"},
    "attribution": {*VALUES, *TOOLS},
    "monitor": {*BASE, "device", "attribution"},
    **{part: {*VALUES, *TOOLS} for part in PURE},
    "electricity": {*VALUES, *TOOLS, "ports"},  # a live source works in the background
    "search": {*VALUES, *TOOLS, KINDS},
    "optimizer": {*MEASURING, *PURE},
    "tracing": {*BASE, "device", "attribution", "monitor"},
    "training": {*OPTIMIZING, "tracing"},
    "pytorch": {*OPTIMIZING, "training"},
    "selfcheck": {*OPTIMIZING, "training", "pytorch", "cli"},  # torch only where a load runs
    "exporter": {*BASE, "device", "monitor", "settings", "training", "electricity"},
    "report": {*OPTIMIZING, "tracing", "training"},
    "cli": {*OPTIMIZING, "tracing", "training", "report", "exporter"},
    PLANNER: {*VALUES, *TOOLS},
    "pipeline": {*OPTIMIZING, PLANNER, "tracing", "training", "report", "cli"},
    TAPS: {*OPTIMIZING, "pipeline", "pytorch"},
    FAKES: {*OPTIMIZING, PLANNER, "pipeline", "testing"},
    "testing": {*OPTIMIZING, "training"},
    "jobs": {*OPTIMIZING, "training", "report", "cli"},
    "mixed": {*OPTIMIZING, "training", "pytorch", "report", "cli"},
    "runs": {*OPTIMIZING, "training", "report", "exporter", "cli"},
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """The part of the core a module belongs to: "device" of "zeus_core.device.gpu", "" of "zeus_core" itself."""
    apart = (part for name, part in FOLDERS_APART.items() if module.startswith(f"zeus_core.{name}"))
    return next(apart, [*module.split("."), ""][1])


def imported_by(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield from imported_in(node, path)


def imported_in(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
        module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        if module == "zeus_core":
            yield from (f"zeus_core.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
        else:
            yield module


def top_level(module: str) -> str:
    return module.partition(".")[0]


def parts_imported_by(path: Path) -> set[str]:
    """The other parts of the core a file imports, and wings, unless it may name those."""
    parts = {part_of(module) for module in imported_by(path) if top_level(module) == "zeus_core"}
    return parts - {part_of(name_of(path))} - (WINGS if name_of(path) in MAY_NAME_WINGS else set())


def modules_of(part: str) -> list[Path]:
    return [path for path in MODULES if part_of(name_of(path)) == part]


def bound_in(statements: list[ast.stmt]) -> Iterator[str]:
    """The names these statements of a module bind; modules themselves (`import x`) do not count."""
    for node in statements:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and node.module not in {"__future__", "typing"}:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from bound_in([*node.body, *node.orelse])


def public_list_of(tree: ast.Module) -> list[str]:
    """The value of `__all__`; empty without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_every_part_of_the_core_has_its_place_in_the_drawing():
    parts = {part_of(name_of(path)) for path in MODULES} - {""}
    assert parts <= MAY_IMPORT.keys()


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_run_downward_only(part):
    upward = {(name_of(path), other) for path in modules_of(part) for other in parts_imported_by(path)}
    assert {pair for pair in upward if pair[1] not in MAY_IMPORT[part]} == set()


def test_the_core_imports_no_wing_and_no_wing_another():
    """The table of commands names modules of wings as text."""
    found = {
        (name_of(path), part)
        for path in MODULES
        for part in parts_imported_by(path)
        if top_level(part) in WINGS - {top_level(part_of(name_of(path)))}
    }
    assert found == set()


@pytest.mark.parametrize("folder", ["zeus_core.jobs.policies", "zeus_core.mixed.allocation"])
def test_the_planners_of_wings_are_pure(folder):
    allowed = {*VALUES, *TOOLS, KINDS, "search", folder.split(".")[1]}
    paths = [path for path in MODULES if name_of(path).startswith(folder)]
    outside = {(name_of(path), part) for path in paths for part in parts_imported_by(path) - allowed}
    assert outside == set()


def test_no_two_parts_import_each_other_even_in_a_round_about_way():
    graph = {part: {other for path in modules_of(part) for other in parts_imported_by(path)} for part in MAY_IMPORT}
    TopologicalSorter(graph).prepare()  # raises CycleError


def modules_imported_by(path: Path) -> set[str]:
    """The modules of the core a file imports: `from package import name` names the module, if the name is one."""
    known = {name_of(module) for module in MODULES}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for module in imported_in(node, path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            imported |= {f"{module}.{name}" for name in names if f"{module}.{name}" in known} or {module}
        if isinstance(node, ast.ImportFrom) and node.module == "zeus_core":
            imported.add("zeus_core")  # whatever it is named for: the version, too
    return (imported & known) - {name_of(path)}


def test_no_two_modules_import_each_other_even_in_a_round_about_way():
    graph = {name_of(path): modules_imported_by(path) for path in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_following_a_signal_and_a_search_know_nothing_of_each_other():
    folder, search = CORE / "optimizer" / "carbon_aware", "zeus_core.optimizer.global_setting"
    assert not [path for path in folder.rglob("*.py") for module in imported_by(path) if module.startswith(search)]
    users = {
        path.name
        for path in (CORE / "optimizer" / "global_setting").rglob("*.py")
        for module in imported_by(path)
        if module.startswith(("zeus_core.carbon", "zeus_core.electricity"))
    }
    assert users == {"search_optimizer.py", "search_options.py"}, "those that take the argument of the user"


def test_only_the_folder_for_torch_imports_a_framework():
    found = {
        (name_of(path), module)
        for path in MODULES
        for module in imported_by(path)
        if top_level(module) in FRAMEWORKS and not name_of(path).startswith(TORCH)
    }
    assert found == set()


def test_nothing_in_the_core_imports_an_integration():
    assert {name_of(path) for path in MODULES for module in imported_by(path) if top_level(module) in INTEGRATIONS} == (
        set()
    )


def test_nothing_but_the_fakes_imports_the_fakes():
    paths = [*MODULES, *REPOSITORY.glob("integrations/*/*/**/*.py")]
    users = {name_of(path) for path in paths for module in imported_by(path) if part_of(module) in {"testing", FAKES}}
    assert {name for name in users if part_of(name) not in {"testing", FAKES}} == set()


def test_what_is_loaded_with_the_core_is_python_numpy_and_the_core():
    """Everything else (the driver's binding, plots) is imported by the functions that need it."""
    found = {
        (name_of(path), module)
        for path in MODULES
        if not name_of(path).startswith((*TORCH, "zeus_core.testing", "zeus_core.pipeline.testing"))
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        for module in imported_in(statement, path)
        if top_level(module) not in {"zeus_core", "numpy", "sitecustomize", *sys.stdlib_module_names}
    }
    assert found == set()


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_the_public_list_of_a_package_is_complete_and_true(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bound, public = set(bound_in(tree.body)), public_list_of(tree)
    assert {name for name in bound - {"TYPE_CHECKING"} if not name.startswith("_")} <= set(public)
    assert set(public) <= bound
    assert len(public) == len(set(public))


def test_no_integration_class_is_more_than_one_below_a_foreign_base():
    """Adapters are composed: a framework's base, and one class of ours below it."""
    paths = REPOSITORY.glob("integrations/*/*/**/*.py")
    classes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    bases = {
        node.name: {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        for node in classes
        if isinstance(node, ast.ClassDef)
    }
    deeper = {
        (name, base) for name, own in bases.items() for base in own & bases.keys() if bases[base] - {"ABC", "Protocol"}
    }
    assert deeper == set()


def test_an_underscore_is_private_to_its_package():
    assert runpy.run_path(str(REPOSITORY / "tools" / "private_doors.py"))["private_imports"]() == []


def test_a_name_is_that_of_one_module_alone():
    """But for `auto`, which users import from each integration."""
    paths = [*MODULES, *REPOSITORY.glob("integrations/*/*/**/*.py")]
    names = Counter(path.stem.lstrip("_") for path in paths if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= {"auto"}


def test_no_folder_has_more_than_fifteen_modules():
    folders = Counter(path.parent for path in [*MODULES, *REPOSITORY.glob("integrations/*/*/**/*.py")])
    assert {str(folder): count for folder, count in folders.items() if count - 1 > 15} == {}  # without `__init__`
