"""The allowed imports between layers, and public lists that are complete."""

import ast
import functools
import importlib.util
import re
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
VALUES = {"errors", "units", "measurement", "environment", "installed", "_lazy_names"}
TOOLS = {"codec", "validate", "files", "documents", "_identity", "_sysfs", "process"}
BASE = {*VALUES, *TOOLS, "ports", "events", "adapters"}
KINDS = "kinds"  # what devices, files and searches call by name
PURE = {"search", "electricity"}
MEASURING = {*BASE, KINDS, "device", "settings", "attribution", "monitor"}
OPTIMIZING = {*MEASURING, *PURE, "optimizer"}
ALL = {*OPTIMIZING, "tracing", "training", "report", "exporter", "cli", "pytorch"}
# Products of their own: no part of the core, and no other wing, imports one.
WINGS = {"activities", "batches", "carbon", "daemon", "jobs", "mixed", "pipeline", "runs", "selfcheck"}
# Parts of wings with rules of their own. Planners are pure, and lie below the rest of their wing.
PLANNER, ALLOCATION, TAPS, FAKES = "pipeline.planner", "mixed.allocation", "pipeline.taps", "pipeline.testing"
FOLDERS_APART = {name: name for name in (PLANNER, ALLOCATION, TAPS, FAKES)} | {
    "pipeline.schedules": PLANNER,
    "pipeline.baselines": PLANNER,
}
# What one wing uses of another: a pure planner. And what the core does: a published name, which is imported on its use.
USED_WINGS = {("zeus_core.batches", ALLOCATION), ("zeus_core.optimizer", "pipeline")}
# The folders that import torch.
TORCH = (
    "zeus_core.pytorch",
    "zeus_core.mixed.levelling._work_end",
    "zeus_core.selfcheck.check_load",
    "zeus_core.batches.pytorch",
    "zeus_core.pipeline.taps",
)
MAY_IMPORT: dict[str, set[str]] = {
    **{part: {*VALUES, *TOOLS} for part in (*VALUES, *TOOLS)},
    "environment": set(),  # it is loaded in programs that train nothing
    "installed": set(),
    "ports": {*VALUES, *TOOLS},
    "events": {*VALUES, "validate", "ports"},
    "adapters": {*VALUES, *TOOLS},
    KINDS: {*VALUES, *TOOLS},
    "device": {*BASE, KINDS},
    "settings": {*BASE, KINDS, "device"},
    "attribution": {*VALUES, *TOOLS},
    "monitor": {*BASE, "device", "attribution"},
    "electricity": {*VALUES, *TOOLS, "ports"},  # a live source works in the background
    "search": {*VALUES, *TOOLS, KINDS},
    "optimizer": {*MEASURING, *PURE},
    "training": OPTIMIZING,
    "tracing": {*OPTIMIZING, "training"},
    "pytorch": {*OPTIMIZING, "training"},
    "exporter": {*BASE, "device", "monitor", "settings", "training", "electricity"},
    "report": {*OPTIMIZING, "tracing", "training"},
    "cli": {*OPTIMIZING, "tracing", "training", "report", "exporter"},
    "launch": {"environment", "installed", "ports", "pytorch"},  # and the integration of Lightning
    "_start": {"launch"},
    "testing": {*OPTIMIZING, "training"},
    # The wings, each with what it uses of the core.
    "activities": {*OPTIMIZING, "training"},
    "batches": {*OPTIMIZING, "training", "pytorch", ALLOCATION},
    "carbon": {*OPTIMIZING, "training", "report", "cli"},
    "daemon": {*BASE, KINDS, "device", "settings", "cli"},
    "jobs": {*OPTIMIZING, "training", "report", "cli"},
    ALLOCATION: {*VALUES, *TOOLS, KINDS, "search"},
    "mixed": {*OPTIMIZING, ALLOCATION, "training", "pytorch", "report", "cli"},
    PLANNER: {*VALUES, *TOOLS},
    "pipeline": {*OPTIMIZING, PLANNER, "tracing", "training", "report", "cli"},
    TAPS: {*OPTIMIZING, "pipeline", "pytorch"},
    FAKES: {*OPTIMIZING, PLANNER, "pipeline", "testing"},
    "runs": {*OPTIMIZING, "training", "report", "exporter", "cli"},
    "selfcheck": {*OPTIMIZING, "training", "pytorch", "cli"},  # torch only where a load runs
}

