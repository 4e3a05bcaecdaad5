"""How much disk an installation takes: a package with all that it requires, without extras."""

import importlib.metadata
import importlib.util
from pathlib import Path

from contextcaps.extras import import_extra

__all__ = ["installed_bytes"]


def installed_bytes(*names: str) -> float:
    """Return the bytes of the files of these packages and of all that they require here."""
    requirements = import_extra("packaging.requirements", "train", "the size of an installation")
    seen: set[str] = set()
    waiting, total = list(names), 0
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        total += sum(path.stat().st_size for path in _files(name, package) if path.is_file())
        for line in package.requires or ():
            requirement = requirements.Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return float(total)


def _files(name: str, package: importlib.metadata.Distribution) -> list[Path]:
    """Return a package's files; of one that is installed for editing those in its folder."""
    spec = importlib.util.find_spec("contextcaps") if name == "contextcaps" else None
    if spec is not None and spec.submodule_search_locations:
        return [path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*")]
    return [Path(str(package.locate_file(path))) for path in package.files or ()]
