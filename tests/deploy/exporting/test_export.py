"""`precad export` and `precad verify-export`: what is written, and that only what both servers signed is believed.

What counts as failure:
- the exported model is another one than the servers released, or a format of it gives other outputs;
- the statement claims less epsilon than an accountant computes from the ledger's charges;
- A and B state different things of the same training;
- a change of any file, another key, role, authority or day passes;
- an export of a task that is not over, of another task, or of a changed ledger, log or model is made at all;
- something is overwritten, or half of an export is left.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.util
import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from numpy.typing import NDArray
from typer.testing import Result

from precad.clients import records
from precad.clients.models import networks
from precad.deploy.cli.main import app
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.sections import read_toml
from precad.deploy.errors import ConfigError, ExportRefusedError, exit_code_of
from precad.deploy.exporting import formats
from precad.deploy.exporting.export import export, source_of
from precad.deploy.exporting.finished import read_finished
from precad.deploy.exporting.formats import Format, module_of, write_files
from precad.deploy.exporting.signing import endorsement_of
from precad.deploy.exporting.statement import Counted, difference, parse_statement, statement_of
from precad.deploy.exporting.verify import verify_export
from precad.deploy.oversight.log_audit import copy_state
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.messages import convert
from precad.protos.task.proved_fields import OF_A_DEALER
from precad.protos.task.task import Task
from precad.protos.tls.identity import Identity, Role
from precad.servers.errors import AuditError, SetupError
from precad.servers.store import folder as states
from precad.servers.store.rounds import CommittedRound
from tests.harness.command_line import CliRunner
from tests.harness.pki import Pki
from tests.harness.run_folders import ROUNDS, deployed
from tests.integration.test_demo import pld_epsilon

TRAINED = networks.initial_parameters("mlp", seed=1) * 50
LETTERS = ("a", "b")
ROLES = {"a": Role.AGGREGATOR_A, "b": Role.AGGREGATOR_B}


def precad(*arguments: object, exit_code: int = 0) -> Result:
    """The command in this process."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], terminal_width=200, prog_name="precad")
    assert done.exit_code == exit_code, done.output
    return done


def write_state(
    folder: Path,
    task: Task,
    role: Role = Role.AGGREGATOR_A,
    *,
    ended: str | None = "3 rounds done",
    trained: NDArray[np.float32] = TRAINED,
    rounds: Sequence[Mapping[str, Any]] = ROUNDS,
    earlier: Sequence[EarlierTask] | None = None,
) -> None:
    """Write what a server has after these rounds, and the vector after the last of them."""
    initial = convert.model_to_bytes(networks.initial_vector(task))
    digest = convert.sha256(convert.model_to_bytes(trained))
    with states.open_ledger(folder, task, earlier) as ledger, states.open_task_store(folder, task, initial) as store:
        store.begin("small-0123", role)
        for number, told in enumerate(rounds):
            accepted, rejected = tuple(told["accepted"]), tuple(told["rejected"])
            chosen = tuple(sorted((*accepted, *rejected, *told["missing"])))
            store.reserve(number)
            store.checking(number, chosen=chosen, active=chosen)
            store.validated(number, accepted=accepted, rejected=rejected)
            ledger.charge(number, chosen)
            made = digest if number == len(rounds) - 1 else bytes(32)
            round = CommittedRound(number, chosen, accepted, rejected, made, *told["epsilons"])
            store.commit(round, noisy_sum_digest=bytes(32), ledger_chain=ledger.chain)
        if ended is not None:
            store.finished(ended)
    np.save(folder / "model.npy", trained)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, as `precad run` leaves it. Nobody changes it."""
    root = tmp_path_factory.mktemp("export") / "run"
    deployed(root)
    shutil.rmtree(root / "a")  # its ledger: here, servers have all that they write
    Pki.create(root / "pki", ("a",))
    task = configuration.load(root / "config.toml").task
    for letter in LETTERS:
        write_state(root / letter, task, ROLES[letter])
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, for whoever changes it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_the_copy_of_a_server_with_a_database_can_be_exported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model and records stay files beside the database. The folder without one says what writes the copy."""
    database_copy = pytest.importorskip("precad.servers.store.copy", reason="needs psycopg")
    (run / "a/rounds.jsonl").write_text("")
    state, elsewhere = run / "a", tmp_path / "database"
    elsewhere.mkdir()
    (state / "task.sqlite").rename(elsewhere / "task.sqlite")
    deployment = configuration.load(run / "config.toml")
    with pytest.raises(
        SetupError, match=r"task\.sqlite: expected a server's database, found none; `precad audit copy`"
    ):
        read_finished(state, deployment.task, Role.AGGREGATOR_A)

    def copied(_url: str, _role: Role, folder: Path) -> list[Path]:
        return [Path(shutil.copy(path, folder)) for path in elsewhere.iterdir()]

    monkeypatch.setattr(database_copy, "copy_database", copied)
    monkeypatch.setenv("PRECAD_DATABASE_URL", "postgresql://db/precad")
    made = copy_state(deployment, Role.AGGREGATOR_A, tmp_path / "copy")
    assert {path.name for path in made} == {"ledger.jsonl", "model.npy", "rounds.jsonl", "task.sqlite"}
    assert (read_finished(tmp_path / "copy", deployment.task, Role.AGGREGATOR_A).parameters == TRAINED).all()


