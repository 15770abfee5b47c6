"""`arno doctor`: versions, this machine, and the optional features."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .parser import parser_of

ABOUT = "Prints versions, cores, memory, disk, devices, and which optional features are installed."
#: For each extra: the package that it needs, and its feature.
EXTRAS = {
    "fast": ("numba", "quadratic simulations, compiled"),
    "mlflow": ("mlflow-skinny", "track=mlflow"),
    "tensorboard": ("tensorboard", "track=tensorboard"),
    "wandb": ("wandb", "track=wandb"),
    "ray": ("ray", "engine=ray, comparisons on a cluster"),
    "tune": ("optuna", "arno tune, arno compare --tuned"),
    "ui": ("uvicorn", "arno ui"),
}
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "matplotlib", "omegaconf", "safetensors")


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser_of("doctor", ABOUT, settings=False).parse_args(arguments)
    for title, rows in (("versions", versions()), ("machine", machine()), ("optional features", extras())):
        print(title)
        print("".join(f"  {name:<14}{text}\n" for name, text in rows))
    return 0


def installed(package: str) -> str:
    """The version of a package; empty if it is not installed.

    >>> installed("there is no such package")
    ''
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def versions() -> list[tuple[str, str]]:
    """Arno, Python and the libraries."""
    from ..version import __version__

    python = f"{platform.python_version()} ({sys.executable})"
    return [("arno", __version__), ("python", python), *((name, installed(name) or "missing") for name in LIBRARIES)]


def machine() -> list[tuple[str, str]]:
    """Cores, memory, disk, the library of the matrix products, and devices."""
    import torch

    from ..core.resources import shown
    from ..machine import available, free_disk, memory, owner

    threads = os.environ.get("OMP_NUM_THREADS")
    cores = f"{os.cpu_count()}" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    products = f"{'MKL' if torch.backends.mkl.is_available() else 'no MKL'}, {torch.backends.cpu.get_cpu_capability()}"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    gpus += ["mps"] if torch.backends.mps.is_available() else []
    return [
        ("system", platform.platform()),
        ("cores", cores),
        ("memory", f"{shown(available())} free of {shown(memory())} ({owner()})"),
        ("disk", f"{shown(free_disk(Path.cwd()))} free in {Path.cwd()}"),
        ("products", products),
        ("GPUs", ", ".join(gpus) or "none: runs use the CPU"),
    ]


def extras() -> list[tuple[str, str]]:
    """The optional features: the version of their package, or how to install it."""
    rows = []
    for extra, (package, use) in EXTRAS.items():
        there = installed(package)
        rows.append(
            (extra, f"{package} {there}: {use}" if there else f"missing for {use}: pip install 'arno[{extra}]'")
        )
    return [*rows, ("completion", 'eval "$(arno completion bash)" completes settings and values')]
