"""The promises that the layout makes: who imports whom, what is generated, and that the README's map is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mpc", "dp", "protos", "servers", "clients", "deploy", "benchmarks")
MAY_IMPORT = {
    "mpc": set(),
    "dp": set(),
    "protos": {"mpc"},
    "servers": {"mpc", "dp", "protos"},
    "clients": {"mpc", "dp", "protos"},
    "deploy": {"mpc", "dp", "protos", "servers", "clients", "benchmarks"},
    "benchmarks": {"mpc", "dp", "protos", "servers", "clients", "deploy"},
}
GENERATED = ROOT / "protos" / "precad"


def modules(package: str) -> list[Path]:
    """Source files of a package, generated ones left out."""
    return [p for p in sorted((ROOT / package).rglob("*.py")) if GENERATED not in p.parents]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it, by full name; with every name that it takes from one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    """A package imports only those below it; servers and clients never one another."""
    for path in modules(package):
        ours = {name.split(".")[0] for name in imported(path)} & set(PACKAGES)

        assert ours - {package} <= MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {ours}"


STORAGE = (
    *("task_state", "task_store", "round_record", "state_dir", "rehearsal", "resumption", "checkpoints", "audit_log"),
    *("tuple_ledger", "deal_ledger", "private_files"),
    *("database", "database_copy", "dialects", "postgres", "replicas", "sqlite_file"),
)
BELOW_STORAGE = ("errors", "supervision")
"""Modules of servers that storage may use."""


def beyond_storage(path: Path) -> set[str]:
    """Return the modules of servers that a file imports and that neither are storage nor lie below it."""
    there = {p.stem for p in (ROOT / "servers").iterdir()} - {"__init__", "__pycache__"}
    found = {name.split(".")[1] for name in imported(path) if name.startswith("servers.")}
    return (found & there) - {*STORAGE, *BELOW_STORAGE}


@pytest.mark.parametrize("module", [*STORAGE, *BELOW_STORAGE])
def test_storage_knows_no_round(module):
    """What is on disk knows nothing of a round's states, uploads and sessions, nor of links and services."""
    assert beyond_storage(ROOT / "servers" / f"{module}.py") == set()


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("from servers.round import RoundRunner", "round"),
        ("from servers import intake", "intake"),
        ("def late():\n    import servers.states", "states"),
        ("from servers.operations.telemetry import Telemetry", "operations"),
    ],
)
def test_a_round_that_is_planted_in_storage_is_found(planted, found, tmp_path):
    """However it is written, and wherever in the file."""
    source = ROOT / "servers" / "task_state.py"
    (tmp_path / source.name).write_text(f"{source.read_text()}\n\n{planted}\n")

    assert beyond_storage(tmp_path / source.name) == {found}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_of_a_package_names_what_is_in_it(package):
    """Every module and folder of source has a line in the docstring of `__init__`."""
    folder = ROOT / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    there = {p.stem for p in folder.glob("*.py")} | {p.name for p in folder.iterdir() if (p / "__init__.py").exists()}
    there -= {"__init__", "precad"}
    named = re.findall(r"^ *((?:[a-z0-9_]+/?, )*[a-z0-9_]+/?)(?: |$)", text, flags=re.MULTILINE)
    named = {name.strip("/") for names in named for name in names.split(", ")}

    assert there <= named, f"{package}/__init__.py does not name {sorted(there - named)}"


def test_only_the_command_line_knows_the_benchmarks():
    """`precad bench` loads them when it runs; nothing else of a deployment depends on them."""
    found = [p for p in modules("deploy") if any(name.split(".")[0] == "benchmarks" for name in imported(p))]

    assert [p.relative_to(ROOT) for p in found] == [Path("deploy/commands/bench.py")]


def test_only_one_module_names_crypten():
    """CrypTen's global state ends in mpc/comparison.py. (The peer that is CrypTen itself is a process of its own.)"""
    loads = re.compile(r"""^\s*(import|from) crypten|import_module\(["']crypten""", re.MULTILINE)
    found = [p.relative_to(ROOT) for package in PACKAGES for p in modules(package) if loads.search(p.read_text())]

    assert found == [Path("mpc/comparison.py"), Path("benchmarks/peers/crypten_ttp.py")]


@pytest.mark.parametrize("module", ["mpc.dealer", "mpc.validation", "servers.dealer", "deploy.cli"])
def test_the_dealer_and_the_ring_core_start_without_torch(module):
    """Importing them loads neither PyTorch nor CrypTen nor Numba nor scikit-learn."""
    code = f"import sys, {module}; print([m for m in ('torch', 'crypten', 'numba', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_generated_stubs_are_fresh(tmp_path):
    """protoc makes exactly the committed stubs of the .proto files beside them."""
    sources = sorted(str(p.relative_to(ROOT)) for p in GENERATED.rglob("*.proto"))
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, *sources], cwd=ROOT, check=True)
    fresh = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*_pb2*.py*")}

    assert fresh
    assert {p: (ROOT / p).read_text() for p in fresh} == fresh, "run make protos"


def test_every_package_is_installed():
    """pyproject.toml lists every folder with an __init__.py."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    inits = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}

    assert found == set(settings["tool"]["setuptools"]["packages"])


def test_lock_files_hold_versions_and_hashes_only():
    """Every requirement is pinned and hashed; no address of any index is recorded."""
    for name in ("requirements.lock", "requirements-cuda.lock"):
        text = (ROOT / name).read_text()
        entries = [e for e in re.split(r"\n(?=\S)", text) if not e.startswith("#")]

        assert entries
        assert "://" not in text
        assert "--index" not in text
        assert all("==" in e and "--hash=sha256:" in e for e in entries)


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/architecture.md",
        "docs/experiments.md",
        "docs/export.md",
        "docs/extending.md",
        "docs/operations.md",
        "docs/performance.md",
        "docs/protocol.md",
        "docs/report.md",
        "docs/runbook.md",
        "docs/threat-model.md",
        "docs/simulation.md",
    ],
)
def test_documents_name_files_that_exist(document):
    """Each path in backticks or in a link that looks like one of ours is there."""
    text = (ROOT / document).read_text()
    folders = "|".join((*PACKAGES, "tests", "docs", "examples"))
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", text))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