@pytest.fixture(scope="module")
def exported(finished: Path) -> Path:
    """With both signatures. Nobody changes it."""
    precad("export", finished, "--out", finished.parent / "exported")
    return finished.parent / "exported"


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export, for whoever changes it."""
    shutil.copytree(exported, tmp_path / "copy")
    return tmp_path / "copy"


def verified(folder: Path, run: Path, **options: Any) -> dict[str, Any]:
    return verify_export(folder, authority=run / "pki" / "ca.pem", **options)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_model_is_the_released_one_and_its_file_loads_without_pickle(exported: Path) -> None:
    """A state_dict for `load_state_dict`, with the parameters that the servers committed."""
    module = networks.build("mlp")
    module.load_state_dict(torch.load(exported / "model.pt", weights_only=True))
    assert np.array_equal(networks.flatten(module), TRAINED)


def test_the_operator_is_told_that_the_training_diverged(run: Path, tmp_path: Path) -> None:
    """Finite numbers that no network can compute with are exported as they were released, and a line says so."""
    task, diverged = configuration.load(run / "config.toml").task, TRAINED.copy()
    diverged[3] = 1e30
    for letter in LETTERS:
        shutil.rmtree(run / letter)
        write_state(run / letter, task, ROLES[letter], trained=diverged)
    assert "the training diverged" in precad("export", run, "--out", tmp_path / "out").output
    exported = networks.build("mlp")
    exported.load_state_dict(torch.load(tmp_path / "out/model.pt", weights_only=True))
    assert np.array_equal(networks.flatten(exported), diverged)


def test_a_model_of_finite_numbers_is_exported_without_a_remark(finished: Path, tmp_path: Path) -> None:
    """Nothing is said of a training that did not diverge."""
    assert "diverged" not in precad("export", finished, "--out", tmp_path / "out").output


def test_the_statement_is_canonical_and_says_what_the_ledger_holds(exported: Path, finished: Path) -> None:
    """Epsilons beside dp-accounting's own composition of the busiest client's rounds: at least it, within 1e-3."""
    content = (exported / "statement.json").read_bytes()
    said = json.loads(content)
    assert content == json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    task = configuration.load(finished / "config.toml").task
    assert said["task"] == {
        "name": "small",
        "algorithm": "precad",
        "id": "small-0123",
        "configuration_sha256": task.digest().hex(),
    }
    assert said["model"]["sha256"] == hashlib.sha256(TRAINED.astype("<f4").tobytes()).hexdigest()
    assert said["rounds"] == {"committed": 3, "charged": 3, "ended": "3 rounds done", "discarded": 0}
    rows = {(row["unit"], row["view"], row["counts"]): row for row in said["privacy"]}
    for view in View:
        row = rows["record", view.value, "rounds of the client that was in most"]
        expected = pld_epsilon(view, task, 3)  # client a is in each of the three
        assert row["kind"] == "bound"
        assert expected - 1e-3 <= row["epsilon"] <= expected + 1e-3
        assert row["epsilon"] == math.ceil(row["epsilon"] * 1e6 - 1e-6) / 1e6
        assert row["adversary"] == "watches"
        row = rows["record", view.value, "most rounds that a client can be in"]
        assert row["epsilon"] == pytest.approx(pld_epsilon(view, task, task.most_draws), abs=1e-3)
        assert row["adversary"] == "may_discard"
    assert rows["client", "clients_only", "all rounds that can be drawn"]["adversary"] == "may_discard"
    assert rows["client", "clients_only", "all rounds, whoever was drawn"]["epsilon"] > 0
    assert (
        rows["client", "one_server", "none"] | {"kind": None, "epsilon": None} == rows["client", "one_server", "none"]
    )
    assert said["poisoning"]["certificate"]["tolerated"] == 0  # one training proves nothing
    assert said["poisoning"]["log2_probability"] == -64
    assert "VACUOUS" in said["guarantee"]
    assert "of one training" not in said["guarantee"]
    assert said["date"] is None


def test_long_texts_that_differ_are_shown_where_they_do(exported: Path) -> None:
    said = parse_statement((exported / "statement.json").read_bytes(), "statement")
    other = said.model_copy(update={"guarantee": f"{said.guarantee} And more."})
    assert len(said.guarantee) > 100
    assert difference(said, other) == f"guarantee: '..{said.guarantee[-20:]}' and '..{said.guarantee[-20:]} And more.'"


def test_a_statement_never_claims_less_than_the_ledger(exported: Path, finished: Path) -> None:
    """Rounded up, in every row that is a bound."""
    task = configuration.load(finished / "config.toml").task
    with states.open_ledger(finished / "a", task) as ledger:
        ours = sorted(ledger.statement(view).epsilon for view in View)
    said = json.loads((exported / "statement.json").read_bytes())["privacy"]
    stated = sorted(row["epsilon"] for row in said if row["unit"] == "record" and row["counts"].startswith("rounds"))
    assert all(epsilon <= claimed < epsilon + 2e-6 for epsilon, claimed in zip(ours, stated, strict=True))


def test_openssl_accepts_the_signatures(exported: Path, tmp_path: Path) -> None:
    """A second implementation, by the certificate's key: the bytes of <role>.json, and no others."""
    for role in ("aggregator-a", "aggregator-b"):
        key = subprocess.run(
            ["openssl", "x509", "-in", exported / f"{role}.pem", "-pubkey", "-noout"], capture_output=True, check=True
        ).stdout
        (tmp_path / "key.pem").write_bytes(key)
        command = [
            "openssl",
            "dgst",
            "-sha256",
            "-verify",
            tmp_path / "key.pem",
            "-signature",
            exported / f"{role}.sig",
        ]
        assert subprocess.run([*command, exported / f"{role}.json"], check=False).returncode == 0
        assert subprocess.run([*command, exported / "statement.json"], check=False).returncode == 1


