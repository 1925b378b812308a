"""The promises that the layout makes: which room may import which, three walls, what is generated, and true maps."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mpc", "dp", "protos", "servers", "clients", "deploy", "lab")
"""From the ground up: a package imports those before it, where the rows below allow it."""
GENERATED = "protos/precad/"


class Room(NamedTuple):
    """A folder without its subfolders. `mpc^` is what stands in `mpc` above its subfolders: the files that it names."""

    name: str
    may_import: str
    """Other packages, each as a whole; after the bar, rooms of the same package (`.` is the package's own folder)."""
    sentence: str
    files: str = ""

    @property
    def folder(self) -> str:
        """Its path from the root."""
        return self.name.rstrip("^")

    @property
    def package(self) -> str:
        """The folder at the root that it is in."""
        return self.folder.split("/")[0]

    @property
    def allowed(self) -> set[str]:
        """Return the packages and, by their full names, the rooms that it may import."""
        packages, _, rooms = self.may_import.partition("|")
        here = {self.package if name == "." else f"{self.package}/{name}" for name in rooms.split()}
        return {*packages.split(), *here}


ROOMS = (
    Room(
        "mpc", "", "Two-party computation over Z_2^64: everything that happens to a share, and nothing about the wire."
    ),
    Room("mpc/tuples", "| .", "Correlated randomness: dealt, held, and burnt before use."),
    Room("mpc/kernels", "| . tuples", "The compiled loops: the only folder that imports Numba."),
    Room("mpc/local", "| . kernels", "Everything that one server computes from vectors of length d."),
    Room("mpc/gate", "| . tuples kernels", "From shares of words to one opened bit per client."),
    Room(
        "mpc/robust",
        "| . tuples local gate",
        "Robust sums of secret vectors behind the check of norms: the shortest after a private test, or Krum's choice.",
    ),
    Room(
        "mpc/proved",
        "| . local kernels",
        "Mode `proved`: each client proves to both servers, in one message after the lock, that its update is short.",
    ),
    Room(
        "mpc/crypten",
        "| . tuples gate",
        "Everything that imports CrypTen: its carry circuit as a gate, and functions of the shared sum in its words.",
    ),
    Room(
        "mpc^",
        "| . tuples local gate crypten",
        "The check from its first to its last step, and the gates by name.",
        "validation gate_names",
    ),
    Room("dp", "", "Differential privacy of a PRECAD round: noise, accounting and the record of what was spent."),
    Room("dp/noise", "| .", "Exact noise on the integers."),
    Room("dp/accountants", "| .", "Privacy accountants: the cost of a training, and how it is computed."),
    Room(
        "dp/queries",
        "| .",
        "Queries of a column: records as vectors of norm at most one, and estimates with error bars from their noisy "
        "sum.",
    ),
    Room("dp/trimmed", "| . noise accountants", "Trimmed sums, and propose-test-release on them."),
    Room(
        "dp/certificates",
        "| . accountants",
        "Certificates that predictions and losses withstand attacks by clients.",
    ),
    Room(
        "dp/auditing",
        "| . accountants",
        "Audits of privacy: what the scores of canaries prove against an epsilon that is printed.",
    ),
    Room(
        "dp/published",
        "| . accountants trimmed certificates",
        "Formulas as printed in the papers, for comparison alone.",
    ),
    Room(
        "dp^",
        "| . accountants noise published",
        "What a task's round is to those whom it protects, what its figures rest on, and formulas side by side.",
        "task_privacy conditions ptr_side_by_side",
    ),
    Room("dp/ledgers", "| . accountants", "Ledgers: what was spent, on disk before anything is released."),
    Room(
        "protos", "", "The wire: messages of precad.v1, the values they carry, and the transport that they travel on."
    ),
    Room("protos/tls", "", "Mutual TLS: who is at the other end, and with which files."),
    Room("protos/task", "mpc dp | . tls", "A task's public parameters, and the one step that an opened sum takes."),
    Room("protos/messages", "mpc | task", "Messages to values and back."),
    Room("servers", "mpc protos", "The servers: two aggregators from one program, and the dealer."),
    Room("servers/database", "dp protos | .", "Durable tables: one door, with SQLite or PostgreSQL behind it."),
    Room(
        "servers/links", "mpc protos | .", "The connections between servers: of A with B, and of both with the dealer."
    ),
    Room("servers/store", "mpc dp protos | . database", "Everything durable of one task at one server."),
    Room("servers/rounds", "mpc dp protos | . links store", "Algorithm 1: one round from its selection to its commit."),
    Room("servers/telemetry", "dp protos | . store rounds", "Telemetry of a server: events, status, log lines."),
    Room(
        "servers/door",
        "mpc protos | . links store rounds telemetry",
        "gRPC in, values out: who may come in, and what a call that goes wrong is told.",
    ),
    Room(
        "servers/operations",
        "dp protos | . store rounds telemetry",
        "The operations port of a server: what an operator may look at, and nothing that changes anything.",
    ),
    Room(
        "servers/task",
        "mpc dp protos | . links store rounds telemetry door",
        "One task from the servers' meeting to its end.",
    ),
    Room(
        "servers^",
        "mpc dp protos | . database links store rounds telemetry door operations task",
        "The two programs: they open, hand over and close.",
        "aggregator dealer",
    ),
    Room(
        "clients",
        "mpc protos",
        "The client of PRECAD: trains on its own records and uploads one clipped, secret-shared update per round.",
    ),
    Room(
        "clients/records",
        "| .",
        "Labelled records, where they come from, and how an experiment spreads them over clients.",
    ),
    Room(
        "clients/records/own",
        "protos | . records",
        "Records of a client's own: files, data sets and functions, read, checked and kept aside.",
    ),
    Room(
        "clients/models",
        "protos | . records",
        "The models that clients train, and the flat vector that stands for one.",
    ),
    Room("clients/gradients", "| . records models", "Gradients of single records, clipped and summed."),
    Room("clients/training", "mpc dp protos | . records models gradients", "Algorithm 2 up to the clipped update."),
    Room(
        "clients/external",
        "mpc protos | . records/own models gradients training",
        "Foreign trainers, in processes of their own.",
    ),
    Room(
        "clients/queries",
        "mpc dp protos | . records records/own training",
        "Queries about a column: the values that a client holds, and its answers within its own limit.",
    ),
    Room(
        "clients/auditing",
        "mpc dp protos | . records models training",
        "Audit clients: members of a task whose records are canaries, by coins that the auditor keeps.",
    ),
    Room("clients/upload", "mpc protos | . training", "One client's session with both servers."),
    Room(
        "clients^",
        "mpc dp protos | . records records/own models gradients training auditing external queries upload",
        "The client's process.",
        "process loading payments",
    ),
    Room(
        "clients/attacks",
        "mpc protos | . records training auditing",
        "Malicious clients for experiments: what they do instead of following the protocol. One file a family.",
    ),
    Room("deploy/files", "", "Files and folders that appear whole or not at all."),
    Room("deploy/authority", "protos | files", "A private certificate authority, and enrolment by one-time token."),
    Room("deploy/shown", "dp clients", "How figures, tables and durations are written for people."),
    Room(
        "deploy",
        "mpc dp protos servers clients | files authority",
        "Tie the parts together: configuration, certificates, the command line, and the runner for one machine.",
    ),
    Room(
        "deploy/run_files",
        "dp protos servers | . files shown",
        "Runs as they lie on disk: what each leaves behind, whether it goes on, and what its files say.",
    ),
    Room(
        "deploy/authority/enrolment",
        "protos servers | authority",
        "Certificates by one-time token: the tokens, the authority's endpoint, and whoever enrols there.",
    ),
    Room(
        "deploy/configuration",
        "mpc dp protos servers clients | . run_files shown files",
        "One TOML file per deployment, validated as a whole.",
    ),
    Room(
        "deploy/localhost",
        "mpc dp protos servers clients | authority . run_files shown configuration",
        "A whole deployment on one machine, as processes.",
    ),
    Room(
        "deploy/measuring",
        "protos servers clients | . configuration localhost",
        "Measure committed models on public records, beside a server and outside of its process.",
    ),
    Room(
        "deploy/oversight",
        "mpc dp protos servers | . run_files shown configuration localhost",
        "`precad status`, `precad watch` and `precad audit`: servers seen from outside.",
    ),
    Room(
        "deploy/tracking",
        "dp protos servers | . oversight",
        "`precad track`: rounds as an operator sees them, in trackers and as spans. No server imports any of it.",
    ),
    Room(
        "deploy/guarantees",
        "dp protos servers clients | . run_files shown configuration",
        "`precad account` and `precad certify`: what a training proves.",
    ),
    Room(
        "deploy/reporting",
        "dp protos clients | files . run_files shown configuration guarantees",
        "`precad report`: what run folders say, as one page that works without a network, and as PNG figures.",
    ),
    Room(
        "deploy/exporting",
        "dp protos servers clients | files . run_files shown configuration oversight guarantees reporting",
        "`precad export` and `precad verify-export`: a trained model as files that both servers sign.",
    ),
    Room(
        "deploy/provisioning",
        "protos servers clients | files authority . configuration",
        "`precad provision` and `precad join`: a kit for each organisation, which starts it without hand-made files.",
    ),
    Room(
        "deploy/cli",
        "mpc dp protos servers clients | authority . run_files shown authority/enrolment configuration localhost "
        "measuring oversight tracking guarantees reporting exporting provisioning",
        "The command `precad`, a module for each kind of command.",
    ),
    Room("lab", "", "The laboratory: it measures, simulates and repeats papers. It may import everything."),
    Room(
        "lab/simulation/rules",
        "mpc dp clients",
        "Aggregation rules of one server that sees every update, for comparison with PRECAD. One idea a file.",
    ),
    Room(
        "lab/simulation",
        "mpc dp protos servers clients deploy | simulation/rules",
        "Federated training in one process, for research: PRECAD's rounds, and what they are compared with.",
    ),
    Room(
        "lab/simulation/algorithms",
        "mpc dp protos clients | simulation",
        "The training algorithms that a simulation knows: PRECAD, and what it is compared with. One class a file.",
    ),
    Room(
        "lab/simulation^",
        "dp protos servers clients deploy | simulation/rules simulation simulation/algorithms",
        "A whole training in one process, for as many seeds as asked for.",
        "__init__ training simulate apps progress shown reported",
    ),
    Room(
        "lab/auditing",
        "mpc dp protos servers clients deploy | simulation simulation^ simulation/algorithms",
        "`precad audit privacy`: what an attack on the running system shows, beside each epsilon that is printed.",
    ),
    Room(
        "lab/bench/peers",
        "deploy",
        "Other people's answers to the same question, each a program with an environment of its own.",
    ),
    Room(
        "lab/bench",
        "mpc dp protos servers clients deploy | simulation^ auditing bench/peers",
        "`precad bench`: what the protocol costs, beside what a user would otherwise pick, measured in one run.",
    ),
    Room(
        "lab/papers",
        "dp protos clients deploy | simulation/rules simulation simulation^ bench/peers",
        "Repeat what the papers report: a module for each experiment, and what several of them share.",
    ),
    Room("lab/papers/precad", "dp deploy | simulation simulation^ papers", "Experiments of PRECAD's paper."),
    Room(
        "lab/papers/ptr",
        "dp clients deploy | simulation/rules simulation papers",
        "Experiments of the propose-test-release paper.",
    ),
    Room("lab/papers/naseri", "clients deploy | simulation papers", "Experiments of Naseri et al.'s paper."),
    Room(
        "lab/papers/xie",
        "dp protos clients deploy | simulation/rules simulation simulation^ papers",
        "Experiments of Xie et al.'s paper.",
    ),
    Room(
        "lab/commands",
        "mpc protos clients deploy | simulation simulation^ auditing bench papers papers/precad papers/ptr "
        "papers/naseri papers/xie",
        "The laboratory's commands.",
    ),
)


@cache
def sources() -> dict[str, str]:
    """Our modules by path, generated ones left out."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}
    return {name: text for name, text in found.items() if not name.startswith((GENERATED, "deploy/hosts/"))}


def module_of(path: str) -> str:
    """The import name of a file."""
    return "precad." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def called_name(call: ast.Call) -> str:
    """Return the last name of what is called, empty where it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def imported(text: str) -> frozenset[str]:
    """Return every module that a file imports, wherever in it, by full name; a relative one begins with a dot.

    Calls of `import_module` count too, with the folder where the name's end is computed.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and called_name(node).endswith("import_module"):
            said = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(said, ast.Constant):
                names.add(str(said.value).rstrip("."))
    return frozenset(names)


def graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which of our files each file imports."""
    files = {module_of(path): path for path in texts}
    edges: dict[str, set[str]] = {}
    for path, text in texts.items():
        names = set(imported(text))
        names |= {name.rpartition(".")[0] for name in names if name not in files}
        edges[path] = {files[name] for name in names if name in files} - {path}
    return edges


@cache
def room_of(path: str) -> Room:
    """Return the room that a file is in."""
    folder, _, name = path.rpartition("/")
    here = [room for room in ROOMS if room.folder == folder]
    assert here, f"{path}: expected a row in ROOMS for its folder"
    return next((room for room in here if Path(name).stem in room.files.split()), here[0])


def may(room: Room, other: Room) -> bool:
    """Tell whether a room's row allows an import of another room."""
    return room == other or (other.name if room.package == other.package else other.package) in room.allowed


def forbidden(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the imports, file by file, that no row allows."""
    return {
        (path, target)
        for path, targets in graph(texts).items()
        for target in targets
        if not may(room_of(path), room_of(target))
    }


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach one another."""
    reached = {node: _reached(node, edges) for node in edges}
    groups = {frozenset({node, *(o for o in reached[node] if node in reached.get(o, ()))}) for node in edges}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges.get(waiting.pop(), set()) - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def through_walls(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the imports that cross a wall, whatever the rows say.

    The honest client knows no attack; storage knows no round; the product does not know the laboratory.
    """
    return {
        (path, target)
        for path, targets in graph(texts).items()
        for target in targets
        if (
            (target.startswith("clients/attacks/") and not path.startswith(("clients/attacks/", "deploy/", "lab/")))
            or (path.startswith("servers/store/") and target.startswith("servers/rounds/"))
            or (target.startswith("lab/") and not path.startswith("lab/"))
        )
    }


def bare(texts: Mapping[str, str]) -> set[str]:
    """Return the files that import a folder by its own name, or one another relatively."""
    names = {*PACKAGES, "benchmarks", ""}  # what is in front of the dot of a relative one
    return {path for path, text in texts.items() if any(n.split(".")[0] in names for n in imported(text))}


def test_rooms_import_only_what_their_rows_allow() -> None:
    """No import that no row allows, and none through a wall."""
    assert forbidden(sources()) == set()
    assert through_walls(sources()) == set()


def test_rows_point_down() -> None:
    """A row names rooms of its own package that stand before it, and packages that stand before its own."""
    seen: set[str] = set()
    for room in ROOMS:
        below = {*PACKAGES[: PACKAGES.index(room.package)], *seen}
        assert room.allowed <= below, room.name
        seen.add(room.name)


def test_every_row_is_a_folder_with_its_sentence() -> None:
    """A folder's `__init__` begins with the sentence of its row."""
    for room in ROOMS:
        init = ROOT / room.folder / "__init__.py"
        said = ast.get_docstring(ast.parse(init.read_text())) or ""
        assert room.files or said.startswith(room.sentence), room.name
        assert all((init.parent / f"{stem}.py").exists() for stem in room.files.split()), room.name


def test_no_import_circle() -> None:
    """Neither of files nor of rooms."""
    edges = graph(sources())
    rooms: dict[str, set[str]] = {room.name: set() for room in ROOMS}
    for path, targets in edges.items():
        here = room_of(path).name
        rooms[here] |= {room_of(target).name for target in targets} - {here}

    assert circles(edges) == []
    assert circles(rooms) == []


def test_nothing_imports_a_folder_by_its_own_name() -> None:
    """One import name, `precad`: a user's own folders `mpc/` or `clients/` are never taken for ours."""
    assert bare(sources()) == set()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("mpc/planted.py", "from precad.mpc.gate import top_bits"),
        ("mpc/gate/planted.py", "import precad.mpc.validation"),
        ("dp/planted.py", "from precad.mpc import ring"),
        ("servers/links/planted.py", "def f():\n    from precad.servers.telemetry.events import Telemetry"),
        ("servers/planted.py", "from precad.clients.errors import ClientError"),
        ("deploy/files/planted.py", "from precad.deploy import errors"),
        ("mpc/local/planted.py", 'import importlib\nx = importlib.import_module("precad.mpc.proved.field")'),
        ("mpc/kernels/planted.py", 'from importlib import import_module\nx = import_module(f"precad.mpc.local.{1}")'),
    ],
)
def test_a_planted_arrow_up_is_found(path: str, line: str) -> None:
    """One import that its room's row does not allow."""
    assert {found for found, _ in forbidden({**sources(), path: line}) - forbidden(sources())} == {path}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("clients/training/planted.py", "from precad.clients.attacks import Attack"),
        ("servers/planted.py", "import precad.clients.attacks.attack"),
        ("servers/store/planted.py", "from precad.servers.rounds import round"),
        ("deploy/reporting/planted.py", "def f():\n    from precad.lab.simulation import simulate"),
        ("clients/planted.py", "from precad.lab.bench.statistics import Spread"),
    ],
)
def test_a_planted_hole_in_a_wall_is_found(path: str, line: str) -> None:
    """Each of the three walls, at module level and inside a function."""
    assert {found for found, _ in through_walls({**sources(), path: line}) - through_walls(sources())} == {path}


