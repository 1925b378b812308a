"""A bad configuration stops everything before it starts: exit code 2, field, expected, found, and nothing left behind.

Failure means one of these:
- a fault that is not reported, or reported without its field or without what was found;
- a second fault hidden by the first;
- a folder, a file or a process that is there afterwards;
- another exit code than 2.
"""

from __future__ import annotations

import copy
import io
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from rich.console import Console
from typer.testing import Result

from precad.clients.errors import ArgumentError
from precad.deploy.cli import main as cli
from precad.deploy.configuration import sections
from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import INVALID_INPUT, ConfigError, exit_code_of
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.run_files.folder import default_output
from precad.protos.tls.files import TransportError
from precad.protos.tls.identity import IdentityError
from tests.harness.command_line import CliRunner

REMOVE = object()
SERVERS = ("aggregator_a", "aggregator_b", "dealer")
REFUSALS = (ConfigError, ArgumentError, IdentityError, TransportError)
"""Errors that may be raised about a configuration; `exit_code_of` each is 2."""


def changed(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with some values replaced, or removed; keys are paths with dots."""
    new = copy.deepcopy(raw)
    for path, value in changes.items():
        *folders, name = path.split(".")
        table = new
        for folder in folders:
            table = table.setdefault(folder, {})
        if value is REMOVE:
            del table[name]
        else:
            table[name] = value
    return new


def batch_normalised() -> torch.nn.Module:
    """A model of the user's own that mixes records."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(72, 10)
    )


def simple() -> dict[str, Any]:
    """Return what a user writes for `precad run`."""
    raw = demo_config(n_clients=4, rounds=3)
    raw["task"]["frac_bits"], raw["client"]["attacks"] = 16, {}
    return raw


# -- values: every fault has its line ----------------------------------------------------------------------------------


def complete() -> dict[str, Any]:
    """Return what a client's operator writes for `precad client`: nothing is left to the runner."""
    raw = simple()
    raw["task"] |= {"clients": dict.fromkeys(raw["task"]["clients"], 359), "dim": 4810}
    raw["client"] |= {"certificates": "pki", "authority": "/etc/ca.pem"}
    raw["network"] = {name: f"127.0.0.1:{port}" for port, name in enumerate(SERVERS, 4711)}
    return raw