def test_what_only_one_server_knows_is_in_its_own_file(exported: Path, finished: Path) -> None:
    """The chain of its audit log as `precad audit log` prints it, and the digests of the files that it made."""
    for letter in LETTERS:
        said = json.loads((exported / f"aggregator-{letter}.json").read_bytes())
        report = json.loads(precad("audit", "log", finished / letter, "--json").stdout)
        assert said["audit_log_chain"] == report["chain"]
        assert said["audit_log_entries"] == report["entries"]
        assert said["files"] == {"model.pt": hashlib.sha256((exported / "model.pt").read_bytes()).hexdigest()}
        assert (
            said["ledger_chain"]
            == json.loads((finished / letter / "ledger.jsonl").read_text().splitlines()[-1])["chain"]
        )


@pytest.mark.parametrize(
    ("changes", "rows", "words"),
    [
        (
            {"algorithm": "user-dp-fedavg"},
            [("client", "one_server", "bound"), *2 * [("client", "clients_only", "bound")]],
            "for one client, added or removed, it is proved that",
        ),
        (
            {"algorithm": "non-private", "noise_multiplier": 0.0},
            [("record", "one_server", None), ("record", "clients_only", None), ("client", "one_server", None)],
            "for one record nothing is guaranteed",
        ),
    ],
)
def test_other_algorithms_state_what_they_prove(
    finished: Path, tmp_path: Path, changes: dict[str, Any], rows: list[tuple[str, str, str | None]], words: str
) -> None:
    """A whole client's bounds where that is the unit; no epsilon at all where nobody adds noise. Once for each
    adversary, the one that may discard draws first."""
    task = Task.model_validate(configuration.load(finished / "config.toml").task.model_dump() | changes)
    write_state(tmp_path / "state", task)
    said = statement_of(read_finished(tmp_path / "state", task, Role.AGGREGATOR_A), ["weight"], "none was asked for")
    assert [(row.unit, row.view, row.kind) for row in said.privacy] == rows * 2
    assert [row.adversary for row in said.privacy] == [conduct for conduct in Conduct for _ in rows]
    assert all((row.epsilon is None) is (row.kind is None) for row in said.privacy)
    assert words in said.guarantee
    assert said.task.algorithm == changes["algorithm"]


def test_a_task_without_a_check_states_that_any_upload_counts(finished: Path, tmp_path: Path) -> None:
    """2^0: an upload longer than C enters the sum for certain. What is proved of honest clients stays."""
    checked = Task.model_validate(configuration.load(finished / "config.toml").task.model_dump())
    said = []
    for name, task in (("a", checked), ("b", checked.model_copy(update={"validation": "none"}))):
        write_state(tmp_path / name, task)
        said.append(statement_of(read_finished(tmp_path / name, task, Role.AGGREGATOR_A), ["weight"], "why"))
    assert [one.poisoning.log2_probability < -62 for one in said] == [True, False]
    assert said[1].poisoning.log2_probability == 0
    assert said[0].privacy == said[1].privacy


def test_in_mode_proved_a_statement_has_that_modes_bound(finished: Path, tmp_path: Path) -> None:
    """Theorem 1 by rationals, with p and the sizes written out: above 2^-64, and by less than what rounding adds."""
    fields = configuration.load(finished / "config.toml").task.model_dump(exclude=set(OF_A_DEALER))
    task = Task.model_validate(fields | {"mode": "proved"})
    write_state(tmp_path / "state", task)
    said = statement_of(read_finished(tmp_path / "state", task, Role.AGGREGATOR_A), ["weight"], "why")

    wire = next(n for n in (2**k for k in range(4, 40)) if n * n >= task.dim)
    admissible = 2**56 - 2**32 + 1 - wire - 2048 - 1
    exact = Fraction(1, 2**64) + sum(Fraction(2 * n + 2, admissible) ** 2 for n in (wire, 2048))
    excess = math.log2(float(exact * 2**64))  # above 2^-64, without the digits that 64 would take
    assert task.proof_sizes.bit_domain == 2048
    assert 0 < excess < 1e-6
    assert -64 + excess <= said.poisoning.log2_probability <= -64 + excess + 1e-6


def stated_and_chained(state_dir: Path, task: Task) -> tuple[bytes, str]:
    """Return what both servers state of a task that is over, and the ledger's chain value that A signs beside it."""
    found = read_finished(state_dir, task, Role.AGGREGATOR_A)
    statement, signer = statement_of(found, ["weight"], "why").canonical(), Identity(Role.AGGREGATOR_A, "aggregator-a")
    return statement, endorsement_of(found, signer, statement, {}, today=dt.date(2026, 11, 30)).ledger_chain


