"""The lock files: the exact packages that `make` installs, with the digests of their wheels.

    python tools/lock.py                  write requirements/*.txt from pyproject.toml and constraints.txt (make lock)
    python tools/lock.py --covers core    exit status 0 if this lock file covers this interpreter and platform

pip resolves the versions here (constraints.txt pins them). The digests are those of the package index, of every wheel
that fits one of the targets below, so that one file serves several platforms. A target is covered if each package that
it needs is pinned and has a wheel for it. torch is not locked: its builds differ by platform, its version is pinned.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
INDEX = "https://pypi.org/simple"
#: A lock file each: the extra that it adds to the dependencies of the package.
FILES = {"core": "", "dev": "dev", "docs": "docs"}
PYTHONS = ((3, 11), (3, 12), (3, 13))
SYSTEMS = ("linux x86_64", "linux aarch64", "darwin arm64")
#: Installed apart, by its version only.
APART = "torch"
#: What builds the package itself.
BUILDS = "setuptools"
COVERS = "# covers: "


def main() -> None:
    if sys.argv[1:2] == ["--covers"]:
        refuse_uncovered(ROOT / "requirements" / f"{sys.argv[2]}.txt")
        return
    report = resolved()
    packages = {canonical(one["metadata"]["name"]): one["metadata"] for one in report["install"]}
    wheels = digests({name: about["version"] for name, about in packages.items() if name not in ("arno", APART)})
    for file, extra in FILES.items():
        names = {target: closure(packages, extra, environment(*target)) for target in targets()}
        write(ROOT / "requirements" / f"{file}.txt", packages, wheels, names)


def refuse_uncovered(path: Path) -> None:
    """Exit with a message if a lock file does not cover this interpreter on this platform."""
    covered = re.search(f"^{COVERS}(.*)$", path.read_text(), re.M)
    mine = name_of(sys.version_info[:2], f"{sys.platform} {platform.machine()}")
    if not covered or mine not in covered[1].split(", ") or "t" in (sysconfig.get_config_var("abiflags") or ""):
        raise SystemExit(f"{path.name} has no digests for {mine}: versions are pinned, but packages are not verified")


def targets() -> list[tuple[tuple[int, int], str]]:
    """The interpreters and platforms that may be covered."""
    return [(python, system) for system in SYSTEMS for python in PYTHONS]


def name_of(python: tuple[int, ...], system: str) -> str:
    """A target in words."""
    return f"Python {python[0]}.{python[1]} on {system}"


def canonical(name: str) -> str:
    """The name of a package as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolved() -> dict[str, Any]:
    """pip's report of what it would install for all lock files."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        extras = ",".join(filter(None, FILES.values()))
        dry = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        wanted = ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]", BUILDS]
        subprocess.run([sys.executable, "-m", "pip", "install", *dry, *wanted], check=True)
        found: dict[str, Any] = json.loads(report.read_text())
    return found


def digests(versions: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """By package: the wheels of its version that fit a target, and their digests."""
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(versions, pool.map(lambda item: list(wheels_of(*item)), versions.items()), strict=True))
    if missing := [name for name, files in found.items() if not files]:
        raise SystemExit(f"the index has no wheel of {', '.join(missing)}")
    return found


def wheels_of(name: str, version: str) -> Iterator[tuple[str, str]]:
    """The wheels of a version that fit a target."""
    from packaging.utils import parse_wheel_filename
    from packaging.version import Version

    with urlopen(Request(f"{INDEX}/{name}/", headers={"Accept": "text/html"})) as page:
        text = page.read().decode()
    fitting = frozenset[Any]().union(*(tags(*target) for target in targets()))
    for file, digest in re.findall(r"/([^/\"#]+\.whl)#sha256=([0-9a-f]{64})\"", text):
        try:
            _, found, _, kinds = parse_wheel_filename(file)
        except ValueError:  # an old file with a name that is no longer valid
            continue
        if found == Version(version) and kinds & fitting:
            yield file, digest


@cache
def tags(python: tuple[int, int], system: str) -> frozenset[Any]:
    """The tags of the wheels that a target accepts."""
    from packaging.tags import compatible_tags, cpython_tags, mac_platforms

    kind, machine = system.split()
    if kind == "linux":
        old = {
            "x86_64": ["manylinux2014", "manylinux2010", "manylinux1", "linux"],
            "aarch64": ["manylinux2014", "linux"],
        }
        platforms = [f"manylinux_2_{n}_{machine}" for n in range(5, 29)] + [f"{one}_{machine}" for one in old[machine]]
    else:
        platforms = list(mac_platforms((14, 0), "arm64"))
    pure = compatible_tags(python, f"cp{python[0]}{python[1]}", platforms)
    return frozenset([*cpython_tags(python, platforms=platforms), *pure])


def environment(python: tuple[int, int], system: str) -> dict[str, str]:
    """The environment in which markers of requirements are evaluated for a target."""
    kind, machine = system.split()
    version = f"{python[0]}.{python[1]}"
    return {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "sys_platform": kind,
        "platform_machine": machine,
        "platform_system": kind.capitalize(),
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def closure(packages: dict[str, Any], extra: str, there: dict[str, str]) -> set[str]:
    """The packages that a target needs, also those that are not pinned; without the package itself and torch."""
    from packaging.requirements import Requirement

    found, todo = set[tuple[str, str]](), [("arno", ""), ("arno", extra), (BUILDS, "")]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        for text in packages.get(name, {}).get("requires_dist", []):
            need = Requirement(text)
            other = canonical(need.name)
            apart = name == APART and other not in packages  # of its build for CUDA
            if not apart and (need.marker is None or need.marker.evaluate(there | {"extra": wanted})):
                todo += [(other, ""), *((other, one) for one in need.extras)]
    return {name for name, _ in found} - {"arno", APART}


def write(path: Path, packages: dict[str, Any], wheels: dict[str, Any], names: dict[Any, set[str]]) -> None:
    """Write a lock file; the packages are those of all targets that it covers."""
    from packaging.utils import parse_wheel_filename

    def fits(name: str, target: Any) -> bool:
        return any(parse_wheel_filename(file)[3] & tags(*target) for file, _ in wheels.get(name, ()))

    lacking = {target: sorted(one for one in need if not fits(one, target)) for target, need in names.items()}
    covered = [target for target, lacks in lacking.items() if not lacks]
    for target, lacks in lacking.items():
        print(f"{path.name}: {name_of(*target)}: {'covered' if not lacks else 'lacks ' + ', '.join(lacks)}")
    kept = sorted(set[str]().union(*(names[target] for target in covered)))
    lines = [
        "# Made by `make lock`. The digests are those of the package index.",
        COVERS + ", ".join(name_of(*one) for one in covered),
    ]
    for name in kept:
        where = marker(name, names, covered)
        known = sorted({digest for file, digest in wheels[name]})
        lines.append(
            " \\\n".join([f"{name}=={packages[name]['version']}{where}", *(f"    --hash=sha256:{d}" for d in known)])
        )
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def marker(name: str, names: dict[Any, set[str]], covered: Iterable[Any]) -> str:
    """Where a package is installed, unless it is everywhere."""
    systems = {system for _, system in covered}
    used = {system.split()[0] for (_, system) in covered if any(name in names[t] for t in covered if t[1] == system)}
    if used == {system.split()[0] for system in systems}:
        return ""
    return " ; " + " or ".join(f"sys_platform == '{kind}'" for kind in sorted(used))


if __name__ == "__main__":
    main()
