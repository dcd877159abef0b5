import importlib
import sys
import tomllib
from pathlib import Path

import lightning.pytorch
import pytest
import pytorch_lightning

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

# Lightning's own, and torch's of Lightning; none is about us.
IGNORED = [
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:.*is smaller than the logging interval",
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning), append=False)


# Both packages hold the same code: the second is for the long tests.
@pytest.fixture(
    params=[
        pytest.param(lightning.pytorch, id="lightning"),
        pytest.param(pytorch_lightning, id="pytorch_lightning", marks=pytest.mark.long),
    ]
)
def pl(request):
    """Each of the namespaces that Lightning comes under."""
    return request.param


@pytest.fixture
def run_cli(monkeypatch):
    """Runs the LightningCLI of a namespace, as from the shell; returns its trainer."""
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # which Lightning itself is behind with

    monkeypatch.setenv("PL_GLOBAL_SEED", "0")

    def run(pl, module_class, *arguments):
        monkeypatch.setattr(sys, "argv", ["cli.py", *arguments])
        cli = importlib.import_module(f"{pl.__name__}.cli").LightningCLI(module_class)
        return cli.trainer

    return run


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The entry points of the package, as installing it makes them known."""
    folder = tmp_path / "installed" / "zeus_core-0.1.0.dist-info"
    folder.mkdir(parents=True)
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {value}\n" for group, names in groups.items() for name, value in names.items()]
    (folder / "entry_points.txt").write_text("".join(lines))
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zeus-core\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    return folder.parent