@pytest.mark.parametrize("hides", [True, False])
def test_an_export_of_hidden_draws_is_the_same_whoever_was_drawn(finished: Path, tmp_path: Path, hides: bool) -> None:
    """Neither the statement nor what a server signs beside it tells of draws. Both tell of visible ones."""
    fields = configuration.load(finished / "config.toml").task.model_dump(exclude=set(OF_A_DEALER))
    task = Task.model_validate(fields | {"mode": "proved", "round_period_s": 1e4 if hides else None})
    nobody = [{**told, "accepted": [], "rejected": [], "missing": []} for told in ROUNDS]
    stated, chains = list[bytes](), list[str]()
    for name, rounds in (("some", ROUNDS), ("nobody", nobody)):
        write_state(tmp_path / name, task, rounds=rounds)
        statement, chain = stated_and_chained(tmp_path / name, task)
        stated.append(statement)
        chains.append(chain)
    assert (stated[0] == stated[1]) is hides
    assert (chains == ["", ""]) is hides
    rows = [row for row in parse_statement(stated[0], "statement").privacy if row.counts is Counted.MOST]
    assert bool(rows) is not hides


@pytest.mark.parametrize("hides", [True, False])
def test_nor_does_the_export_of_a_task_that_counts_hidden_draws(finished: Path, tmp_path: Path, hides: bool) -> None:
    """Neither its figures nor its ledger's chain value, which is of the earlier one's."""
    fields = configuration.load(finished / "config.toml").task.model_dump(exclude=set(OF_A_DEALER))
    task = Task.model_validate(fields | {"mode": "proved"})
    before = Task.model_validate(fields | {"mode": "proved", "round_period_s": 1e4 if hides else None})
    nobody = [{**told, "accepted": [], "rejected": [], "missing": []} for told in ROUNDS]
    stated, chains = list[bytes](), list[str]()
    for name, rounds in (("some", ROUNDS), ("nobody", nobody)):
        write_state(tmp_path / f"{name}-before", before, rounds=rounds)
        earlier = earlier_tasks([(tmp_path / f"{name}-before" / "ledger.jsonl", before.most_draws)])
        write_state(tmp_path / name, task, earlier=earlier)
        statement, chain = stated_and_chained(tmp_path / name, task)
        stated.append(statement)
        chains.append(chain)
    assert (stated[0] == stated[1]) is hides
    assert (chains == ["", ""]) is hides
    told = {row.counts for row in parse_statement(stated[0], "statement").privacy}
    assert (Counted.MOST in told, Counted.ALL in told) == (not hides, not hides)


