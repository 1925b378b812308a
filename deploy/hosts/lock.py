"""Make the lock files from pyproject.toml: names, versions, hashes and markers, never an address.

`make lock` runs it, and with --torch-needs-cuda `make setup`. Three files come out:

    requirements.lock       runs everything once torch can be imported
    requirements-cuda.lock  holds the libraries that the default build of torch loads on Linux
    requirements-cpu.lock   holds the build of torch without them, for CPython 3.11 on x86-64

Where there is no NVIDIA driver, `make` tries the build without CUDA first, which not every index offers. It installs
the CUDA libraries only when the build of torch that it got asks for them. So nobody with CPython 3.11 downloads
gigabytes for a CPU. On 3.12 and 3.13 pip refuses the build without CUDA, whose hash is not locked, and `make` says so.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton==)")
CRYPTEN = "crypten==0.4.1"
NOT_LOCKED = ("scale", "huggingface", "tensorboard", "mlflow", "wandb")
"""Extras that are not locked. A Ray cluster has its own version of Ray. The library datasets needs pandas, which the
override in pyproject.toml leaves out, as it does tensorboard. Trackers are in no image."""

CPU_BUILD = """\
torch=={version}+cpu \\
    --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
"""
"""Lock of the same release of torch without CUDA, as its makers publish it for CPython 3.11 on x86-64 Linux.

Hashes of other versions belong here as well: each line is a wheel that pip may take."""


def resolve() -> str:
    """Return the resolved requirements of the locked extras and CrypTen, as pip reads them. Raises
    CalledProcessError."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as crypten:
        crypten.write(CRYPTEN + "\n")
        crypten.flush()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", crypten.name),
                *(f"--extra={extra}" for extra in extras if extra not in NOT_LOCKED),
                *(
                    "--universal",
                    "--python-version",
                    "3.11",
                    "--prerelease",
                    "disallow",
                    "--generate-hashes",
                    "--quiet",
                ),
                *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
            ],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    return done.stdout


def entries(resolved: str) -> list[str]:
    """Return one string per requirement, its hash lines included."""
    return [e.rstrip() + "\n" for e in re.split(r"\n(?=\S)", resolved.strip())]


def torch_needs_cuda() -> bool:
    """Return whether the installed build of torch asks for the CUDA libraries; its metadata says so."""
    return any(re.match(r"nvidia-|cuda-", name) for name in importlib.metadata.requires("torch") or ())


def main() -> None:
    """Write the files; or, with --torch-needs-cuda, answer that question by the exit code."""
    if sys.argv[1:] == ["--torch-needs-cuda"]:
        sys.exit(0 if torch_needs_cuda() else 1)
    plain: list[str] = []
    cuda: list[str] = []
    for entry in entries(resolve()):
        (cuda if CUDA_ONLY.match(entry) else plain).append(entry)
    note = "# Made by `make lock` from pyproject.toml. Install with: pip install --no-deps --require-hashes -r {}\n"
    version = next(match[1] for entry in plain if (match := re.match(r"torch==(\S+)", entry)))
    cpu = [CPU_BUILD.format(version=version)]
    for name, part in (("requirements.lock", plain), ("requirements-cuda.lock", cuda), ("requirements-cpu.lock", cpu)):
        (ROOT / name).write_text(note.format(name) + "".join(part), encoding="utf-8")


if __name__ == "__main__":
    main()