def parse_faults(changes: dict[str, Any]) -> list[str]:
    """The lines about a complete configuration, changed."""
    with pytest.raises(ConfigError) as refused:
        sections.parse(changed(complete(), changes), base=Path("/nowhere"))
    return str(refused.value).splitlines()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value", "expected", "found"),
    [
        ("task.client_rate", 1.5, "less than or equal to 1", "1.5"),
        ("task.client_rate", -0.1, "greater than 0", "-0.1"),
        ("task.client_rate", 0.0, "greater than 0", "0.0"),
        ("task.client_rate", NAN, "finite", "nan"),
        ("task.client_rate", "0.9", "valid number", "'0.9'"),
        ("task.client_rate", True, "valid number", "True"),
        ("task.record_rate", 0.0, "greater than 0", "0.0"),
        ("task.record_rate", 1.01, "less than or equal to 1", "1.01"),
        ("task.record_clip", 0.0, "greater than 0", "0.0"),
        ("task.client_clip", NAN, "finite", "nan"),
        ("task.client_clip", INF, "finite", "inf"),
        ("task.client_clip", -1.0, "greater than 0", "-1.0"),
        ("task.client_clip", 1434.4, "at most 94000000", "1434.4"),  # C * 2^16 = 94 004 838
        ("task.frac_bits", 23, "at most 94000000", "23"),  # 16 * 2^23 = 134 217 728
        ("task.frac_bits", 41, "less than or equal to 40", "41"),
        ("task.frac_bits", 16.0, "valid integer", "16.0"),
        ("task.noise_multiplier", 0.0, "greater than 0", "0.0"),
        ("task.noise_multiplier", NAN, "finite", "nan"),
        ("task.noise_multiplier", 1e14, "a number in [8, 2^40]", "6.5536e+18"),
        ("task.learning_rate", INF, "finite", "inf"),
        ("task.delta", 0.0, "greater than 0", "0.0"),
        ("task.delta", 1.0, "less than 1", "1.0"),
        ("task.delta", NAN, "expected a finite number", "found nan"),
        ("task.rounds", 0, "greater than or equal to 1", "0"),
        ("task.rounds", "30", "valid integer", "'30'"),
        ("task.dim", 0, "greater than or equal to 1", "0"),
        ("task.dim", 17_179_869_200, "at most 17179869199", "17179869200"),
        ("task.model_seed", 2**64, "less than 18446744073709551616", "18446744073709551616"),
        ("task.local_steps", 10**7, "less than or equal to 1000000", "10000000"),
        ("task.name", "Über/alles", "a text of the pattern", "Über/alles"),
        ("task.mode", "plain", "'masked', 'shares' or 'proved'", "'plain'"),
        ("task.gate", "none", "'crypten'", "'none'"),
        ("client.state_dir", ["a"], "the name of a file", "['a']"),
        ("task.clients", {"a": 1}, "at least 2", "1"),
        ("task.clients", ["a", "b"], "records for each client, as precad check, run, query and simulate alone", "a"),
        ("task.clients.client-0", 0, "greater than or equal to 1", "0"),
        ("task.clients", {"a": 1, "../b": 1}, "match", "../b"),
        ("task.clients", {"a": 1, "Eve": 1}, "match", "Eve"),
        ("task.min_clients", 5, "at most the 4", "5"),
        ("task.submit_timeout_s", INF, "finite", "inf"),
        ("task.epsilon_budget_one_server", -1.0, "greater than 0", "-1.0"),
        ("task.colour", "red", "no such key", "'red'"),
        ("tasks", {}, "no such key", "{}"),
        ("network.dealer", "127.0.0.1", "HOST:PORT", "127.0.0.1"),
        ("network.dealer", "127.0.0.1:65536", "port up to 65535", "127.0.0.1:65536"),
        ("network.dealer", "http://127.0.0.1:80", "HOST:PORT", "http"),
        ("network.dealer", 7, "valid string", "7"),
        ("localhost.clients_per_process", 0, "greater than or equal to 1", "0"),
        ("localhost.clients_per_process", 1.5, "valid integer", "1.5"),
        ("aggregator.c", {}, "no such key", "{}"),
        ("aggregator.a.engine", "tpu", "'cpu' or 'cuda'", "'tpu'"),
        ("aggregator.a.check_threads", 0, "greater than or equal to 1", "0"),
        ("aggregator.a.check_threads", 257, "less than or equal to 256", "257"),
        ("aggregator.b.check_threads", "all", "valid integer", "'all'"),
        ("aggregator.a.memory_budget_mb", 0, "greater than or equal to 1", "0"),
        ("aggregator.b.memory_budget_mb", "4 GB", "valid integer", "'4 GB'"),
        ("aggregator.b.max_upload_in_memory_mb", -1, "greater than or equal to 0", "-1"),
        ("task.batches_ahead", -1, "greater than or equal to 0", "-1"),
        ("task.batches_ahead", 17, "less than or equal to 16", "17"),
    ],
)
def test_a_bad_value_is_reported_with_field_expected_and_found(
    field: str, value: object, expected: str, found: str
) -> None:
    """One line about this field says both."""
    (line,) = [line for line in parse_faults({field: value}) if not line.endswith("expected a value, found none")]
    section, _, name = field.rpartition(".")
    assert line.startswith((f"{field}: ", f"{field}.")) or (line.startswith(f"{section}: ") and name in line), line
    assert expected in line
    assert found in line


@pytest.mark.parametrize("field", ["task.rounds", "task.client_clip", "task.clients", "network.dealer", "network"])
def test_a_missing_value_is_reported(field: str) -> None:
    assert f"{field}: expected a value, found none" in parse_faults({field: REMOVE})


def test_every_fault_is_reported_at_once() -> None:
    """Report them together, since whoever fixes a file wants to fix it once."""
    lines = parse_faults(
        {
            "task.client_rate": 2.0,
            "task.delta": 0.0,
            "task.rounds": REMOVE,
            "task.colour": 1,
            "network.dealer": "nowhere",
            "client.device": "tpu",
            "colour": 3,
        }
    )
    fields = {line.split(": ")[0] for line in lines}
    assert fields >= {"task.client_rate", "task.delta", "task.rounds", "task.colour", "network.dealer", "client.device"}
    assert "colour" in fields