def test_a_learnt_bound_stays_behind(finished: Path, tmp_path: Path) -> None:
    """Exported are the parameters, with a digest of their own; what the servers logged covers the bound after them, and
    that was verified before."""
    changes = {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile", "dim": TRAINED.size + 1}
    task = Task.model_validate(configuration.load(finished / "config.toml").task.model_dump() | changes)
    write_state(tmp_path / "state", task, trained=np.append(TRAINED, np.float32(0.25)))
    found = read_finished(tmp_path / "state", task, Role.AGGREGATOR_A)
    assert found.parameters.tobytes() == TRAINED.tobytes()
    said = statement_of(found, ["weight"], "none was asked for")
    assert said.model.n_parameters == TRAINED.size
    assert said.model.sha256 == hashlib.sha256(TRAINED.tobytes()).hexdigest()
    np.save(tmp_path / "state" / "model.npy", np.append(TRAINED, np.float32(0.5)))
    with pytest.raises(AuditError, match=r"model\.npy: expected the released model"):
        read_finished(tmp_path / "state", task, Role.AGGREGATOR_A)


# -- two operators -----------------------------------------------------------------------------------------------------


def of_one_operator(run: Path, letter: str, folder: Path) -> tuple[Path, Path]:
    """A server's state_dir and configuration, apart from the other's."""
    raw = read_toml(run / "config.toml")
    own = {key: raw[key] for key in ("task", "network")} | {"aggregator": {letter: raw["aggregator"][letter]}}
    folder.mkdir()
    shutil.copytree(run / "pki", folder / "pki")
    shutil.copytree(run / letter, folder / "state")
    (folder / "config.toml").write_text(tomli_w.dumps(own))
    return folder / "state", folder / "config.toml"


def test_both_operators_state_the_same_and_their_signatures_go_together(finished: Path, tmp_path: Path) -> None:
    """Each exports by itself, on other days and in other formats; either may pass on the signature of the other."""
    outs = {}
    for letter, kinds in zip(LETTERS, ((), (Format.TORCHSCRIPT,)), strict=True):
        state, config = of_one_operator(finished, letter, tmp_path / letter)
        outs[letter] = tmp_path / {"a": "out-a", "b": "Export ä"}[letter]  # model.pt is the same wherever it lies
        export(source_of(state, config, None), outs[letter], kinds=kinds)
    assert (outs["a"] / "statement.json").read_bytes() == (outs["b"] / "statement.json").read_bytes()
    assert not json.loads((outs["a"] / "statement.json").read_bytes())["poisoning"]["certificate"]
    authority = finished / "pki" / "ca.pem"
    alone = precad("verify-export", outs["a"], "--authority", authority, exit_code=3)
    assert "expected the signature of aggregator-b, found none" in alone.stderr
    precad("verify-export", outs["a"], "--authority", authority, "--signed-by", "a")
    report = verified(outs["a"], finished, against=outs["b"])
    assert set(report["signatures"]) == {"aggregator-a", "aggregator-b"}
    for name in ("aggregator-a.json", "aggregator-a.sig", "aggregator-a.pem"):
        shutil.copy(outs["a"] / name, outs["b"])
    report = verified(outs["b"], finished)
    assert report["files"] == {"model.pt": ["aggregator-a", "aggregator-b"], "model.torchscript": ["aggregator-b"]}
    assert "signed by aggregator-b on" in precad("verify-export", outs["b"], "--authority", authority).stdout
    (outs["b"] / "model.torchscript").unlink()  # a form of the same model, of which A's signature says nothing
    assert set(verified(outs["b"], finished)["files"]) == {"model.pt"}
    precad("verify-export", outs["b"], "--authority", authority, "--signed-by", "b")


def test_an_audit_that_only_the_other_folder_has_is_shown(finished: Path, tmp_path: Path) -> None:
    """The other server signed that an attack contradicts what is proved, and the first one left it out."""
    for letter in LETTERS:
        export(source_of(finished, None, letter), tmp_path / letter)
    figures = {"per_round": 2.0, "f_dp": 0.0, "strict": 0.0}
    audit = {
        "confidence": 0.95,
        "rounds": 3,
        "observations": 9,
        "passed": False,
        "mechanism": {},
        "task_digest": configuration.load(finished / "config.toml").task.digest().hex(),
        "seats": [{"view": "one_server", "printed": 1.0, "figures": figures}],
    }
    content = json.dumps(audit).encode()
    (tmp_path / "b" / "audit.json").write_bytes(content)
    files = json.loads((tmp_path / "b" / "aggregator-b.json").read_bytes())["files"]
    signed = files | {"audit.json": hashlib.sha256(content).hexdigest()}
    sign_anew(tmp_path / "b", "aggregator-b", finished / "pki/aggregator-b/key.pem", files=signed)
    authority = finished / "pki/ca.pem"
    for first, second in (("a", "b"), ("b", "a")):
        found = verify_export(tmp_path / first, authority=authority, against=tmp_path / second)
        assert found["audit"].endswith("It CONTRADICTS what is proved.")


def test_statements_that_differ_are_told_apart_by_the_field(finished: Path, exported: Path, tmp_path: Path) -> None:
    """Here a date that one operator put in; and a run whose servers' ledgers are of different trainings."""
    export(source_of(finished, None, "b"), tmp_path / "dated", date="2026-11-21")
    told = precad(
        "verify-export", exported, "--against", tmp_path / "dated", "--authority", finished / "pki/ca.pem", exit_code=3
    )
    assert "differ: date: None and '2026-11-21'" in told.stderr
    other = shutil.copytree(finished, tmp_path / "other")
    shutil.rmtree(other / "b")
    write_state(
        other / "b", configuration.load(other / "config.toml").task, Role.AGGREGATOR_B, ended="a budget is spent"
    )
    told = precad("export", other, "--out", tmp_path / "out", exit_code=3)
    assert "the servers state different things: rounds.ended" in told.stderr
    assert not (tmp_path / "out").exists()


# -- what is not believed ----------------------------------------------------------------------------------------------


def sign_anew(folder: Path, role: str, key: Path, **changes: Any) -> None:
    """Do what somebody with this key can do: write another text, with a good signature of that key."""
    path = folder / f"{role}.json"
    content = json.dumps(json.loads(path.read_bytes()) | changes, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(content)
    private = load_pem_private_key(key.read_bytes(), password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    (folder / f"{role}.sig").write_bytes(private.sign(content, ec.ECDSA(hashes.SHA256())))


def in_format_1(folder: Path, run: Path) -> None:
    """As versions before the second figure wrote it: realised epsilons alone, and no word on draws. Signed by both."""
    said = json.loads((folder / "statement.json").read_bytes()) | {"format": "precad/export/1"}
    said["rounds"].pop("discarded")
    said["privacy"] = [row for row in said["privacy"] if row.pop("adversary") == "watches"]
    content = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    (folder / "statement.json").write_bytes(content)
    for role in ("aggregator-a", "aggregator-b"):
        sign_anew(folder, role, run / f"pki/{role}/key.pem", statement_sha256=hashlib.sha256(content).hexdigest())


def test_an_export_of_before_still_verifies_and_says_what_it_is(copy: Path, finished: Path) -> None:
    """Its epsilons do not hold if draws are discarded; without the format's name its rows are refused."""
    in_format_1(copy, finished)
    told = precad("verify-export", copy, "--authority", finished / "pki/ca.pem")
    assert "they hold if no draw was discarded" in told.stdout
    assert "adversary" not in str(verified(copy, finished)["statement"])
    said = (copy / "statement.json").read_bytes()
    (copy / "statement.json").write_bytes(said.replace(b"precad/export/1", b"precad/export/2"))
    with pytest.raises(ExportRefusedError, match=r"rounds\.discarded: Field required"):
        verified(copy, finished)


def other_model(folder: Path, run: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save({name: values + 1 for name, values in state.items()}, folder / "model.pt")


def other_model_signed_again(folder: Path, run: Path) -> None:
    """A server that signs a file which is not the model that it states."""
    other_model(folder, run)
    digest = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
    sign_anew(folder, "aggregator-a", run / "pki/aggregator-a/key.pem", files={"model.pt": digest})


def less_epsilon(folder: Path, run: Path) -> None:
    said = json.loads((folder / "statement.json").read_bytes())
    said["privacy"][0]["epsilon"] = 0.01
    (folder / "statement.json").write_text(json.dumps(said, sort_keys=True, separators=(",", ":")))


def other_text_of_the_same_values(folder: Path, run: Path) -> None:
    said = json.loads((folder / "statement.json").read_bytes())
    (folder / "statement.json").write_text(json.dumps(said, indent=1))


def another_claim(folder: Path, run: Path) -> None:
    said = json.loads((folder / "statement.json").read_bytes()) | {"robust": True}
    (folder / "statement.json").write_text(json.dumps(said, sort_keys=True, separators=(",", ":")))


def no_number(folder: Path, run: Path) -> None:
    """Python reads and writes it; JSON has none such."""
    said = json.loads((folder / "statement.json").read_bytes())
    said["poisoning"]["client_clip"] = math.nan
    (folder / "statement.json").write_text(json.dumps(said, sort_keys=True, separators=(",", ":")))


def b_signs_as_a(folder: Path, run: Path) -> None:
    for kind in ("json", "sig", "pem"):
        shutil.copy(folder / f"aggregator-b.{kind}", folder / f"aggregator-a.{kind}")


def b_signs_for_a(folder: Path, run: Path) -> None:
    """With its own certificate, under A's name."""
    sign_anew(folder, "aggregator-a", run / "pki/aggregator-b/key.pem")
    shutil.copy(run / "pki/aggregator-b/cert.pem", folder / "aggregator-a.pem")


def a_client_signs(folder: Path, run: Path) -> None:
    sign_anew(folder, "aggregator-a", run / "pki/a/key.pem", signer="precad://client/a")
    shutil.copy(run / "pki/a/cert.pem", folder / "aggregator-a.pem")


def a_key_without_its_certificate(folder: Path, run: Path) -> None:
    sign_anew(folder, "aggregator-a", run / "pki/a/key.pem")


def another_authority(folder: Path, run: Path) -> None:
    """Which made a certificate for A as well."""
    foreign = Pki.create(folder.parent / "foreign", ())
    sign_anew(folder, "aggregator-a", foreign.tls("aggregator-a").key)
    shutil.copy(foreign.tls("aggregator-a").certificate, folder / "aggregator-a.pem")


def after_the_certificate(folder: Path, run: Path) -> None:
    day = (dt.datetime.now(dt.UTC) + dt.timedelta(days=400)).date().isoformat()
    sign_anew(folder, "aggregator-a", run / "pki/aggregator-a/key.pem", signed_on=day)


def cut_signature(folder: Path, run: Path) -> None:
    path = folder / "aggregator-a.sig"
    path.write_bytes(path.read_bytes()[:-1])


def some_other_file(folder: Path, run: Path) -> None:
    (folder / "model.onnx").write_bytes(b"not theirs")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_model, "model.pt: no signature here names this file with this content"),
        (other_model_signed_again, "model.pt: expected the parameters of digest"),
        (less_epsilon, "statement.json: it is not the statement that aggregator-a signed"),
        (other_text_of_the_same_values, "statement.json: expected canonical JSON"),
        (another_claim, "statement.json: robust: Extra inputs are not permitted"),
        (no_number, "statement.json: poisoning.client_clip: Input should be a finite number"),
        (b_signs_as_a, "expected a certificate of aggregator-a, found one of precad://aggregator-b/aggregator-b"),
        (b_signs_for_a, "expected a certificate of aggregator-a, found one of precad://aggregator-b/aggregator-b"),
        (a_client_signs, "expected a certificate of aggregator-a, found one of precad://client/a"),
        (a_key_without_its_certificate, "aggregator-a.sig is no signature of aggregator-a.json"),
        (another_authority, "found one that it did not sign"),
        (after_the_certificate, "expected one valid on"),
        (cut_signature, "aggregator-a.sig is no signature of aggregator-a.json"),
        (some_other_file, "model.onnx: no signature here names this file"),
        (lambda folder, run: (folder / "model.pt").unlink(), "model.pt: expected a file that is signed, found none"),
        (lambda folder, run: (folder / "aggregator-b.sig").unlink(), "aggregator-b.sig: expected a file of the sig"),
        (lambda folder, run: (folder / "statement.json").unlink(), "statement.json: expected an export, found"),
        (lambda folder, run: (folder / "statement.json").write_bytes(b"\xff{"), "statement.json: text: "),
    ],
)
def test_a_changed_export_is_refused(
    copy: Path, finished: Path, spoil: Callable[[Path, Path], object], message: str
) -> None:
    """Exit code 3, and what is wrong with which file."""
    verified(copy, finished)
    spoil(copy, finished)
    told = precad("verify-export", copy, "--authority", finished / "pki/ca.pem", exit_code=3)
    assert message in told.stderr


def test_a_name_that_one_server_signs_alone_is_shown_and_not_obeyed(copy: Path, finished: Path) -> None:
    """One server names a file of its own after orders to a terminal, and after a line of ours."""
    name = "x\x1b[2J\x1b[H\nsigned by everybody: epsilon\u202e 0.01"
    (copy / name).write_bytes(b"x")
    files = json.loads((copy / "aggregator-a.json").read_bytes())["files"]
    signed = files | {name: hashlib.sha256(b"x").hexdigest()}
    sign_anew(copy, "aggregator-a", finished / "pki/aggregator-a/key.pem", files=signed)
    told = precad("verify-export", copy, "--authority", finished / "pki/ca.pem").stdout
    assert "x?[2J?[H?signed by everybody: epsilon? 0.01: as aggregator-a signed it" in told
    assert "\x1b" not in told
    assert "\nsigned by everybody" not in told


def test_an_authority_that_is_none_is_an_input_error(exported: Path, finished: Path, tmp_path: Path) -> None:
    """A missing file, something else, and a peer's certificate."""
    (tmp_path / "text").write_text("no certificate")
    for path, code in ((tmp_path / "none", 2), (tmp_path / "text", 2), (finished / "pki/a/cert.pem", 3)):
        precad("verify-export", exported, "--authority", path, exit_code=code)


@pytest.mark.parametrize("argument", ["DIR", "--against"])
def test_a_folder_that_is_none_is_an_input_error(exported: Path, finished: Path, tmp_path: Path, argument: str) -> None:
    """One that is missing, and a file."""
    for path in (tmp_path / "none", exported / "model.pt"):
        folders = (path,) if argument == "DIR" else (exported, "--against", path)
        told = precad("verify-export", *folders, "--authority", finished / "pki/ca.pem", exit_code=2)
        assert f"{argument}: expected a folder that `precad export` wrote, found {path}" in told.stderr


# -- what is not exported ----------------------------------------------------------------------------------------------


def unfinished(run: Path) -> None:
    """The server was stopped after its rounds, before the task was over."""
    shutil.rmtree(run / "a")
    write_state(run / "a", configuration.load(run / "config.toml").task, ended=None)


def a_line_of_the_ledger_changed(run: Path) -> None:
    path = run / "a" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"clients":["a","b"]', '"clients":["b"]'))


def a_cheaper_ledger(run: Path) -> None:
    """Written anew, with a good chain, and without one of the clients."""
    task = configuration.load(run / "config.toml").task
    (run / "a" / "ledger.jsonl").unlink()
    with states.open_ledger(run / "a", task) as ledger:
        for number, told in enumerate(ROUNDS):
            ledger.charge(number, sorted({*told["accepted"], *told["rejected"], *told["missing"]} - {"c"}))


def a_ledger_of_another_history(run: Path) -> None:
    """Written anew, with a good chain and the same charges: only the log knows that there were other lines."""
    task = configuration.load(run / "config.toml").task
    path = run / "a" / "ledger.jsonl"
    path.unlink()
    with states.open_ledger(run / "a", task) as ledger:
        for number in (1, 0, 2):
            told = ROUNDS[number]
            ledger.charge(number, sorted({*told["accepted"], *told["rejected"], *told["missing"]}))


def cut_ledger(run: Path) -> None:
    with (run / "a" / "ledger.jsonl").open("a") as file:
        file.write('{"round":3')


def another_task(run: Path) -> None:
    raw = read_toml(run / "config.toml")
    raw["task"]["noise_multiplier"] = 5.0
    (run / "config.toml").write_text(tomli_w.dumps(raw))


def begun_under_the_version_before(run: Path) -> None:
    """As it was written then: the audit log's first entry has that version's digest of the same parameters."""
    task = configuration.load(run / "config.toml").task
    for letter in LETTERS:
        shutil.rmtree(run / letter)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Task, "digest", lambda task: task.digest_before)
            write_state(run / letter, task, ROLES[letter])


