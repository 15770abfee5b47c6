"""The lock files: every package that `make` installs, with the digests of its wheels."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = {name: (ROOT / "requirements" / f"{name}.txt").read_text() for name in ("core", "dev", "docs")}
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; [^\\\n]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)


def locked(name: str) -> dict[str, str]:
    return {package: version for package, version, _ in ENTRY.findall(LOCKS[name])}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_a_version_with_digests(name):
    plain = [line for line in LOCKS[name].splitlines() if not line.startswith(("#", "    "))]
    assert len(plain) == len(locked(name)) > 20
    assert "torch" not in locked(name)
    assert "file:" not in LOCKS[name]


@pytest.mark.parametrize("name", LOCKS)
def test_the_versions_are_those_of_the_constraints(name):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    known = {canonicalize_name(package): version for package, version in pinned.items()}
    assert locked(name).items() <= known.items()


def needed(extra: str) -> set[str]:
    """The packages that pyproject.toml asks for, also through extras of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo, found = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())], set()
    while todo:
        one = Requirement(todo.pop())
        if one.name == "arno":
            todo += [need for other in one.extras for need in project["optional-dependencies"][other]]
        else:
            found.add(canonicalize_name(one.name))
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_names_every_dependency(name):
    assert needed(name) - {"torch"} <= locked(name).keys()
    assert "setuptools" in locked(name)  # it builds the package itself


def test_the_lock_names_what_dependencies_need():
    """What is installed here was resolved by pip: each locked package finds its own needs in the lock."""
    from importlib.metadata import PackageNotFoundError, requires

    for name in LOCKS:
        for package in locked(name):
            try:
                texts = requires(package) or []
            except PackageNotFoundError:  # the extra is not installed here
                continue
            for need in map(Requirement, texts):
                if need.marker is None or need.marker.evaluate({"extra": ""}):
                    assert canonicalize_name(need.name) in {*locked(name), "torch"}, (name, package, need)


def test_make_installs_from_the_lock():
    text = (ROOT / "Makefile").read_text()
    assert "--require-hashes --no-deps" in text
    assert "--no-deps --no-build-isolation -e ." in text


def test_a_platform_without_digests_is_named(tmp_path, monkeypatch):
    script = (ROOT / "tools" / "lock.py").read_text()
    assert subprocess.run([sys.executable, ROOT / "tools" / "lock.py", "--covers", "core"]).returncode == 0
    (tmp_path / "tools").mkdir()
    (tmp_path / "requirements").mkdir()
    (tmp_path / "tools" / "lock.py").write_text(script)
    (tmp_path / "requirements" / "core.txt").write_text("# covers: Python 2.7 on plan9 vax\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "tools" / "lock.py", "--covers", "core"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "core.txt has no digests for Python" in done.stderr


def wheel(folder: Path) -> Path:
    """A package of one file."""
    path = folder / "river-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("river.py", "")
        archive.writestr("river-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: river\nVersion: 1.0\n")
        archive.writestr("river-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("river-1.0.dist-info/RECORD", "")
    return path


def test_attack_a_wheel_that_was_exchanged(tmp_path):
    path = wheel(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path)]
    command += ["--target", str(tmp_path / "there"), "--require-hashes", "--no-deps", "-r", str(tmp_path / "lock.txt")]
    (tmp_path / "lock.txt").write_text(f"river==1.0 \\\n    --hash=sha256:{digest}\n")
    assert subprocess.run(command, capture_output=True).returncode == 0
    (tmp_path / "lock.txt").write_text(f"river==1.0 \\\n    --hash=sha256:{digest[::-1]}\n")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