def test_a_fault_shows_at_most_one_line_of_what_was_found() -> None:
    """A whole table in the wrong place is cut."""
    (line,) = parse_faults({"task.name": {f"key-{i}": i for i in range(1000)}})
    assert len(line) < 150


PASSWORD_URL = "postgresql://precad:hunter2@db/precad"


@pytest.mark.parametrize(
    "dealer",
    [
        {"databse_url": PASSWORD_URL},
        {"databse_url": "host=db password=hunter2"},
        {"database_url": [PASSWORD_URL]},
        {"tls": {"database_url": PASSWORD_URL}},
        [{"database_url": PASSWORD_URL}],
        {"key_passphrase": "hunter2"},
        {"keys": {"api": "hunter2"}},
        [{"key_passphrase": "hunter2"}],
        {"state_dir": ["pass=hunter2"]},
        {"operatons_token": "hunter2"},
        {"key": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"},
        {"state_dir": ["-----BEGIN PRIVATE KEY-----\nhunter2"]},
    ],
    ids=[
        *("misspelt", "misspelt settings", "a list", "in another section", "a list of sections", "a passphrase"),
        *(
            "a section of secrets",
            "a list of sections of secrets",
            "settings in a list",
            "a token",
            "a key for its file's name",
            "a key for a folder",
        ),
    ],
)
def test_a_fault_shows_no_password(dealer: Any) -> None:
    """Standard error goes to a log: a slip in the key, or in the brackets, must not write the value there."""
    lines = parse_faults({"dealer": dealer})
    assert any(line.startswith("dealer") for line in lines)
    assert "hunter2" not in "\n".join(lines)


def test_the_bound_on_the_clip_is_the_specifications() -> None:
    """C * 2^f up to 9.4e7 is taken."""
    parsed = sections.parse(changed(complete(), {"task.client_clip": 94e6 / 2**16}), base=Path("/nowhere"))
    assert parsed.task.norm_bound.encoded_clip == 94_000_000


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    """Wherever the command runs; absolute ones stay."""
    (tmp_path / "deployment.toml").write_text(tomli_w.dumps(complete()))
    client = sections.load(tmp_path / "deployment.toml").client
    assert client is not None
    assert (client.certificates, client.authority) == (tmp_path / "pki", Path("/etc/ca.pem"))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"[task\n", "TOML"),
        (b"[task]\ndelta = 1e-5\n\n  delta = 2e-5\nrounds = 3\n", "found: delta twice: Cannot .*line 4"),
        (b"a = 1\r\na = 2\r\n", "found: a twice: Cannot .*line 2"),
        (b"a=1\na=2", "found: a twice: Cannot .*end of document"),
        (b'a = 1\n"a" = 2\n', "found: Cannot .*line 2"),
        (b'a = 1\na = """\nb = 1"""\n', "found: Cannot .*line 3"),
        (b"\xff\xfe", "TOML"),
        (b"a = " + b"[" * 5000, "found: values nested too deeply$"),
        (b"a = " + b"9" * 5000, "found: an integer of too many digits$"),
        (None, "No such file"),
    ],
    ids=[
        "syntax",
        "twice",
        "on Windows",
        "at the end",
        "quoted",
        "long value",
        "not text",
        "deep",
        "digits",
        "no file",
    ],
)
def test_a_file_that_cannot_be_read_is_reported_by_its_path(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "deployment.toml"
    if content is not None:
        path.write_bytes(content)
    result = precad("run", str(path), "--output", str(tmp_path / "out"))
    assert_refused(result, re.escape(str(path)), found)
    assert not (tmp_path / "out").exists()


# -- `precad run`: nothing starts --------------------------------------------------------------------------------------


def precad(*arguments: str) -> Result:
    """The command in this process. It must end by itself: only for what is refused before anything starts."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def assert_refused(result: Result, *patterns: str) -> None:
    """Exit code 2, nothing on standard output, one line per fault, each pattern in some line."""
    assert result.exit_code == INVALID_INPUT, (result.exception, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines
    assert all(line.startswith("precad: ") for line in lines), result.stderr
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in lines), result.stderr


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"task.model": "resnet"}, "task.model: expected one of cifar, cnn, .*, found 'resnet'"),
        ({"task.model": "torch.nn:Identity"}, "task.model: .*expected float32, and some, found none"),
        ({"task.model": f"{__name__}:batch_normalised"}, r"task.model: layer '1' \(BatchNorm2d\) mixes"),
        ({"task.model": "nowhere:Net"}, "task.model: .*No module named 'nowhere'"),
        ({"task.model": "cifar"}, r"task.model: the model does not fit records of shape \(1, 32, 32\)"),
        ({"task.model": ["mlp"]}, r"task.model: expected .*, found \['mlp'\]"),
        ({"task.model": 3}, "task.model: expected .*, found 3"),
        ({"task.dim": 100}, "task.dim: expected 4810.*found 100"),
        (
            {"task.algorithm": "user-dp-fedavg", "task.update_clipping": "private-quantile", "task.dim": 4810},
            "task.dim: expected 4811, the dimension of 'mlp' and a learnt bound, found 4810",
        ),
        (
            {
                "task.algorithm": "user-dp-fedavg",
                "task.update_clipping": "per-layer",
                "task.model": "tests.lab.simulation.algorithms.test_deployed_algorithms:Tied",
            },
            "task.update_clipping: expected 'flat' for a model whose layers share parameters",
        ),
        (
            {"task.update_clipping": "per-layer"},
            "task: .*update_clipping is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and fedavg and krum",
        ),
        ({"task.dim": 2**40}, "task.dim: expected 4810.*found 1099511627776"),
        ({"task.clients": ["a", "a"]}, "task.clients: expected .*distinct"),
        ({"task.clients": []}, "task.clients: expected"),
        ({"task.clients": ["a", 3]}, "task.clients: expected"),
        ({"task.clients": [f"c{i}" for i in range(2000)]}, "1437"),
        ({"task.clients": ["dealer", "b"]}, "dealer"),
        ({"task.clients": {f"client-{i}": 100 for i in range(4)}}, r"task.clients.client-0: expected .*360.*100"),
        ({"task": 3}, "task: expected a section, found 3"),
        ({"client": []}, r"client: expected a section, found \[\]"),
        (
            {"client.queries": {"columns": {"age": 4.0}, "limit_epsilon": 1.0, "delta": 1e-6}},
            "client.queries.columns.age: expected a section, found 4.0",
        ),
        ({"colour": {}}, "colour: expected no such key"),
        ({"task.two\nlines": 2}, r"^(precad: )?task.two\?lines: expected no such key, found 2$"),
        (
            {"simulation": {"batching": "client"}},
            "simulation: expected none, as precad simulate alone reads this section",
        ),
        ({"client.attacks": {"client-9": "scaled"}}, "client.attacks.client-9: expected one of the task's clients"),
        ({"client.attacks": {"client-1": "bribe"}}, "client.attacks.client-1: expected .*, found 'bribe'"),
        ({"client.partition_seed": "one"}, "client.partition_seed: expected .*integer.*, found 'one'"),
        ({"client.partition_seed": -1}, "client.partition_seed: expected .*, found -1"),
        ({"client.dataset": "emnist"}, "client.dataset: expected 'digits', .*, found 'emnist'"),
        ({"client.partition": "random"}, "client.partition: expected 'iid', .*, found 'random'"),
        ({"client.partition": "user"}, "client.partition: partition 'user' needs a data set that knows its users"),
        ({"client.dirichlet_alpha": 0.0}, "client.dirichlet_alpha: expected greater than 0, found 0.0"),
        ({"client.shards_per_client": 0}, "client.shards_per_client: expected greater than or equal to 1, found 0"),
        ({"task.record_clipping": "median"}, "task.record_clipping: expected 'flat' or 'per-layer', found 'median'"),
        ({"client.certificates": "/nowhere"}, "client.certificates|certificate: .*/nowhere"),
        ({"client.authority": "/nowhere/ca.pem"}, "authority: .*/nowhere/ca.pem"),
        ({"dealer": {"colour": 1}}, "dealer.colour: expected no such key, found 1"),
        ({"task.client_ratee": 0.1}, "task.client_ratee: expected no such key, but perhaps client_rate, found 0.1"),
        ({"netwrok": {}}, "netwrok: expected no such key, but perhaps network, found {}"),
        (
            {"aggregator": {"a": {"memory_budget": 1}}},
            "aggregator.a.memory_budget: expected no such key, but perhaps memory_budget_mb, found 1",
        ),
        (
            {"client.queries": {"columns": {}, "limit_epsilom": 1.0}},
            "client.queries.limit_epsilom: expected no such key, but perhaps limit_epsilon, found 1.0",
        ),
        ({"aggregator": {"a": {"connect_timeout_s": -1.0}}}, "aggregator.a.connect_timeout_s: expected"),
        ({"network": {"dealer": "127.0.0.1:1"}}, "network.aggregator_a: expected a value, found none"),
        (
            {"network": {"dealer": "127.0.0.1:9", "aggregator_a": "127.0.0.1:9", "aggregator_b": "127.0.0.1:10"}},
            "network.*127.0.0.1:9",
        ),
        ({"task.noise_multiplier": 1e-5}, "noise_multiplier"),  # a standard deviation of 0.66 steps of the grid
        ({"task.noise_multiplier": 1e8}, "noise_multiplier"),  # more than the sampler draws: 2^40 steps of the grid
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_precad_run_refuses_before_it_makes_a_folder(tmp_path: Path, changes: dict[str, Any], pattern: str) -> None:
    """The runner alone decides: no process has started and no folder is left."""
    folder = tmp_path / "runs" / "run"
    with pytest.raises(REFUSALS) as refused:
        LocalRun(changed(simple(), changes), folder, Console(file=io.StringIO()))
    assert exit_code_of(refused.value) == INVALID_INPUT
    assert re.search(pattern, str(refused.value)), str(refused.value)
    assert not folder.parent.exists()


def test_several_faults_reach_the_user_of_precad_run(tmp_path: Path) -> None:
    """As a process: code 2, a line each, nothing on standard output, no folder."""
    path, folder = tmp_path / "deployment.toml", tmp_path / "run"
    path.write_text(tomli_w.dumps(changed(simple(), {"task.client_rate": 1.5, "task.delta": NAN, "client.device": 7})))
    command = [
        sys.executable,
        "-P",
        "-m",
        "precad.deploy.cli.main",
        "run",
        str(path),
        "--output",
        str(folder),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (INVALID_INPUT, "")
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["task.client_rate", "task.delta", "client.device"]
    assert all(line.startswith("precad: ") and "found" in line for line in lines)
    assert not folder.exists()


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of the loopback interface on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ["aggregator_a", "aggregator_b", "dealer"])
def test_precad_run_refuses_a_port_in_use(tmp_path: Path, taken_port: int, name: str) -> None:
    free = {other: f"127.0.0.1:{port}" for port, other in enumerate(SERVERS, 4711)}
    raw = changed(simple(), {"network": free | {name: f"127.0.0.1:{taken_port}"}})
    pattern = f"network.{name}: expected a free one to listen on, found 127.0.0.1:{taken_port}: Address already in use"
    with pytest.raises(ConfigError, match=pattern):
        LocalRun(raw, tmp_path / "run", Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


def test_precad_run_overwrites_no_other_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.json").write_text("precious")
    result = precad("demo", "--output", str(folder))
    assert_refused(result, f"--output: expected a new or empty folder, found files in {folder}")
    assert [path.name for path in folder.iterdir()] == ["summary.json"]
    assert (folder / "summary.json").read_text() == "precious"


def test_an_output_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert_refused(precad("demo", "--output", str(path)), f"--output: expected a folder to write to, found {path}")


def test_the_default_folder_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in the same second get one each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260102-030405")
    first = default_output("digits")
    assert first == Path("runs/digits-20260102-030405")
    first.mkdir(parents=True)
    assert default_output("digits") == Path("runs/digits-20260102-030405-2")


def test_what_a_run_wrote_repeats_it(tmp_path: Path) -> None:
    """The resolved configuration is a valid one for `precad run`, and means the same task."""
    first = LocalRun(simple(), tmp_path / "first", Console(file=io.StringIO()))
    written = sections.read_toml(first.folder.config)
    again = LocalRun(written, tmp_path / "again", Console(file=io.StringIO()))
    assert again.deployment.task.digest() == first.deployment.task.digest()
    assert again.deployment.client is not None
    assert again.deployment.client.certificates == tmp_path / "again" / "pki"


def test_the_demos_flags_are_checked(tmp_path: Path) -> None:
    result = precad("demo", "--clients", "2", "--output", str(tmp_path / "run"))
    assert_refused(result, "--clients: expected at least 3 .*, found 2")
    assert not (tmp_path / "run").exists()


def test_more_clients_than_records_are_refused_once_the_records_are_read(tmp_path: Path) -> None:
    """The first line, about what is started and how long it takes, waits for no record."""
    result = precad("demo", "--clients", "1438", "--output", str(tmp_path / "run"))
    first, last = result.stderr.splitlines()
    assert result.exit_code == INVALID_INPUT
    assert first.startswith("starting a dealer, two aggregators and 1438 clients in 1441 processes: about ")
    assert last == "precad: client.partition: n_clients: expected 1 to 1437, found 1438"
    assert not (tmp_path / "run").exists()


# -- single roles: nothing is bound, nothing is written ----------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment for `precad serve` and `precad client`: certificates, model, configuration."""
    return LocalRun(simple(), tmp_path_factory.mktemp("roles") / "run", Console(file=io.StringIO())).folder.root


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it that any port will do for, and whose processes do not wait long for others.

    (A fault that is overlooked then shows as another exit code, and not as a test that hangs.)
    """
    folder = Path(shutil.copytree(prepared, tmp_path / "deployment"))
    servers = ("aggregator.a", "aggregator.b", "dealer")
    change(folder, {f"{server}.listen": "127.0.0.1:0" for server in servers})
    change(folder, {f"{role}.connect_timeout_s": 0.2 for role in (*servers, "client")})
    return folder


def change(folder: Path, changes: dict[str, Any]) -> None:
    """Rewrites the configuration in a folder."""
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(changed(tomllib.loads(path.read_text()), changes)))


A, B, DEALER, CLIENT = (
    ("serve", "aggregator", "--role", "a"),
    ("serve", "aggregator", "--role", "b"),
    ("serve", "dealer"),
    ("client", "--id", "client-0"),
)


@pytest.mark.parametrize(
    ("command", "changes", "patterns"),
    [
        (A, {"aggregator.a.certificate": "nowhere.pem"}, ["certificate: expected a readable file.*nowhere.pem"]),
        (A, {"aggregator.a.key": "nowhere.pem"}, ["key: expected a readable file.*nowhere.pem"]),
        (A, {"aggregator.a.authority": "nowhere.pem"}, ["authority: expected a readable file.*nowhere.pem"]),
        (A, {"aggregator.a.key": "pki/dealer/key.pem"}, ["key: expected the certificate's key, found the key of ano"]),
        (A, {"aggregator.a.authority": "pki/dealer/cert.pem"}, ["authority: expected an authority's"]),
        (
            B,
            {"aggregator.b.certificate": "pki/dealer/cert.pem", "aggregator.b.key": "pki/dealer/key.pem"},
            ["certificate: expected one of aggregator-b, found one of precad://dealer/dealer"],
        ),
        (A, {"aggregator.a.peer_certificate": "nowhere.pem"}, ["expected a readable file.*nowhere.pem"]),
        (A, {"aggregator.a.peer_certificate": "pki/dealer/cert.pem"}, ["aggregator-b, found .*dealer"]),
        (B, {"aggregator.b.peer_certificate": "nowhere.pem"}, ["expected a readable file.*nowhere.pem"]),
        (A, {"aggregator.a.dealer_certificate": "nowhere.pem"}, ["expected a readable file.*nowhere.pem"]),
        (B, {"aggregator.b.dealer_certificate": "pki/client-0/cert.pem"}, ["dealer, found .*client-0"]),
        (A, {"aggregator.a.initial_model": "nowhere.npy"}, ["initial_model: expected .*nowhere.npy"]),
        (A, {"aggregator.a.listen": "nonsense"}, ["expected HOST:PORT.*nonsense"]),
        (A, {"aggregator.a": REMOVE}, [r"\[aggregator.a\]: expected this section for this command, found none"]),
        (B, {"aggregator": REMOVE}, [r"\[aggregator.b\]: expected this section for this command, found none"]),
        (DEALER, {"dealer": REMOVE}, [r"\[dealer\]: expected this section for this command, found none"]),
        (DEALER, {"dealer.certificate": "pki/client-0/cert.pem"}, ["key: expected the certificate's key"]),
        (DEALER, {"dealer.aggregator_b_certificate": "nowhere.pem"}, ["expected a readable file.*nowhere.pem"]),
        (DEALER, {"dealer.aggregator_a_certificate": "pki/aggregator-b/cert.pem"}, ["aggregator-a, found .*or-b"]),
        (DEALER, {"dealer.colour": 1, "task.rounds": 0}, ["dealer.colour: expected no such key", "task.rounds: exp"]),
        (CLIENT, {"client": REMOVE}, [r"\[client\]: expected this section for this command, found none"]),
        (CLIENT, {"client.certificates": "nowhere"}, ["certificate: expected a readable file.*nowhere/client-0"]),
        (CLIENT, {"client.authority": "nowhere.pem"}, ["authority: expected a readable file.*nowhere.pem"]),
        (CLIENT, {"task.model": "resnet"}, ["resnet"]),
        ((*CLIENT, "--id", "eve"), {}, ["--id: expected distinct clients of the task, found client-0, eve"]),
        ((*CLIENT, "--id", "client-0"), {}, ["--id: expected distinct clients"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else " ".join(value),
)
def test_a_role_with_a_bad_configuration_does_not_start(
    folder: Path, command: tuple[str, ...], changes: dict[str, Any], patterns: list[str]
) -> None:
    """Each file and each flag is checked before a port is bound, a peer is dialled or a file is written."""
    change(folder, changes)
    before = sorted(folder.rglob("*"))
    assert_refused(precad(*command, str(folder / "config.toml")), *patterns)
    assert sorted(folder.rglob("*")) == before


def test_threads_are_of_the_cpu(folder: Path) -> None:
    """A GPU's engine has none to give them to; which is said before a GPU is looked for."""
    change(folder, {"aggregator.a.engine": "cuda", "aggregator.a.check_threads": 2})
    assert_refused(precad(*A, str(folder / "config.toml")), "check_threads: expected 1 with engine = 'cuda', found 2")


@pytest.mark.parametrize(("letter", "command"), [("a", A), ("b", B)])
def test_an_engine_without_its_device_does_not_start(
    folder: Path, letter: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else, on any machine without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    change(folder, {f"aggregator.{letter}.engine": "cuda"})
    before = sorted(folder.rglob("*"))
    result = precad(*command, str(folder / "config.toml"))
    assert_refused(result, "engine 'cuda' needs a GPU that PyTorch can use; it finds none")
    assert sorted(folder.rglob("*")) == before


def test_a_budget_that_the_model_exceeds_does_not_start(folder: Path) -> None:
    change(folder, {"aggregator.a.memory_budget_mb": 700})
    before = sorted(folder.rglob("*"))
    result = precad(*A, str(folder / "config.toml"))
    assert_refused(result, "memory_budget_mb: expected at least 769 for 4810 parameters, found 700")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("role", "command"), [("aggregator.a", A), ("aggregator.b", B), ("dealer", DEALER)])
def test_a_server_whose_port_is_in_use_does_not_start_and_can_be_started_later(
    folder: Path, taken_port: int, role: str, command: tuple[str, ...]
) -> None:
    """No ledger is begun that would make the next start look like a second task."""
    change(folder, {f"{role}.listen": f"127.0.0.1:{taken_port}"})
    before = sorted(folder.rglob("*"))
    result = precad(*command, str(folder / "config.toml"))
    assert_refused(result, f"expected a free one to listen on, found 127.0.0.1:{taken_port}: Address already in use")
    assert sorted(folder.rglob("*")) == before


def test_a_certificate_of_another_client_is_no_certificate_of_this_one(folder: Path) -> None:
    shutil.rmtree(folder / "pki" / "client-0")
    shutil.copytree(folder / "pki" / "client-1", folder / "pki" / "client-0")
    result = precad("client", str(folder / "config.toml"), "--id", "client-0")
    assert_refused(result, "certificate: expected one of client 'client-0', found precad://client/client-1")


def test_a_byte_order_mark_is_no_part_of_a_configuration(tmp_path: Path) -> None:
    """Editors of Windows write one."""
    path = tmp_path / "with-mark.toml"
    text = tomli_w.dumps(demo_config()).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert sections.read_toml(path) == demo_config()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing yet\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("command", ["run", "simulate", "check"])
def test_an_empty_configuration_is_named(tmp_path: Path, content: bytes, command: str) -> None:
    path = tmp_path / "empty.toml"
    path.write_bytes(content)
    result = CliRunner().invoke(cli.app, [command, str(path)])
    assert_refused(result, r"empty\.toml: expected a configuration with a section \[task\], found an empty file$")