@pytest.mark.parametrize(
    ("spoil", "exit_code", "message"),
    [
        (begun_under_the_version_before, 2, "found one of protocol precad/v1: export it with the version of precad"),
        (unfinished, 2, "expected a finished task, found 3 of 3 rounds, and last in its log 'committed'"),
        (lambda run: (run / "summary.json").unlink(), 2, "summary.json: expected a file of a finished run"),
        (a_line_of_the_ledger_changed, 3, "the line was changed after it was written"),
        (a_cheaper_ledger, 3, "was charged to others than it was released for"),
        (a_ledger_of_another_history, 3, "it is not the ledger that round 0 was released with"),
        (lambda run: (run / "a/ledger.jsonl").unlink(), 2, "expected the privacy ledger, found none"),
        (cut_ledger, 3, "found one that is cut off at the end"),
        (another_task, 2, "expected the task of digest"),
        (lambda run: np.save(run / "a/model.npy", TRAINED + 1), 3, "model.npy: expected the released model"),
        (lambda run: (run / "a/model.npy").unlink(), 2, "state_dir: expected a .npy file"),
        (lambda run: (run / "pki/aggregator-a/key.pem").unlink(), 2, "key: expected a readable file"),
        (
            lambda run: shutil.copytree(run / "pki/a", run / "pki/aggregator-a", dirs_exist_ok=True),
            2,
            "certificate: expected one of aggregator-a, found one of precad://client/a",
        ),
    ],
)
def test_what_is_no_finished_task_is_not_exported(
    run: Path, tmp_path: Path, spoil: Callable[[Path], object], exit_code: int, message: str
) -> None:
    """With the documented exit code; no folder is left."""
    spoil(run)
    told = precad("export", run, "--out", tmp_path / "out", exit_code=exit_code)
    assert message in told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_simulation_is_refused_as_one(tmp_path: Path) -> None:
    """Say so, rather than ask for servers' files that it cannot have."""
    (tmp_path / "simulated").mkdir()
    (tmp_path / "simulated" / "config.toml").write_text('[task]\nname = "t"\n')
    (tmp_path / "simulated" / "seed-0.jsonl").touch()
    told = precad("export", tmp_path / "simulated", "--out", tmp_path / "out", exit_code=2)
    assert "expected the folder of `precad run`, whose servers sign, found one of `precad simulate`" in told.stderr


