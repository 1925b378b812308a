"""`precad check` and `precad initial-model`, on the samples as organisations use them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from precad.clients.models import networks
from precad.clients.models.adapter_files import a_of
from precad.clients.models.adapters import adapted
from precad.clients.models.safetensors_file import read_tensors
from precad.clients.records import DataSource, digits
from precad.deploy.cli.common import wrapped
from precad.deploy.configuration.check import lines
from precad.deploy.configuration.sections import load
from precad.deploy.errors import INVALID_INPUT
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.messages import convert
from precad.protos.tls.identity import Role
from precad.servers.store.folder import ledger_path, open_ledger, open_task_store, read_earlier
from tests.harness.adapted_models import small
from tests.harness.command_line import precad
from tests.harness.harness import free_addresses
from tests.harness.organisations import CLIENTS, OF_THE_TABLE, OWN_RECORDS, SERVERS, Organisations


@pytest.fixture
def organisations(tmp_path: Path) -> Organisations:
    made = Organisations.create(tmp_path)
    made.write_configs()
    for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
        assert precad("initial-model", made.config(role), made.folder(role) / "initial.npy").exit_code == 0
    return made


def openssl_fingerprint(path: Path) -> str:
    command = ["openssl", "x509", "-in", path, "-noout", "-fingerprint", "-sha256"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_role_checks_its_sample_and_all_see_the_same(organisations: Organisations) -> None:
    """One task digest; whom a server trusts is whom the other shows, by fingerprint; nothing is made on disk."""
    reports = {}
    for role in (*SERVERS, Role.CLIENT):
        result = precad("check", organisations.config(role), "--json")
        assert result.exit_code == 0, result.output
        reports[role] = json.loads(result.stdout)
        assert not (organisations.folder(role) / "state").exists()
    a, b = reports[Role.AGGREGATOR_A]["aggregator_a"], reports[Role.AGGREGATOR_B]["aggregator_b"]
    dealer = reports[Role.DEALER]["dealer"]
    assert {report["task_digest"] for report in reports.values()} == {
        load(organisations.config(Role.DEALER)).task.digest().hex()
    }
    assert (a["trusts"], b["trusts"]) == (
        [b["certificate"], dealer["certificate"]],
        [a["certificate"], dealer["certificate"]],
    )
    assert dealer["trusts"] == reports[Role.CLIENT]["clients"]["trusts"] == [a["certificate"], b["certificate"]]
    assert [c["of"] for c in reports[Role.CLIENT]["clients"]["certificates"]] == [
        f"precad://client/{c}" for c in CLIENTS
    ]
    assert a["initial_model"] == b["initial_model"]


def test_the_fingerprints_are_those_that_openssl_shows(organisations: Organisations) -> None:
    report = json.loads(precad("check", organisations.config(Role.DEALER), "--json").stdout)
    shown = openssl_fingerprint(organisations.folder(Role.DEALER) / "tls" / "cert.pem")
    assert shown.strip().rpartition("=")[2].replace(":", "").lower() == report["dealer"]["certificate"]["sha256"]


def test_people_are_shown_what_programs_are(organisations: Organisations) -> None:
    for role in (*SERVERS, Role.CLIENT):
        shown, report = (
            precad("check", organisations.config(role)),
            precad("check", organisations.config(role), "--json"),
        )
        facts = json.dumps(json.loads(report.stdout))
        for digest in {word for word in shown.output.split() if len(word) == 64}:
            assert digest in facts
        assert shown.output.count("precad://") == facts.count("precad://") > 0


def test_a_client_without_pins_is_told_what_it_trusts(organisations: Organisations) -> None:
    config = organisations.config(Role.CLIENT)
    pins = ("aggregator_a_certificate", "aggregator_b_certificate")
    kept = [line for line in config.read_text().splitlines() if not line.startswith(pins)]
    config.write_text("\n".join(kept))
    assert json.loads(precad("check", config, "--json").stdout)["clients"]["trusts"] == []
    assert "trusts          whatever the authority signs" in precad("check", config).output


def test_a_check_is_wrapped_between_words_and_a_digest_is_in_one_piece() -> None:
    digest = "0123456789abcdef" * 4
    assert wrapped(f"task digest       {digest}", 80) == ["task digest", f"  {digest}"]
    assert wrapped(f"task digest       {digest}", 120) == [f"task digest       {digest}"]
    found = wrapped(f"privacy           {'epsilon <= 1.99 at delta = 1e-05, ' * 5}end", 80)
    assert len(found) == 3
    assert all(len(line) <= 80 and line.startswith(" " * 18) for line in found[1:])
    assert " ".join(" ".join(found).split()) == f"privacy {'epsilon <= 1.99 at delta = 1e-05, ' * 5}end"


def test_a_client_is_told_which_records_it_has(
    organisations: Organisations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own, and how many a round draws. Those of a data set, beside what they declare; a lost data set is what a
    start says, or would be downloaded."""
    config = organisations.config(Role.CLIENT)
    own = json.loads(precad("check", config, "--json").stdout)["clients"]["records"]
    words = "400 of shape (6,) in 2 classes (well, ill); declares 400; a round draws 200 on average"
    assert own == dict.fromkeys(CLIENTS, words)

    on_digits = {
        'model = "torch.nn:Linear"': 'model = "mlp"',
        "dim = 14": "dim = 4810",
        OWN_RECORDS: 'dataset = "digits"',
    }
    organisations.write_configs(replaced={**OF_THE_TABLE, **on_digits})
    task = load(config).task
    records = json.loads(precad("check", config, "--json").stdout)["clients"]["records"]
    sizes = DataSource.of(load(config).client).sizes(digits(), list(task.clients))
    assert records == {c: f"{sizes[c]} of digits, declares {task.clients[c]}" for c in CLIENTS}
    assert f"{CLIENTS[0]}" in precad("check", config).output

    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    text = config.read_text().replace('model = "mlp"', 'model = "cnn"').replace("dim = 4810", "dim = 26010")
    config.write_text(text.replace('dataset = "digits"', 'dataset = "mnist"'))
    lost = precad("check", config)
    assert (lost.exit_code, "PRECAD_DATA" in lost.output) == (2, True)
    config.write_text(config.read_text().replace("download = false", "download = true"))
    assert "mnist is not here: downloaded at the start" in precad("check", config).output


