"""The promises that the layout makes: who imports whom, what is generated, and that the README's map is true."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from protos.identity import Role
from tests.deploy.organisations import Organisations

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
LIGHT = (
    "deploy.commands.bench",
    "deploy.commands.experiment_runs",
    "deploy.commands.experiments",
    "deploy.commands.simulate",
    "deploy.commands.xie_experiments",
)
LABORATORY = (
    *LIGHT,
    "benchmarks",
    "clients.aggregation",
    "clients.simulation",
    "deploy.experiments",
    "deploy.simulate",
    "deploy.simulation_shown",
    "deploy.workers",
    "deploy.reporting.simulated",
    "deploy.reporting.replay",
)
"""What measures, simulates and repeats papers. It may import everything, and the product imports none of it. The light
modules hold its commands, which the help imports."""
PRODUCT_DOORS = (
    "deploy.cli",
    "deploy.localhost",
    "deploy.reporting.write",
    "deploy.exporting.export",
    "deploy.certify_commands",
    "servers.aggregator",
    "servers.dealer",
    "clients.process",
)
"""Modules that between them import the product."""


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


WALL = "clients.attacks"
BEHIND_THE_WALL = (ROOT / "clients" / "attacks", ROOT / "clients" / "simulation")
HONEST = tuple(
    path
    for package in ("clients", "servers", "mpc", "dp", "protos")
    for path in modules(package)
    if not any(folder in path.parents for folder in BEHIND_THE_WALL)
)


def named(source: str, package: str) -> set[str]:
    """All that a source file of that package may load, by full name: what it imports, each name that it takes from
    there, and what it hands to a function that loads modules by name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return names


def crosses_the_wall(source: str, package: str) -> bool:
    """Whether it names the attacks' package, or a module in it."""
    return any(name == WALL or name.startswith((f"{WALL}.", f"{WALL}:")) for name in named(source, package))


def test_the_honest_client_knows_no_attack():
    """Nor does a server or a library: `clients.attacks` is for deploy, benchmarks, simulations and tests."""
    assert len(HONEST) > 100
    crossing = [
        path.relative_to(ROOT)
        for path in HONEST
        if crosses_the_wall(path.read_text(), ".".join(path.parent.relative_to(ROOT).parts))
    ]

    assert crossing == []


@pytest.mark.parametrize(
    ("planted", "package"),
    [
        ("import clients.attacks", "servers"),
        ("from clients.attacks import ATTACKS", "clients"),
        ("from clients.attacks.wrap_around import WrapAround", "clients"),
        ("from clients import attacks", "clients"),
        ("from . import attacks", "clients"),
        ("from .attacks.late import Late", "clients"),
        ("from ..attacks import Late", "clients.datasets"),
        ("def f():\n    from clients.attacks import Late", "clients"),
        ("if TYPE_CHECKING:\n    from clients.attacks import Attack", "mpc"),
        ("importlib.import_module('clients.attacks')", "protos"),
        ("imported('attack', 'clients.attacks:Late')", "clients"),
    ],
)
def test_an_import_of_an_attack_is_found_wherever_it_is_planted(planted, package):
    """In the session of a client, at its end, without a change of its own."""
    source = (ROOT / "clients" / "session.py").read_text()

    assert not crosses_the_wall(source, package)
    assert crosses_the_wall(f"{source}\n{planted}\n", package)


@pytest.mark.parametrize(
    "near", ["from clients.attack import X", "import clients.attacks_of", "from ..attacks import X"]
)
def test_another_module_with_a_name_like_it_is_none(near):
    assert not crosses_the_wall(near, "servers.operations")


def is_laboratory(name: str) -> bool:
    """Whether a module, by its full name, measures, simulates or repeats papers."""
    return any(f"{name}.".startswith(f"{room}.") for room in LABORATORY)


def through_the_wall(root: Path) -> list[str]:
    """Every import of the laboratory by the product, wherever in a file."""
    found = []
    for path in (p for package in PACKAGES for p in sorted((root / package).rglob("*.py"))):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if not is_laboratory(name):
            named = set(filter(is_laboratory, with_names(path)))
            found += [
                f"{path.relative_to(root)} imports {m}" for m in sorted(named) if m.rpartition(".")[0] not in named
            ]
    return found