def test_a_state_dir_needs_its_configuration(finished: Path, tmp_path: Path) -> None:
    """And one section of it, or --role."""
    told = precad("export", finished / "a", "--out", tmp_path / "out", exit_code=2)
    assert "or --config FILE beside a state_dir" in told.stderr
    config = finished / "config.toml"
    told = precad("export", finished / "a", "--out", tmp_path / "out", "--config", config, exit_code=2)
    assert "--role: expected a or b" in told.stderr
    precad("export", finished / "a", "--out", tmp_path / "out", "--config", config, "--role", "a")
    assert not (tmp_path / "out" / "aggregator-b.sig").exists()


def test_a_server_signs_for_its_own_folder_only(finished: Path, tmp_path: Path) -> None:
    """Not for a copy of the other one's, which holds the same task."""
    state, config = of_one_operator(finished, "a", tmp_path / "a")
    shutil.rmtree(state)
    shutil.copytree(finished / "b", state)
    told = precad("export", state, "--config", config, "--out", tmp_path / "out", exit_code=2)
    assert "state: expected the folder of aggregator-a, found one of aggregator-b" in told.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("date", ["21.11.2026", "2026-13-01", "20261121"])
def test_a_date_that_is_none_is_refused(finished: Path, tmp_path: Path, date: str) -> None:
    told = precad("export", finished, "--out", tmp_path / "out", "--date", date, exit_code=2)
    assert "--date: expected YYYY-MM-DD" in told.stderr


