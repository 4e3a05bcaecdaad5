"""hashes.txt has what the package needs, in the versions that constraints.txt pins."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PLATFORM = {"python_version": "3.11", "python_full_version": "3.11.0", "sys_platform": "linux"}


def pins() -> dict[str, str]:
    """Return package → version, as constraints.txt has them for Python 3.11."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    found = [Requirement(line) for line in lines]
    return {
        canonicalize_name(each.name): str(each.specifier)
        for each in found
        if each.marker is None or each.marker.evaluate(PLATFORM)
    }


def test_hashes_are_of_the_pinned_versions() -> None:
    lines = [line for line in (ROOT / "hashes.txt").read_text().splitlines() if line and line[0] != "#"]
    found = {}
    for line in lines:
        name, version = re.fullmatch(r"([\w.-]+)(==[\w.]+) --hash=sha256:[0-9a-f]{64}", line).groups()
        found[canonicalize_name(name)] = version
    assert found.items() <= pins().items()


def test_all_that_the_package_needs_has_a_hash() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    text = (ROOT / "hashes.txt").read_text()
    assert all(re.search(rf"^{name}==", text.replace("_", "-"), re.MULTILINE | re.IGNORECASE) for name in needed)


def test_every_pinned_package_has_its_licence_in_the_documents() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    text = (ROOT / "docs" / "licences.md").read_text().partition("## Every package")[2]
    named = {canonicalize_name(name) for row in text.splitlines() for name in re.findall(r"[\w.-]+", row)}
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= named


def test_no_version_of_timm_that_unpickles_weight_files_is_taken() -> None:
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (timm,) = [each for each in map(Requirement, extras["timm"]) if each.name == "timm"]
    assert "1.0.25" not in timm.specifier
    assert "1.0.26" in timm.specifier