def with_names(path: Path) -> set[str]:
    """Like `imported`, and each name that is imported from a module, since it may be a module, too."""
    nodes = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module and not n.level
    ]
    return imported(path) | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def without_laboratory(to: Path) -> Path:
    """The sources below a folder of their own, as an image without the laboratory has them."""
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*") if p.is_file()):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not is_laboratory(name) and "__pycache__" not in path.parts:
            (to / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to / path.relative_to(ROOT))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def test_the_product_does_not_know_the_laboratory():
    """No file outside the laboratory imports one of it, at module level or in a function."""
    assert all(
        (ROOT / room.replace(".", "/")).is_dir() or (ROOT / f"{room.replace('.', '/')}.py").is_file()
        for room in LABORATORY
    )
    assert through_the_wall(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "module"),
    [
        ("servers/round.py", "import benchmarks.validation", "benchmarks.validation"),
        ("deploy/check.py", "def late():\n    from deploy import simulate\n", "deploy.simulate"),
        ("clients/session.py", "from clients.simulation.attackers import StatOpt", "clients.simulation.attackers"),
        ("dp/ledger.py", "from clients import aggregation as rules", "clients.aggregation"),
        ("deploy/cli.py", "from deploy.commands.bench import bench_app", "deploy.commands.bench"),
    ],
)
def test_the_wall_to_the_laboratory_refuses_a_planted_import(tmp_path, file, line, module):
    """The test above would see it."""
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f"{(ROOT / file).read_text()}\n{line}\n")

    assert through_the_wall(tmp_path) == [f"{file} imports {module}"]


def run_in(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`precad` of the sources in that folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "deploy.cli", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """The product alone."""
    return without_laboratory(tmp_path_factory.mktemp("product"))


def test_precad_without_the_laboratory_lists_no_command_of_it_and_says_so(product):
    """Help without them, and exit code 2 with what is missing."""
    shown, refused = run_in(product, "--help"), run_in(product, "simulate", "--rounds", "3")

    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"^  (run|simulate|client|audit|bench|experiment) ", shown.stdout, re.M) == [
        "run",
        "client",
        "audit",
    ]
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "precad: precad simulate: expected the laboratory, found none: this installation holds no laboratory\n"
    )


def test_precad_without_the_laboratory_does_the_rest(product, tmp_path):
    """It checks an organisation's configuration and accounts for a training."""
    organisations = Organisations.create(tmp_path)
    organisations.write_configs()
    checked = run_in(product, "check", str(organisations.config(Role.DEALER)), "--json")
    assert checked.returncode == 0, checked.stderr
    assert set(json.loads(checked.stdout)) >= {"task_digest", "dealer"}

    setting = ("--sigma", "1", "-q", ".1", "-p", ".05", "--rounds", "50", "--delta", "1e-5")
    accounted = run_in(product, "account", *setting, "--json")
    assert accounted.returncode == 0, accounted.stderr
    assert json.loads(accounted.stdout)["one_server"]["bound"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("module", PRODUCT_DOORS)
def test_every_part_of_the_product_starts_without_the_laboratory(product, module):
    """Importing it needs no file that is not there."""
    environment = {**os.environ, "PYTHONPATH": str(product)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {module}; print({module}.__file__)"],
        cwd=product,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(product)


@pytest.mark.slow
def test_a_report_without_the_laboratory_refuses_a_simulations_folder(product, tmp_path):
    """It says what would read it."""
    (tmp_path / "config.toml").touch()
    (tmp_path / "seed-0.jsonl").touch()
    refused = run_in(product, "report", str(tmp_path))

    assert refused.returncode == 2, refused.stderr
    assert "this installation holds no laboratory" in refused.stderr


def test_a_servers_command_loads_nothing_of_the_laboratory_and_help_nothing_heavy():
    """A joined command is imported when it is called or listed; what it needs, when it runs."""
    code = (
        "import sys, typer, deploy.cli; main = typer.main.get_command(deploy.cli.app).main\n"
        "main(['serve', 'dealer', '--help'], standalone_mode=False); print('', *sys.modules, sep='\\n- ')\n"
        "main(['--help'], standalone_mode=False); print('', *sys.modules, sep='\\n+ ')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    served = re.findall(r"^- (.*)$", done.stdout, re.MULTILINE)
    helped = re.findall(r"^\+ (.*)$", done.stdout, re.MULTILINE)

    assert "deploy.commands.roles" in served
    assert [name for name in served if is_laboratory(name)] == []
    assert {name for name in helped if is_laboratory(name)} == set(LIGHT)
    assert {"torch", "crypten", "scipy", "numba", "sklearn"}.isdisjoint(helped)


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
