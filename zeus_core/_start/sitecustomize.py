"""Follows the frameworks that a Python program imports, in every Python below `zeus-core run --trainer`.

The command puts the folder of this file first on `PYTHONPATH`. Each Python that inherits it, in any way it is
started, imports this file before its program; one that is started with -I, -E or -S, or without its environment, does
not. The file loads nothing: `zeus_core.launch` is imported after a framework, and where the program imports none,
never. The command says in a variable which modules are those of frameworks. The user's own `sitecustomize` is imported
in the place of this one.

It runs in any Python, also in those too old for this package, which would complain at each start; so it has no types.
"""

import os
import sys

_FRAMEWORKS = frozenset(pair.partition("=")[0] for pair in os.environ.get("ZEUS_FRAMEWORKS", "").split(","))


class _Finder:
    """Finds a framework's module as others would, and has it followed by ours."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a framework's module, and nothing of others."""
        if name not in _FRAMEWORKS:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        return None


class _Loader:
    """Loads a module by its own loader, and then has it followed. Leaves no trace on the module."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module):
        """Execute the module, and import ours."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            from zeus_core.launch import follow

            follow(module.__name__)
        except Exception as error:
            text = "zeus-core: trainings of this process (%s) are not measured: %s: %s\n"
            try:
                sys.stderr.write(text % (sys.executable, type(error).__name__, error))
            except Exception:  # nobody is there to read it
                return


def _note_start(folder):
    """Add a line to the file of `zeus-core run`, which says at its end what it has seen."""
    try:
        descriptor = os.open(os.path.join(folder, "seen"), os.O_WRONLY | os.O_APPEND)
    except OSError:  # on another machine, or in a container
        return
    try:
        os.write(descriptor, b"python\n")
    finally:
        os.close(descriptor)


_run = os.environ.get("ZEUS", "")  # "1", or the folder of a run
if (_run == "1" or os.path.isabs(_run)) and sys.version_info >= (3, 4):
    if _run != "1":
        _note_start(_run)
    sys.meta_path.insert(0, _Finder())
_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _folder]
del sys.modules[__name__]
# That of the user; without one, this raises what Python expects then.
import sitecustomize  # noqa: E402, F401