def test_nothing_is_overwritten_and_nothing_half_written_is_left(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that holds anything stays as it is; a disk that fails in the middle leaves no trace."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    told = precad("export", finished, "--out", tmp_path / "full", exit_code=2)
    assert "never overwritten" in told.stderr
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]

    def failing(folder: Path, *_: object) -> list[str]:
        (folder / "model.pt").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats, "write_files", failing)
    told = precad("export", finished, "--out", tmp_path / "out", exit_code=2)
    assert "No space left on device" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


# -- formats -----------------------------------------------------------------------------------------------------------

needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="needs onnx")


@pytest.mark.parametrize(
    "kind",
    [
        Format.TORCHSCRIPT,
        pytest.param(Format.ONNX, marks=needs_onnx),
        pytest.param(Format.TORCH_EXPORT, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript's, which is asked for by name
def test_a_format_gives_the_models_outputs_on_real_records(tmp_path: Path, kind: Format) -> None:
    """On the bundled test images, a batch of 360: the written program beside the module, and the same predictions."""
    module = module_of("mlp", TRAINED)
    names = write_files(tmp_path, "mlp", module, [kind])
    features = torch.tensor(records.digits().test.features)
    found = formats.WAYS[kind].run(tmp_path / names[1], features)
    expected = module(features).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Format.TORCHSCRIPT, pytest.param(Format.ONNX, marks=needs_onnx), Format.TORCH_EXPORT])
def test_the_lstm_is_written_for_batches_of_any_size(tmp_path: Path, kind: Format) -> None:
    """`write_files` compares outputs on another batch than the one that it traced."""
    write_files(tmp_path, "lstm", module_of("lstm", networks.initial_parameters("lstm", seed=1)), [kind])


def test_a_format_that_changes_the_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that writes another model, and one that fails."""
    other = module_of("mlp", TRAINED + np.float32(0.5))
    way = formats.WAYS[Format.TORCHSCRIPT]
    wrong = way._replace(write=lambda _, batch, path: way.write(other, batch, path))
    monkeypatch.setitem(formats.WAYS, Format.TORCHSCRIPT, wrong)
    with pytest.raises(ConfigError, match="gives other outputs"):
        write_files(tmp_path, "mlp", module_of("mlp", TRAINED), [Format.TORCHSCRIPT])
    monkeypatch.setitem(formats.WAYS, Format.TORCHSCRIPT, way._replace(write=lambda *_: 1 / 0))
    with pytest.raises(ConfigError, match="cannot hold the model 'mlp': division by zero"):
        write_files(tmp_path, "mlp", module_of("mlp", TRAINED), [Format.TORCHSCRIPT])


def test_a_format_that_is_not_to_be_had_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnx, and for a model whose inputs nobody named."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="expected the package onnx") as raised:
        formats.require_writable("mlp", [Format.ONNX])
    assert exit_code_of(raised.value) == 2
    formats.require_writable("mine:Model", [])
    with pytest.raises(ConfigError, match="whose inputs are known"):
        formats.require_writable("mine:Model", [Format.TORCHSCRIPT])


def test_a_file_of_strangers_runs_nothing(copy: Path, finished: Path) -> None:
    """A pickle with a call in it, signed by a server that went bad, is refused before it is run."""
    torch.save({"0": Surprise(copy.parent / "ran")}, copy / "model.pt")
    digest = hashlib.sha256((copy / "model.pt").read_bytes()).hexdigest()
    sign_anew(copy, "aggregator-a", finished / "pki/aggregator-a/key.pem", files={"model.pt": digest})
    precad("verify-export", copy, "--authority", finished / "pki/ca.pem", exit_code=3)
    assert not (copy.parent / "ran").exists()


class Surprise:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)