def test_the_initial_model_is_the_tasks(organisations: Organisations) -> None:
    """The vector that the clients' library makes; never overwritten; refused where `dim` is another model's."""
    config, path = organisations.config(Role.AGGREGATOR_A), organisations.folder(Role.AGGREGATOR_A) / "initial.npy"
    linear = networks.build("torch.nn:Linear", seed=0, arguments={"in_features": 6, "out_features": 2})
    expected = networks.flatten(linear)
    assert np.load(path).tobytes() == expected.tobytes()

    again = precad("initial-model", config, path)
    assert (again.exit_code, "found" in again.output, np.load(path).size) == (2, True, expected.size)

    config.write_text(config.read_text().replace("dim = 14", "dim = 15"))
    wrong = precad("initial-model", config, path.with_name("other.npy"))
    assert wrong.exit_code == 2
    assert "task.dim: expected 14, of model 'torch.nn:Linear', found 15" in wrong.output
    assert not path.with_name("other.npy").exists()
    learnt = 'update_clipping = "private-quantile"\nalgorithm = "user-dp-fedavg"'
    text = config.read_text().replace('update_clipping = "flat"\n', "")
    config.write_text(text.replace('algorithm = "precad"', learnt))
    with_bound = precad("initial-model", config, path.with_name("with-bound.npy"))
    assert with_bound.exit_code == 0, with_bound.output
    assert np.load(path.with_name("with-bound.npy")).tobytes() == expected.tobytes() + bytes(4)
    shown = json.loads(precad("check", organisations.config(Role.AGGREGATOR_B), "--json").stdout)
    assert shown["aggregator_b"]["initial_model"] == convert.sha256(convert.model_to_bytes(expected)).hex()


CUT_OFF = b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', "
"""The head of a .npy file, without its end."""
NO_HEAD = b"\x93NUMPY\x01\x00\x08\x00  {}\n 1\n"
"""One whose lines go back too little for Python."""