def test_a_planted_circle_is_found() -> None:
    """Two files of one room, which the rows allow."""
    one, other = "dp/noise/planted_one.py", "dp/noise/planted_other.py"
    planted = {
        one: "from precad.dp.noise.planted_other import x",
        other: "def f():\n    from precad.dp.noise import planted_one",
    }
    assert [one, other] in circles(graph({**sources(), **planted}))


@pytest.mark.parametrize("line", ["import mpc.ring", "from dp import errors", "import benchmarks", "from . import x"])
def test_a_planted_bare_import_is_found(line: str) -> None:
    """Absolute from a folder, or relative."""
    assert bare({"dp/planted.py": line}) == {"dp/planted.py"}


def test_a_new_folder_needs_a_row() -> None:
    with pytest.raises(AssertionError, match="a row in ROOMS"):
        room_of("servers/planted/module.py")


NO_MIRRORS = frozenset({"", "docs", "faults", "integration", "vectors", "deploy/hosts"})
"""Folders of tests beside those of the source: of the tree, its documents, whole systems, and files for operators."""


def not_mirrored(source: Iterable[str], tests: Iterable[str]) -> set[str]:
    """Return the folders of modules without tests at the same path, and those of tests without modules there."""
    code = {path.rpartition("/")[0] for path in source if not path.endswith("/__init__.py")}
    tested = {path.rpartition("/")[0].partition("tests")[2].strip("/") for path in tests}
    return code ^ (tested - NO_MIRRORS)


