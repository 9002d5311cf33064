"""The servers' own classes, out of the wheels that they publish, without what those depend on.

A server's wheel is fetched by its pinned version and unpacked; what its modules import beyond it is stood in for by
modules that have everything and do nothing. So the adapters meet the very base classes and factories of a release, on a
machine without a card, in a minute.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import types
import zipfile
from typing import Any, List, Optional

#: What the adapters were written for.
PINNED = {"lmcache": "0.5.6", "vllm": "0.33.0", "sglang": "0.5.23"}


class Anything:
    """Has every attribute, can be called, and is no use."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        # Also as a decorator.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _: Any) -> Any:
        return Anything()

    def __or__(self, _: Any) -> Any:
        return Anything()

    __ror__ = __or__

    def __mro_entries__(self, _: Any) -> Any:
        return (Base,)

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False


class Base:
    """What a class is derived from whose base is not here. It takes any arguments and keeps those with names, as the
    servers' plain structures do."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class _Absent(types.ModuleType):
    __path__: List[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for place in self.__path__:
            if os.path.exists(os.path.join(place, f"{name}.py")) or os.path.isdir(os.path.join(place, name)):
                return importlib.import_module(f"{self.__name__}.{name}")
        return Anything()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nothing else finds, but for this project's own packages."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        parent, _, _ = name.rpartition(".")
        is_of_another = parent and not isinstance(sys.modules.get(parent), _Absent)
        if is_of_another or name.startswith("cenote") or name in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def fetched(project: str, directory: str) -> str:
    """Where the project's pinned wheel lies unpacked."""
    place = os.path.join(directory, f"{project}-{PINNED[project]}")
    if not os.path.isdir(place):
        named = f"{project}=={PINNED[project]}"
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", directory, named], check=True)
        wheel = next(name for name in os.listdir(directory) if name.startswith(f"{project}-") and name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(directory, wheel)) as archive:
            wanted = [name for name in archive.namelist() if name.endswith(".py") or "lmcache_native" in name]
            archive.extractall(place, wanted)
    return place


def package_without_its_start(name: str, directory: str, **members: Any) -> None:
    """A package whose ``__init__`` asks for a card."""
    module = _Absent(name)
    module.__path__ = [os.path.join(directory, *name.split("."))]
    for member, value in members.items():
        setattr(module, member, value)
    sys.modules[name] = module


def stand_in() -> None:
    """From here on what is not there is stood in for."""
    sys.meta_path.append(StandIns())


def module(name: str, **members: Any) -> None:
    """A module with what a test needs of it, in place of the real one."""
    made = _Absent(name)
    for member, value in members.items():
        setattr(made, member, value)
    sys.modules[name] = made