# Modules that import modules of ours, or of Python, in functions. Beside these, the modules of commands do, as each
# command is to start within 100 ms.
DELIBERATE = {
    "zeus_core.carbon.carbon_aware": "needs numpy, which making the argument does without",
    "zeus_core._start.sitecustomize": "it runs in Pythons that train nothing",
    "zeus_core.adapters._requires": "importlib.metadata takes 20 ms",
    "zeus_core.device.apple": "importlib.metadata takes 20 ms",
    "zeus_core.device.rapl": "sockets, for those whose CPUs the daemon reads",
    "zeus_core.monitor.windows": "csv, for those who log windows",
    "zeus_core.monitor._instruments": "random loads hashlib, and most GPUs have a counter",
    "zeus_core.optimizer.limiter": "settings load sockets and processes, for those who change something",
    "zeus_core.optimizer.global_setting._preparation": "two searches beside each other, for those who ask for them",
    "zeus_core.optimizer.global_setting._search_course": "two searches beside each other, for those who ask for them",
    "zeus_core.optimizer.global_setting._search_facts": "the words of a result, at the end of training",
    "zeus_core.training._run_recorder": "electricity, for those who give one",
    "zeus_core.training.charges.charged_electricity": "electricity, for those who give one",
    "zeus_core.training.charges.charging": "electricity, for those who give one",
    "zeus_core.training.record.run_records": "searches, which most runs do without",
    "zeus_core.device._discovery": "the bindings of vendors that are not there",
    "zeus_core.installed": "importlib.metadata takes 20 ms",
    "zeus_core.launch": "what follows a framework needs the framework",
    "zeus_core.settings.guardian": "processes that change nothing start no other process",
    "zeus_core.training._training_energy": "optimizers, traces and recurring jobs, which most trainings do without",
    "zeus_core.optimizer.global_setting.search_optimizer": "adaptive searches need numpy",
    "zeus_core.optimizer.global_setting.search_options": "adaptive searches need numpy",
    "zeus_core.mixed.levelling._levelled_training": "it needs numpy",
    "zeus_core.mixed.levelling._waiting_joules": "it needs numpy",
    "zeus_core.pipeline.planner.loops": "a plan that is not compiled does without the compiler",
    "zeus_core.process.restore_registry": "multiprocessing takes 10 ms, and few programs load it",
    "zeus_core.pytorch.followed.followed_optimizers": "many programs that import torch train nothing",
    "zeus_core.search.run.visits": "it needs numpy",
    "zeus_core.selfcheck._load": "it needs torch",
    "zeus_core.units": "decimal takes 2 ms, and few programs convert a price",
    "zeus_core.mixed.levelling._levelling_optimizer": "it needs torch only where its hooks are on a model",
    "zeus_deepspeed": "it loads DeepSpeed",
    "zeus_deepspeed.__main__": "it loads DeepSpeed",
    "zeus_huggingface._trainer_energy": "batches, for those who ask for them",
    "zeus_huggingface._trainer_patches": "batches, for those who ask for them",
    "zeus_huggingface.accelerate._accelerate_energy": "batches, for those who ask for them",
    "zeus_lightning._callback": "batches, for those who ask for them",
    "zeus_huggingface.auto": "transformers imports itself within it",
}
# Modules of Python that only some systems have, or that hold memory of the processes of others.
OF_SOME_SYSTEMS = {"ctypes", "fcntl", "getpass", "grp", "pwd"}
# The doors by which a simulated GPU is simulated: these may ask whether it is one.
SIMULATED_DOORS = (
    "zeus_core.device",
    "zeus_core.testing",
    "zeus_core.pipeline.testing",
    "zeus_core.pytorch._simulated_compute",
    "zeus_core.selfcheck",
)
ASKS_YET = {"zeus_core.batches.pytorch._trial_measurements"}


def name_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[2:] if parts[0] == "integrations" else parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """The part of the core a module belongs to: "device" of "zeus_core.device.gpu", "" of "zeus_core" itself."""
    apart = (part for name, part in FOLDERS_APART.items() if module.startswith(f"zeus_core.{name}"))
    return next(apart, [*module.split("."), ""][1])


@functools.cache
def imported_by(path: Path) -> list[str]:
    """Every module a file imports, wherever in the file it does."""
    return [module for node in ast.walk(tree_of(path)) for module in imported_in(node, path)]


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


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def top_level(module: str) -> str:
    return module.partition(".")[0]


def parts_imported_by(path: Path) -> set[str]:
    """The other parts of the core a file imports, and wings, unless it publishes a name of one."""
    parts = {part_of(module) for module in imported_by(path) if top_level(module) == "zeus_core"}
    return parts - {part_of(name_of(path))} - {used for user, used in USED_WINGS if user == name_of(path)}


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
    found = {
        (name_of(path), part)
        for path in MODULES
        for part in parts_imported_by(path)
        if top_level(part) in WINGS - {top_level(part_of(name_of(path)))}
        and not any(name_of(path).startswith(user) and part == used for user, used in USED_WINGS)
    }
    assert found == set()


def test_the_core_names_no_module_of_a_wing_as_text():
    """Wings register by entry points: see `zeus_core.installed`."""
    named = re.compile(rf"zeus_core\.({'|'.join(WINGS)})\b[\w.:]*")
    found = {
        (name_of(path), node.value)
        for path in [*MODULES, *CORE.glob("*/__main__.py")]
        if top_level(part_of(name_of(path))) not in WINGS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
    }
    assert found == {("zeus_core.optimizer", "zeus_core.pipeline")}, "but for the published name of Perseus"