@cache
def modules_and_tests() -> tuple[list[str], list[str]]:
    """Return the paths of our modules, the front door's among them, and of our files of tests."""
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    return [*sources(), *(f"precad/{path.name}" for path in (ROOT / "precad").glob("*.py"))], tests


def test_tests_mirror_the_source() -> None:
    """A folder with a module has a file of tests at the same path below `tests/`, and the other way round."""
    assert not_mirrored(*modules_and_tests()) == set()


@pytest.mark.parametrize("folder", sorted({"precad", *(room.folder for room in ROOMS)} - {"lab"}))
def test_a_folder_that_loses_its_tests_is_found(folder: str) -> None:
    """As is a new one without any, and one of tests of nothing. Tests of a subfolder do not count for it."""
    source, tests = modules_and_tests()
    left = [path for path in tests if str(Path(path).parent) != f"tests/{folder}"]
    assert not_mirrored(source, left) == {folder}
    assert not_mirrored([*source, f"{folder}/planted/module.py"], tests) == {f"{folder}/planted"}
    assert not_mirrored(source, [*tests, f"tests/{folder}/planted/test_it.py"]) == {f"{folder}/planted"}


@pytest.mark.parametrize("folder", sorted({room.folder for room in ROOMS}))
def test_the_map_of_a_folder_names_what_is_in_it(folder: str) -> None:
    """Every module and folder of source has a line in the docstring of `__init__`."""
    here = ROOT / folder
    text = ast.get_docstring(ast.parse((here / "__init__.py").read_text())) or ""
    there = {p.stem for p in here.glob("*.py")} | {p.name for p in here.iterdir() if (p / "__init__.py").exists()}
    there -= {"__init__", "precad"} if folder == "protos" else {"__init__"}
    rows = re.findall(r"^ *((?:[a-z0-9_]+/?, )*[a-z0-9_]+/?)(?: |$)", text, flags=re.MULTILINE)
    named = {name.strip("/") for names in rows for name in names.split(", ")}

    assert there <= named, f"{folder}/__init__.py does not name {sorted(there - named)}"
    lines = re.findall(r"^ {4}([a-z0-9_]+)/? {2,}", text, flags=re.MULTILINE)
    assert sorted(set(lines)) == sorted(lines), f"{folder}/__init__.py has two lines for one name"
    in_order = set(re.findall(r"`(\w+)`", text.partition("Reading order:")[2]))
    assert in_order <= there, f"{folder}/__init__.py: no {sorted(in_order - there)} to read there"