def state_numbers(path: Path, n: int) -> None:
    """Write a .npy file that says it has so many numbers, and has none."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n,)})


@pytest.mark.parametrize(
    ("role", "spoil", "fault"),
    [
        (Role.AGGREGATOR_A, lambda f: (f / "initial.npy").write_bytes(CUT_OFF), "initial_model: expected a .npy file"),
        (Role.AGGREGATOR_A, lambda f: (f / "initial.npy").write_bytes(NO_HEAD), "initial_model: expected a .npy file"),
        (Role.AGGREGATOR_A, lambda f: state_numbers(f / "initial.npy", 10**15), "initial_model: expected a .npy file"),
        (Role.AGGREGATOR_A, lambda f: state_numbers(f / "initial.npy", 10**30), "initial_model: expected a .npy file"),
        (Role.AGGREGATOR_A, lambda f: (f / "peers/aggregator-b.pem").unlink(), "pinned: expected a readable file"),
        (Role.AGGREGATOR_A, lambda f: (f / "tls/key.pem").chmod(0o604), "key: expected a file closed to other users"),
        (Role.DEALER, lambda f: (f / "operations-token").write_text("short"), "operations_token: expected 24 to 512"),
        (Role.AGGREGATOR_A, lambda f: (f / "initial.npy").write_bytes(b"no"), "initial_model: expected a .npy file"),
        (
            Role.DEALER,
            lambda f: (f / "peers/aggregator-a.pem").write_bytes((f / "peers/aggregator-b.pem").read_bytes()),
            "pinned: expected the server certificate of aggregator-a",
        ),
        (Role.CLIENT, lambda f: (f / "peers/aggregator-b.pem").unlink(), "pinned: expected a readable file"),
        (
            Role.CLIENT,
            lambda f: (f / "peers/aggregator-a.pem").write_bytes((f / "peers/aggregator-b.pem").read_bytes()),
            "pinned: expected the server certificate of aggregator-a",
        ),
        (
            Role.CLIENT,
            lambda f: (
                (f / "clients/hospital-1").rename(f / "clients/x")
                and (f / "clients/hospital-2").rename(f / "clients/hospital-1")
            ),
            "client.certificates: expected the certificate of 'hospital-1', found one of precad://client/hospital-2",
        ),
    ],
    ids=[
        "a head that is cut off",
        "a head that is no Python",
        "more numbers than memory",
        "more numbers than machines count",
        "no pin",
        "open key",
        "short token",
        "no model",
        "swapped pins",
        "a client's lost pin",
        "its swapped pins",
        "another client",
    ],
)
def test_what_a_start_would_refuse_is_refused(organisations, role, spoil, fault) -> None:
    spoil(organisations.folder(role))
    result = precad("check", organisations.config(role))
    assert result.exit_code == 2
    assert fault in result.output


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('revoked = "revoked.txt"', "revoked: expected a SHA-256 fingerprint in line 1"),
        ('revoked = "nowhere.txt"', "revoked: expected a text file of fingerprints"),
        ('engine = "cuda"', "a GPU"),
        ('listen = "nowhere"', "aggregator.a.listen: expected HOST:PORT"),
        ('lane_listen = "[::1]"', "aggregator.a.lane_listen: expected HOST:PORT"),
    ],
)
def test_what_a_server_would_refuse_of_a_setting_is_refused(
    organisations: Organisations, line: str, fault: str
) -> None:
    """Before anybody comes to a start that was agreed by telephone."""
    if line == 'engine = "cuda"' and torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so the engine is there")
    (organisations.folder(Role.AGGREGATOR_A) / "revoked.txt").write_text("of no form\n")
    path = organisations.config(Role.AGGREGATOR_A)
    name = line.partition(" ")[0]
    text = re.sub(rf"^{name} = .*\n", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(text.replace("[aggregator.a]\n", f"[aggregator.a]\n{line}\n"))
    result = precad("check", path)
    assert (result.exit_code, fault in result.output) == (INVALID_INPUT, True), result.output


def test_a_database_that_cannot_be_reached_is_refused_without_its_password(organisations: Organisations) -> None:
    """Exit code 4; or 2, where there is no driver for it. Nothing is made on disk."""
    path = organisations.config(Role.DEALER)
    url = "postgresql://ada:hunter2@127.0.0.1:1/precad"
    path.write_text(path.read_text().replace("[dealer]\n", f'[dealer]\ndatabase_url = "{url}"\n'))
    result = precad("check", path)
    assert result.exit_code == (2 if importlib.util.find_spec("psycopg") is None else 4)
    assert "database_url: expected" in result.output
    assert "hunter2" not in result.output
    assert "hunter2" not in repr(load(path))
    assert not (organisations.folder(Role.DEALER) / "state").exists()


COMMANDS = {
    Role.AGGREGATOR_A: ("serve", "aggregator", "--role", "a"),
    Role.AGGREGATOR_B: ("serve", "aggregator", "--role", "b"),
    Role.DEALER: ("serve", "dealer"),
    Role.CLIENT: ("client", "--id", CLIENTS[0]),
}


def test_no_role_starts_in_the_weaker_wire_form_unless_the_task_accepts_it(organisations: Organisations) -> None:
    """Nothing is made on disk, and `precad check` says the same."""
    organisations.write_configs(replaced={'mode = "masked"': 'mode = "shares"'})
    for role, command in COMMANDS.items():
        for arguments in (command, ("check",)):
            result = precad(*arguments, organisations.config(role))
            assert result.exit_code == INVALID_INPUT, (role, result.output)
            assert "accept_weak_wire_form: expected true with mode 'shares'" in result.stderr
        assert not (organisations.folder(role) / "state").exists()


def test_a_server_is_told_what_its_ledger_will_state_with_earlier_tasks(
    organisations: Organisations, tmp_path: Path
) -> None:
    """To a cent: before its first round, and in the end. Nothing is made on disk."""
    config = organisations.config(Role.AGGREGATOR_A)
    task = load(config).task
    alone = json.loads(precad("check", config, "--json").stdout)["aggregator_a"]
    assert ("privacy_with_earlier_tasks" in alone, alone["earlier_tasks"]) == (False, "none")
    with open_ledger(tmp_path / "before", task) as ledger:
        for number in range(4):
            ledger.charge(number, sorted(task.clients))
        chain = ledger.chain[:16]
    path = ledger_path(tmp_path / "before")
    counted = f'earlier_ledgers = [{{ path = "{path}", most_rounds = 5 }}]\nstate_dir ='
    config.write_text(config.read_text().replace("state_dir =", counted, 1))
    report = json.loads(precad("check", config, "--json").stdout)
    with open_ledger(tmp_path / "after", task, earlier_tasks([(path, 5)])) as ledger:
        stated = [ledger.statement(View.ONE_SERVER, conduct=one).epsilon for one in reversed(Conduct)]
    assert report["aggregator_a"]["earlier_tasks"] == f"1: {path} (rounds 4, most_rounds 5, chain {chain})"
    shown = re.findall(r"<= ([0-9.]+)", report["aggregator_a"]["privacy_with_earlier_tasks"])
    assert [0 <= float(said) - epsilon < 0.01 for said, epsilon in zip(shown, stated, strict=True)] == [True, True]
    assert stated[0] > 0
    said = report["aggregator_a"]["privacy_with_earlier_tasks"]
    assert said.endswith("; if what the earlier figures rest on holds, too")  # older ledgers do not say it
    with open_task_store(tmp_path / "before", task, bytes(4 * task.dim)) as store:
        store.begin("small-0123", Role.AGGREGATOR_A)
    said = precad("check", config).stdout  # by what both servers call it, where the log is beside the ledger
    assert f"earlier tasks 1: small-0123 (rounds 4, most_rounds 5, chain {chain})" in " ".join(said.split())
    assert not (organisations.folder(Role.AGGREGATOR_A) / "state").exists()


def counting(config: Path, ledgers: str) -> None:
    """Let A count these earlier ledgers, and listen where nobody else does."""
    text = config.read_text().replace("state_dir =", f"earlier_ledgers = [{ledgers}]\nstate_dir =", 1)
    (address,) = free_addresses(1)
    config.write_text(text.replace("0.0.0.0:7001", address))


@pytest.mark.parametrize("command", [("check",), COMMANDS[Role.AGGREGATOR_A]], ids=["check", "serve"])
def test_a_bound_below_the_rounds_of_an_earlier_ledger_is_named_by_its_field(
    organisations: Organisations, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The second of two ledgers has four rounds of a client."""
    config = organisations.config(Role.AGGREGATOR_A)
    task = load(config).task
    for name, n_rounds in (("one", 1), ("two", 4)):
        with open_ledger(tmp_path / name, task) as ledger:
            for number in range(n_rounds):
                ledger.charge(number, sorted(task.clients))
    one, two = (ledger_path(tmp_path / name) for name in ("one", "two"))
    counting(config, f'{{ path = "{one}", most_rounds = 3 }}, {{ path = "{two}", most_rounds = 3 }}')
    result = precad(*command, config)
    said = f"aggregator.a.earlier_ledgers.1.most_rounds: expected at least 4, as {two} charged a client for so many"
    assert (result.exit_code, said in result.output) == (INVALID_INPUT, True), result.output