@pytest.mark.parametrize("folder", ["zeus_core.jobs.policies", "zeus_core.mixed.allocation"])
def test_the_planners_of_wings_are_pure(folder):
    allowed = {*VALUES, *TOOLS, KINDS, "search", part_of(folder)}
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
    for node in ast.walk(tree_of(path)):
        for module in imported_in(node, path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            imported |= {f"{module}.{name}" for name in names if f"{module}.{name}" in known} or {module}
        if isinstance(node, ast.ImportFrom) and node.module == "zeus_core":
            imported.add("zeus_core")  # whatever it is named for: the version, too
    return (imported & known) - {name_of(path)}


def test_no_two_modules_import_each_other_even_in_a_round_about_way():
    graph = {name_of(path): modules_imported_by(path) for path in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_only_the_folder_for_torch_imports_a_framework():
    found = {
        (name_of(path), module)
        for path in MODULES
        for module in imported_by(path)
        if top_level(module) in FRAMEWORKS and not name_of(path).startswith(TORCH)
    }
    assert found == set()


def test_nothing_in_the_core_imports_an_integration():
    """But for what lies above all: it follows the import of a framework."""
    users = {name_of(path) for path in MODULES for module in imported_by(path) if top_level(module) in INTEGRATIONS}
    assert users == {"zeus_core.launch"}


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
        for statement in tree_of(path).body
        for module in imported_in(statement, path)
        if top_level(module) not in {"zeus_core", "numpy", "sitecustomize", *sys.stdlib_module_names}
    }
    assert found == set()


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_the_public_list_of_a_package_is_complete_and_true(path):
    tree = tree_of(path)
    bound, public = set(bound_in(tree.body)), public_list_of(tree)
    assert {name for name in bound - {"TYPE_CHECKING"} if not name.startswith("_")} <= set(public)
    assert set(public) <= bound
    assert len(public) == len(set(public))


def test_no_integration_class_is_more_than_one_below_a_foreign_base():
    """Adapters are composed: a framework's base, and one class of ours below it."""
    paths = REPOSITORY.glob("integrations/*/*/**/*.py")
    classes = [node for path in paths for node in ast.walk(tree_of(path))]
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


PRODUCT = [*CORE.rglob("*.py"), *REPOSITORY.glob("integrations/*/*/**/*.py")]


def test_imports_lie_at_the_top_of_a_module_but_where_a_reason_is_known():
    """Optional packages are imported where they are needed; commands import what they do when they do it."""
    found = set()
    for path in PRODUCT:
        name = name_of(path)
        if name.startswith("zeus_core.cli") or name.endswith("_command"):
            continue
        functions = [node for node in ast.walk(tree_of(path)) if is_function(node)]
        modules = {
            module for function in functions for node in ast.walk(function) for module in imported_in(node, path)
        }
        if any(is_always_there(module) for module in modules):
            found.add(name)
    assert found - DELIBERATE.keys() == set()


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_always_there(module: str) -> bool:
    ours = {"zeus_core", *INTEGRATIONS}
    return top_level(module) in {*ours, *sys.stdlib_module_names} - OF_SOME_SYSTEMS


def test_no_package_uses_an_underscore_attribute_of_the_classes_of_another():
    """An attribute counts if some package of ours has it, and the one that uses it does not."""
    owners: dict[str, set[Path]] = {}
    uses: list[tuple[Path, str, str]] = []
    for path in PRODUCT:
        for node in ast.walk(tree_of(path)):
            if is_function(node) and is_private(node.name):
                owners.setdefault(node.name, set()).add(path.parent)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                    owners.setdefault(node.attr, set()).add(path.parent)
                else:
                    uses.append((path, node.attr, ast.unparse(node.value)))
    found = {
        (name_of(path), f"{owner}.{attribute}")
        for path, attribute, owner in uses
        if attribute in owners and not any(path.is_relative_to(home) for home in owners[attribute])
    }
    assert found - OF_FRAMEWORKS == set()


# Attributes of frameworks whose names some class of ours has, too.
OF_FRAMEWORKS: set[tuple[str, str]] = set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_replace", "_asdict", "_fields"}


def test_only_the_doors_of_simulated_gpus_ask_whether_one_is_simulated():
    found = {
        name_of(path)
        for path in PRODUCT
        if not name_of(path).startswith(SIMULATED_DOORS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and "Simulated" in ast.unparse(node)
    }
    assert found - ASKS_YET == set()


def test_a_class_has_a_name_of_its_own():
    """But for what a user writes in the same place of each framework."""
    paths = [*MODULES, *REPOSITORY.glob("integrations/*/*/**/*.py")]
    statements = [statement for path in paths for statement in ast.parse(path.read_text(encoding="utf-8")).body]
    names = Counter(one.name for one in statements if isinstance(one, ast.ClassDef) and not one.name.startswith("_"))
    assert {name for name, count in names.items() if count > 1} <= {"UnevenBatches"}