@pytest.mark.parametrize("module", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/errors.py")))
def test_the_tree_of_errors_is_that_of_the_classes(module: str) -> None:
    """Each class has a line in the docstring's tree, below one that it is derived from."""
    parsed = ast.parse((ROOT / module).read_text())
    kinds = {node.name: node.bases for node in parsed.body if isinstance(node, ast.ClassDef)}
    bases = {name: {ast.unparse(base) for base in found} for name, found in kinds.items() if name.endswith("Error")}
    above: list[tuple[int, str]] = []
    drawn: dict[str, str] = {}
    for branch, name in re.findall(r"^([ │├└─]*)(\w+Error)\b", ast.get_docstring(parsed) or "", flags=re.MULTILINE):
        above = [(depth, parent) for depth, parent in above if depth < len(branch)]
        drawn[name] = above[-1][1] if above else ""
        above.append((len(branch), name))

    assert drawn.keys() == bases.keys()
    wrong = [name for name, parent in drawn.items() if parent and parent not in bases[name]]
    assert not wrong, f"{module}: {wrong} are derived from others than the tree says"


def test_only_comparisons_take_up_published_formulas() -> None:
    """In the product; experiments repeat papers with them."""
    edges = {
        path: targets for path, targets in graph(sources()).items() if not path.startswith(("dp/published/", "lab/"))
    }
    found = {path for path, targets in edges.items() if any(one.startswith("dp/published/") for one in targets)}

    assert found == {"dp/ptr_side_by_side.py"}


def test_only_one_room_names_crypten() -> None:
    """CrypTen's global state ends in mpc/crypten. (The peer that is CrypTen itself is a process of its own.)"""
    loads = re.compile(r"""^\s*(import|from) crypten|import_module\(["']crypten""", re.MULTILINE)
    found = {str(Path(path).parent) for path, text in sources().items() if loads.search(text)}

    assert found == {"mpc/crypten", "lab/bench/peers"}


def test_only_one_room_compiles() -> None:
    """Numba is imported in mpc/kernels alone. (A benchmark compiles the unsound check.)"""
    loads = re.compile(r"^\s*(import|from) numba", re.MULTILINE)
    found = {path for path, text in sources().items() if loads.search(text) and not path.startswith("mpc/kernels/")}

    assert found == {"lab/bench/unsound.py"}


TRACKERS = ("tensorboard", "mlflow", "wandb", "opentelemetry")
SERVERS_DO_WITHOUT = (
    *("torch", "crypten", "numba", "sklearn", "dp_accounting", "scipy.stats", "matplotlib", "sympy"),
    *TRACKERS,
)
STARTS = {
    "dp.ledgers.ledger": ("dp_accounting", "scipy"),
    "mpc.tuples.dealt": ("torch", "crypten", "numba", "scipy"),
    "mpc.validation": ("torch", "crypten", "numba", "scipy"),
    "deploy.cli.main": (*SERVERS_DO_WITHOUT, "scipy", "aiohttp", "jinja2"),
    "servers.dealer": (*SERVERS_DO_WITHOUT, "scipy", "mpmath"),
    "deploy.configuration.check": (*SERVERS_DO_WITHOUT, "scipy"),
    "deploy.localhost.whole": (*SERVERS_DO_WITHOUT, "scipy"),
    "deploy.oversight.status_sources": (*SERVERS_DO_WITHOUT, "scipy"),
    "deploy.oversight.status_shown": (*SERVERS_DO_WITHOUT, "scipy"),
    "servers.aggregator": SERVERS_DO_WITHOUT,
    "deploy.tracking.follow": SERVERS_DO_WITHOUT,
    "deploy.cli.track": SERVERS_DO_WITHOUT,
}
"""Modules that no start waits for: a role's, or a command's before it knows that its configuration is sound. What one
may load, those below may load too."""
LOADED = """
import importlib, json, sys
loaded = {}
for module, unwanted in json.loads(sys.argv[1]).items():
    importlib.import_module(f"precad.{module}")
    loaded[module] = [name for name in unwanted if name in sys.modules]
print(json.dumps(loaded))
"""


def test_a_start_waits_for_nothing_that_it_does_not_need() -> None:
    """Importing one, after those above it, loads none of these."""
    command = [sys.executable, "-c", LOADED, json.dumps(STARTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == {module: [] for module in STARTS}


def test_no_image_holds_a_tracker() -> None:
    """An image has what the lock files name, and they name none."""
    locked = "".join(file.read_text() for file in ROOT.glob("requirements*.lock"))

    assert "prometheus-client==" in locked
    assert not [name for name in TRACKERS if re.search(rf"^{name}", locked, re.MULTILINE)]


def test_a_client_starts_and_probes_its_model_without_what_it_does_not_need() -> None:
    """Beside the servers' part, PyTorch's compiler takes as long to import as everything else.

    An ordinary PyTorch mode would import it.
    """
    unwanted = (*SERVERS_DO_WITHOUT[1:], "scipy.signal", "precad.clients.attacks", "precad.servers", "torch._dynamo")
    code = (
        "import sys, torch, precad.clients.process; from precad.clients.gradients.probe import probe\n"
        "from precad.clients.models.losses import CROSS_ENTROPY\n"
        "path, *_ = probe(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).double(), "
        "torch.rand(3, 1, 2, 2, dtype=torch.float64), torch.tensor(0), CROSS_ENTROPY)\n"
        f"print(path.value, [m for m in {unwanted} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "one-pass []"


def test_children_are_started_safely() -> None:
    """A process of ours that starts another by module name leaves the folder that it stands in out of its search."""
    started = re.compile(r"""sys\.executable,\s*(?P<safe>"-P",\s*)?"-m",\s*"precad\.""")
    tests = {p.relative_to(ROOT).as_posix(): p.read_text() for p in sorted((ROOT / "tests").rglob("*.py"))}
    found = [(path, m["safe"]) for path, text in {**sources(), **tests}.items() for m in started.finditer(text)]

    assert len(found) >= 3
    assert [path for path, safe in found if not safe] == []


def test_generated_stubs_are_fresh(tmp_path: Path) -> None:
    """protoc makes exactly the committed stubs of the .proto files beside them."""
    protos = ROOT / "precad" / GENERATED
    names = sorted(p.relative_to(ROOT).as_posix() for p in (protos / "v1").glob("*.proto"))
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, *names], cwd=ROOT, check=True)
    fresh = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*_pb2*.py*")}

    assert fresh
    assert {p: (ROOT / p).read_text() for p in fresh} == fresh, "run make protos"


def test_precad_holds_a_link_to_every_folder() -> None:
    """`precad/` has the front door and, for each package, a relative link."""
    links = {p.name: p.readlink().as_posix() for p in (ROOT / "precad").iterdir() if p.is_symlink()}

    assert links == {name: f"../{name}" for name in PACKAGES}
    assert (ROOT / "precad" / "py.typed").exists()


def test_every_package_is_installed() -> None:
    """The build finds every folder with an __init__.py, under `precad` and nowhere else."""
    from setuptools import find_packages

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    del settings["namespaces"]  # find_packages never takes a folder without __init__.py
    folders = [p.parent.relative_to(ROOT) for package in PACKAGES for p in (ROOT / package).rglob("__init__.py")]

    assert set(find_packages(str(ROOT), **settings)) == {"precad", *(".".join(("precad", *f.parts)) for f in folders)}


def test_lock_files_hold_versions_and_hashes_only() -> None:
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
        "docs/explanation/architecture.md",
        "docs/results/experiments.md",
        "docs/guides/export.md",
        "docs/guides/extending.md",
        "docs/guides/operations.md",
        "docs/guides/own-records.md",
        "docs/results/performance.md",
        "docs/reference/protocol.md",
        "docs/guides/report.md",
        "docs/guides/runbook.md",
        "docs/explanation/threat-model.md",
        "docs/guides/simulation.md",
        *sorted(
            path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "explanation" / "decisions").glob("0*.md")
        ),
    ],
)
def test_documents_name_files_that_exist(document: str) -> None:
    """Each path in backticks or in a link that looks like one of ours is there."""
    text = (ROOT / document).read_text()
    folders = "|".join((*PACKAGES, "tests", "docs", "examples"))
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", text))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
