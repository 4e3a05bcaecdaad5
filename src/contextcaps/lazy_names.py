"""Names of a package that are imported when they are asked for, so that `--help` does not wait for torch."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package (PEP 562) whose public names live in its modules.

    Args:
        package: its name.
        homes: module, without the package's name → the names that it gives.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return get, lambda: sorted([*vars(importlib.import_module(package)), *home])