@pytest.mark.parametrize("command", [("check",), COMMANDS[Role.AGGREGATOR_A]], ids=["check", "serve"])
def test_an_earlier_task_that_still_runs_is_refused(
    organisations: Organisations, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Nothing that it charges after our start would count. Once our own ledger is begun, a restart reads it all the
    same, as whoever looks at it may have it open."""
    config = organisations.config(Role.AGGREGATOR_A)
    task, path = load(config).task, ledger_path(tmp_path / "before")
    counting(config, f'{{ path = "{path}", most_rounds = 5 }}')
    said = f"aggregator.a.earlier_ledgers.0.path: expected the ledger of a finished task, found {path}, in use"
    with open_ledger(tmp_path / "before", task) as ledger:
        ledger.charge(0, sorted(task.clients))
        result = precad(*command, config)
        assert (result.exit_code, said in result.output) == (INVALID_INPUT, True), result.output
        server, earlier = load(config).aggregator.a, earlier_tasks([(path, 5)])
        assert server is not None
        with open_ledger(server.state_dir, task, earlier):
            assert read_earlier(server, Role.AGGREGATOR_A) == earlier


def test_a_check_says_that_the_weaker_wire_form_was_accepted(organisations: Organisations) -> None:
    accepted = {'mode = "masked"': 'mode = "shares"', "accept_weak_wire_form = false": "accept_weak_wire_form = true"}
    before = precad("check", organisations.config(Role.DEALER)).output
    organisations.write_configs(replaced=accepted)
    for role in COMMANDS:
        shown = precad("check", organisations.config(role))
        assert shown.exit_code == 0, shown.output
        assert "wire form         shares: a server that deviates reads coordinates" in shown.output
    assert "wire form" not in before


def test_a_check_refuses_a_client_that_cannot_count_its_uploads(organisations: Organisations) -> None:
    (organisations.folder(Role.CLIENT) / "state").write_text("a file")
    result = precad("check", organisations.config(Role.CLIENT))
    assert result.exit_code == INVALID_INPUT
    assert "client.state_dir: expected a folder to write to, found" in result.stderr


def test_the_constants_of_adapters_are_made_once(organisations: Organisations) -> None:
    """From the task's seed, with the digest that the task names; never overwritten; refused without adapters."""
    config, folder = organisations.config(Role.CLIENT), organisations.folder(Role.CLIENT)
    path = folder / "adapter.safetensors"
    refused = precad("adapter", config, path)
    assert (refused.exit_code, "expected a model with adapters" in refused.output, path.exists()) == (2, True, False)
    text = re.sub(r"^model_arguments = .*\n", "", config.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^dim = .*", "dim = 140", text, flags=re.MULTILINE)
    text = re.sub(r"^model_seed = .*", "model_seed = 3", text, flags=re.MULTILINE)
    config.write_text(re.sub(r"^model = .*", 'model = "tests.harness.adapted_models:small"', text, flags=re.MULTILINE))
    made = precad("adapter", config, path)
    assert made.exit_code == 0, made.output
    assert f'task.adapter_sha256 = "{hashlib.sha256(path.read_bytes()).hexdigest()}"' in made.output
    expected = a_of(adapted(networks.build(small, seed=load(config).task.model_seed)))
    with path.open("rb") as file:
        found = read_tensors(file, path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    again = precad("adapter", config, path)
    assert (again.exit_code, "expected a new file" in again.output) == (2, True)


def test_facts_of_a_check_stand_apart_from_their_names() -> None:
    """Also where a name is wider than its column."""
    assert lines({"task": "small", "aggregator_a_measures_on": "60 public records"}) == [
        "task              small",
        "aggregator a measures on  60 public records",
    ]
