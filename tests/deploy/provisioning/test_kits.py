"""Kits that organisations verify: what an operator or somebody on the way does wrong, and what is said of it."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import re
import shutil
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.deploy import errors
from precad.deploy.authority import pki
from precad.deploy.configuration.sections import load
from precad.deploy.provisioning import joining
from precad.deploy.provisioning.manifest import MANIFEST, Kit, Manifest, seal, sha256, verify
from precad.protos.messages import convert
from precad.protos.tls.identity import Identity, Role
from precad.servers.private_files import private_folder
from precad.servers.store.folder import open_ledger, open_task_store, store_path
from precad.servers.store.rounds import TaskStore
from tests.harness.denied import deny
from tests.harness.kits import PARTICIPANTS, SERVERS, Project, precad, tried
from tests.harness.organisations import ROOT

ADDRESSES = {"aggregator-a": "127.0.0.1:9", "aggregator-b": "127.0.0.1:10", "lane": "127.0.0.1:11"}
ANSWERS = "queries = {columns = {age = {low = 0, high = 130}}, limit_epsilon = 1000.0}\n"
A, B, CLIENT = (*SERVERS, "hospital-1")
HALF_SPACES = f"""accept_weak_wire_form = true
half_spaces = [-5.0]
directions_sha256 = "{"0" * 64}"
directions = "directions.npy\""""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Everything up to the kits at their organisations, and the project's digest."""
    project = Project(tmp_path_factory.mktemp("organisations") / "one", precad)
    project.begin(ADDRESSES)
    project.request()
    digest = project.provision()
    project.give_records()
    return project.root, digest


def joined(project: Project, who: str, digest: str) -> tuple[int, str]:
    """Join, without a start."""
    return tried(*project.join(who, digest), "--no-start")


def checked(project: Project, who: str, *flags: str) -> tuple[int, str]:
    return tried("check", project.home(who) / who / f"{who}.toml", *flags)


def provisioned(project: Project) -> tuple[int, str]:
    """Provision once more, somewhere else."""
    return tried("provision", project.start / "project.toml", "--out", project.root / "again")


@pytest.mark.parametrize("who", [A, B, CLIENT])
def test_every_organisation_checks_its_kit_and_sees_one_task_and_one_project(
    project: Project, digest: str, who: str
) -> None:
    assert joined(project, who, digest)[0] == 0
    code, said = checked(project, who, "--json")
    assert code == 0, said
    report = json.loads(said)
    manifest = json.loads((project.kit(who) / MANIFEST).read_bytes())
    assert report["kit"] == f"of {who}, unchanged"
    assert (report["project_digest"], report["task_digest"]) == (digest, manifest["task_digest"])
    assert joined(project, who, digest)[0] == 0  # the same command goes on


def test_no_kit_holds_a_private_key_and_servers_get_a_token_of_their_own(project: Project, digest: str) -> None:
    for who in PARTICIPANTS:
        assert joined(project, who, digest)[0] == 0
        assert not [p for p in project.kit(who).rglob("*") if p.is_file() and b"PRIVATE" in p.read_bytes()]
    tokens = [project.home(who) / who / "operations-token" for who in SERVERS]
    assert {path.stat().st_mode & 0o777 for path in tokens} == {0o600}
    assert len({path.read_text() for path in tokens}) == 2
    assert not (project.home(CLIENT) / CLIENT / "operations-token").exists()


def test_a_server_of_a_kit_reads_revocations_from_its_start_and_joining_again_keeps_them(
    project: Project, digest: str
) -> None:
    """A file that is named later is read after a restart alone, and a stolen key has a use until then."""
    for who in (A, B):
        assert joined(project, who, digest)[0] == 0
        assert json.loads(checked(project, who, "--json")[1])[who.replace("-", "_")]["revoked"] == (
            "certificates of clients: 0"
        )
        path = project.home(who) / who / "revoked.txt"
        path.write_text(path.read_text() + "a" * 64 + "\n")
        assert joined(project, who, digest)[0] == 0
        said = json.loads(checked(project, who, "--json")[1])
        assert said[who.replace("-", "_")]["revoked"] == "certificates of clients: 1"
        assert said["kit"] == f"of {who}, unchanged"
    assert joined(project, CLIENT, digest)[0] == 0
    assert not (project.home(CLIENT) / CLIENT / "revoked.txt").exists()


def test_no_list_of_revocations_is_made_that_nobody_reads(project: Project, digest: str) -> None:
    """An operator names another one: what is written into this would revoke nothing."""
    home = project.home(A) / A
    (home / "own.toml").write_text('[aggregator.a]\nrevoked = "elsewhere.txt"\n')
    (home / "elsewhere.txt").write_text("a" * 64 + "\n")
    assert joined(project, A, digest)[0] == 0
    assert not (home / "revoked.txt").exists()
    assert json.loads(checked(project, A, "--json")[1])["aggregator_a"]["revoked"] == "certificates of clients: 1"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_provision_says_which_bound_of_evaluations_would_do(project: Project) -> None:
    """Where clients hold out fewer than they declare and the task names no C; named, nothing is said."""
    terms = 'evaluation = "clients"\nevaluation_every = 1\nevaluation_noise = 40.0\n'
    edit(project.start / "task.toml", "rounds = 3\n", f"rounds = 3\n{terms}")
    edit(project.start / "project.toml", "[client]\n", "[client]\nholdout = 0.2\n")
    code, said = provisioned(project)
    assert code == 0, said
    (named,) = re.findall(r"note: task\.evaluation_clip is not set: .*evaluation_clip = (\d+) lowers", said)
    shutil.rmtree(project.root / "again")
    edit(project.start / "task.toml", terms, f"{terms}evaluation_clip = {named}.0\n")
    code, said = provisioned(project)
    assert code == 0
    assert "note:" not in said


Wrong = Callable[[Project], None]


def in_project(old: str, new: str) -> Wrong:
    return lambda project: edit(project.start / "project.toml", old, new)


def in_task(old: str, new: str) -> Wrong:
    return lambda project: edit(project.start / "task.toml", old, new)


def request_of(path: str, place: str) -> Wrong:
    """Put a request in another one's place."""
    return lambda project: shutil.copy(project.start / "requests" / path, project.start / "requests" / place) and None


def of_another_key(project: Project) -> None:
    """Somebody makes a key anew after the certificate was made."""
    asked = pki.request(project.root / "anew", Identity(Role.CLIENT, CLIENT))
    shutil.copy(asked, project.start / "requests" / f"{CLIENT}.pem")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (in_task('mode = "proved"', 'mode = "shares"'), "accept_weak_wire_form: expected true"),
        (in_project("[project]", "[dealer]\n[project]"), "in mode 'proved', which has no dealer"),
        (in_task('algorithm = "precad"', 'algorithm = "distributed-dp"'), "servers_follow_protocol: expected true"),
        (in_task('mode = "proved"', HALF_SPACES), "task.half_spaces: expected none in a project, whose kits bring no"),
        (in_task("rounds = 3", "rounds = 0"), "task.rounds: expected greater than or equal to 1, found 0"),
        (in_task("rounds = 3", "round = 3"), "task.round: expected no such key, but perhaps rounds, found 3"),
        (in_task("dim = 14", "dim = 15"), "task.dim: expected 14, found 15"),
        (in_task("hospital-1 = ", "task = "), "task.clients: expected no name of another file of a kit, found 'task'"),
        (in_task("hospital-1 = ", "own = "), "task.clients: expected no name of another file of a kit, found 'own'"),
        (in_project("[client]", '[client]\nauthority = "x"'), "client.authority: expected none: the kit has it"),
        (
            in_project("[client]", "[client]\nuploads_per_model = 9"),
            "uploads_per_model: expected none: each org",
        ),
        (
            in_project("[client]", '[client]\nfolder = "/home/operator/Downloads"'),
            "client.folder: expected none: each organisation says it in own.toml",
        ),
        (in_project("[client]", "[client]\nuploads = 1"), "client.uploads: expected no such key, found 1"),
        (in_project("[client]", "[clients]"), "expected no section clients in a project"),
        (in_project('include = "task.toml"', 'include = "other.toml"'), "expected a readable file"),
        (in_project("days = 90", "days = 500"), "days: expected an end before that of the authority's certificate"),
        (in_project("days = 90", 'days = 90\ninitial_model = "no.npy"'), "initial_model: "),
        (lambda p: (p.start / "requests" / f"{B}.pem").unlink(), f"expected {B}.pem in "),
        (request_of(f"{A}.pem", f"{B}.pem"), f"expected a request for precad://{B}/{B}, found one for precad://{A}/"),
        (lambda p: (p.start / "requests" / f"{B}.pem").write_text("x") and None, "expected a PEM request"),
        (of_another_key, "found another one: precad pki renew --request certifies it"),
    ],
)
def test_a_wrong_project_is_refused_before_anything_is_sent(project: Project, wrong: Wrong, words: str) -> None:
    """Exit code 2, the field, and no kits."""
    wrong(project)
    code, said = provisioned(project)
    assert (code, words in said) == (errors.INVALID_INPUT, True), said
    assert not (project.root / "again").exists()


def test_a_request_of_nobody_in_the_task_is_said_to_be_left_out(project: Project) -> None:
    assert "left out" not in provisioned(project)[1]
    shutil.rmtree(project.root / "again")
    request_of(f"{CLIENT}.pem", "hospital-10.pem")(project)
    code, said = provisioned(project)
    assert (code, "left out requests of nobody in the task: hospital-10.pem" in said) == (0, True), said


def test_kits_are_never_overwritten(project: Project) -> None:
    code, said = tried("provision", project.start / "project.toml")
    assert (code, "nothing is overwritten" in said) == (errors.INVALID_INPUT, True)


def kit_file(who: str, name: str, change: Callable[[bytes], bytes]) -> Wrong:
    def changed(project: Project) -> None:
        path = project.kit(who) / name
        path.write_bytes(change(path.read_bytes()))

    return changed


def other_initial_model(content: bytes) -> bytes:
    return content[:-4] + np.float32(1.0).tobytes()


def no_key(project: Project) -> None:
    (project.home(A) / A / "key.pem").unlink()


def replaced_request(project: Project) -> None:
    """Stand for A's operator, if the owner certified somebody else's key: its own is another one."""
    shutil.rmtree(project.home(A) / A)
    pki.request(project.home(A), Identity(Role.AGGREGATOR_A, A))


def expired(project: Project) -> None:
    """The kit is a year old. Its manifest has the expired certificate."""
    reseal(project, lambda kit: (kit / "cert.pem").write_bytes(old_certificate(project)), pins=True)


def old_certificate(project: Project) -> bytes:
    authority = project.start / "authority"
    asked = (project.start / "requests" / f"{A}.pem").read_bytes()
    then = dt.datetime.now(dt.UTC) - dt.timedelta(days=20)
    shutil.move(authority / A, authority / "before")
    return pki.certify_request(authority, asked, "request", Identity(Role.AGGREGATOR_A, A), days=10, now=then)


def reseal(project: Project, change: Callable[[Path], object], *, who: str = A, pins: bool = False) -> None:
    """Change a kit as its maker could: with a new manifest and a valid seal. pins: everybody pins A's certificate."""
    kit = project.kit(who)
    manifest = Manifest.parse((kit / MANIFEST).read_bytes(), kit)
    change(kit)
    there = {p.relative_to(kit).as_posix(): sha256(p.read_bytes()) for p in kit.rglob("*") if p.is_file()}
    own = {f"{who}/{name}": there[name] for name in there if name not in ("project.json", "project.sig", "seal.pem")}
    files = {**manifest.files, **own}
    if pins:
        files |= {name: there["cert.pem"] for name in files if name.endswith(f"peers/{A}.pem")}
    anew = seal(manifest.model_copy(update={"files": files}), project.start / "authority", days=1, passphrase=None)
    for name, content in anew.items():
        (kit / name).write_bytes(content)


def with_another_point(path: Path) -> None:
    """Certify a point that is on no curve."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    point = certificate.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)  # type: ignore[union-attr]
    der = certificate.public_bytes(Encoding.DER).replace(point, point[:-1] + bytes([point[-1] ^ 1]))
    path.write_text(ssl.DER_cert_to_PEM_cert(der))


def sealed_by_another(project: Project) -> None:
    """Somebody on the way seals the kit with an authority of their own, which the kit does not hold."""
    manifest = Manifest.parse((project.kit(A) / MANIFEST).read_bytes(), project.kit(A))
    pki.create_authority(project.root / "mallory")
    for name, content in seal(manifest, project.root / "mallory", days=1, passphrase=None).items():
        (project.kit(A) / name).write_bytes(content)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            kit_file(A, "task.toml", lambda b: b.replace(b"rounds = 3", b"rounds = 5")),
            "task.rounds: expected 3, found 5",
        ),
        (
            kit_file(A, "task.toml", lambda b: b.replace(b"hospital-2 = 400", b"hospital-2 = 41")),
            "task.clients.hospital-2: expected 400, found 41",
        ),
        (kit_file(A, "task.toml", lambda b: b.replace(b":9", b":99")), 'network.aggregator_a: expected "127.0.0.1:9"'),
        (kit_file(A, "task.toml", lambda b: b + b"# x\n"), "task.toml: expected the kit's file, SHA-256"),
        (kit_file(A, "initial.npy", other_initial_model), "initial.npy: expected the kit's file"),
        (kit_file(A, f"peers/{B}.pem", lambda b: b + b"\n"), f"peers/{B}.pem: expected the kit's file"),
        (kit_file(A, f"{A}.toml", lambda b: b + b"# x\n"), f"{A}.toml: expected the kit's file"),
        (kit_file(A, "project.sig", lambda b: b[:-1]), "project.sig: expected a signature of project.json by seal.pem"),
        (lambda p: shutil.copy(p.kit(B) / "cert.pem", p.kit(A) / "seal.pem") and None, "for provision.precad"),
        (lambda p: (p.kit(A) / "seal.pem").unlink(), "seal.pem: expected a file of the kit"),
        (sealed_by_another, "expected one signed by"),
        (lambda p: shutil.copy(p.kit(B) / "cert.pem", p.kit(A) / "cert.pem") and None, f"{B}.toml: expected a file of"),
        (no_key, "key.pem, of precad pki request"),
        (replaced_request, "key: expected the certificate's key, found the key of another certificate"),
    ],
)
def test_a_kit_that_was_changed_or_is_not_ours_is_refused_and_nothing_is_written(
    project: Project, digest: str, wrong: Wrong, words: str
) -> None:
    """Each by its field or file, with exit code 2."""
    wrong(project)
    code, said = joined(project, A, digest)
    assert (code, words in said, "precad-join-" in said) == (errors.INVALID_INPUT, True, False), said
    assert not (project.home(A) / A / MANIFEST).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kit: (kit / "my_model.py").write_text("x"), "files: expected those of a kit, found 'my_model.py'"),
        (lambda kit: (kit / "key.pem").write_text("x"), "files: expected those of a kit, found 'key.pem'"),
        (
            lambda kit: shutil.copy(kit / "cert.pem", kit / "peers" / f"{B}.pem"),
            f"{A}/peers/{B}.pem: expected SHA",
        ),
        (lambda kit: edit(kit / "task.toml", "rounds = 3", "rounds = 4"), "/task.toml: expected SHA-256"),
        (
            lambda kit: edit(kit / f"{A}.toml", '"own.toml"', f'"{"x" * 3000}"'),
            "own: expected the name of a file, found: File name too long",
        ),
    ],
)
def test_whoever_seals_kits_cannot_give_one_organisation_other_files(
    project: Project, change: Callable[[Path], object], words: str
) -> None:
    """With a valid seal, and the digest that goes with it."""
    reseal(project, change)
    code, said = joined(project, A, sha256((project.kit(A) / MANIFEST).read_bytes()))
    assert (code, words in said, "precad-join-" in said) == (errors.INVALID_INPUT, True, False), said
    assert not (project.home(A) / A / MANIFEST).exists()


def without_include(kit: Path) -> None:
    """Name servers of the maker's own in the client's file, beside the shared one."""
    file = kit / f"{CLIENT}.toml"
    edit(file, 'include = "task.toml"', "")
    shared = (kit / "task.toml").read_text().replace("127.0.0.1", "mallory.example")
    file.write_text(f"{file.read_text()}\n{shared}")


def without_pins(kit: Path) -> None:
    for server in (A, B):
        edit(kit / f"{CLIENT}.toml", f'{server.replace("-", "_")}_certificate = "peers/{server}.pem"\n', "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_include, "network: expected none, found"),
        (
            without_pins,
            'client.aggregator_b_certificate: expected "peers/aggregator-b.pem", found none',
        ),
        (
            lambda kit: edit(kit / f"{CLIENT}.toml", '"peers/aggregator-b.pem"', '"peers/aggregator-a.pem"'),
            'client.aggregator_b_certificate: expected "peers/aggregator-b.pem", found "peers/aggregator-a.pem"',
        ),
        (
            lambda kit: edit(kit / f"{CLIENT}.toml", 'authority = "ca.pem"', 'authority = "peers/aggregator-a.pem"'),
            'client.authority: expected "ca.pem"',
        ),
        (lambda kit: edit(kit / f"{CLIENT}.toml", 'own = "own.toml"', ""), 'own: expected "own.toml", found none'),
        (
            lambda kit: edit(kit / f"{CLIENT}.toml", "[client]\n", f"[client]\n{ANSWERS}"),
            "client.queries: expected none, found {",
        ),
    ],
)
def test_whoever_seals_kits_cannot_name_other_servers_in_one_configuration(
    project: Project, change: Callable[[Path], object], words: str
) -> None:
    """Refuse a sealed file of a client's that does not include what all share, or does not pin both servers."""
    reseal(project, change, who=CLIENT)
    code, said = joined(project, CLIENT, sha256((project.kit(CLIENT) / MANIFEST).read_bytes()))
    assert (code, words in said) == (errors.INVALID_INPUT, True), said
    assert not (project.home(CLIENT) / CLIENT / MANIFEST).exists()


def test_a_kit_that_is_changed_while_it_is_joined_is_installed_as_it_was_verified(
    project: Project, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may write where it lies, and puts pins of an authority of theirs there after the check."""
    mallory, kit, home = project.root / "mallory", project.kit(CLIENT), project.home(CLIENT) / CLIENT
    pki.create_authority(mallory)
    agreed = {server: (kit / "peers" / f"{server}.pem").read_bytes() for server in (A, B)}

    def changed_after(folder: Path) -> Kit:
        found = verify(folder)
        for server in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
            pki.issue(mallory, Identity(server, server.value))
            shutil.copy(mallory / server / "cert.pem", kit / "peers" / f"{server}.pem")
        return found

    monkeypatch.setattr(joining, "verify", changed_after)
    joining.join(kit, project.home(CLIENT), digest)
    monkeypatch.undo()
    assert {server: (home / "peers" / f"{server}.pem").read_bytes() for server in (A, B)} == agreed
    assert [path.name for path in home.parent.iterdir()] == [CLIENT]
    assert f"{kit}/peers/{A}.pem: expected the kit's file" in joined(project, CLIENT, digest)[1]


@pytest.mark.parametrize("n_denied", [1, 2])
def test_a_kit_joins_where_its_own_folder_alone_may_be_written(
    project: Project, digest: str, n_denied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder of root's with one of each role's user. Where there is no room at all, it is said in one line."""
    make, denied = os.mkdir, [project.home(CLIENT), Path(tempfile.gettempdir())][:n_denied]

    def mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        if Path(path).parent in denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)
    code, said = joined(project, CLIENT, digest)
    assert (code, "room for a copy of the kit, found: Permission denied" in said) == (
        (0, False) if n_denied == 1 else (errors.INVALID_INPUT, True)
    ), said


@pytest.mark.parametrize("name", ["project.json", "project.sig", "seal.pem", "cert.pem", "task.toml"])
def test_a_kit_that_lost_a_file_is_no_hand_made_folder(project: Project, digest: str, name: str) -> None:
    """The check names the file, whichever it is."""
    assert joined(project, A, digest)[0] == 0
    (project.home(A) / A / name).unlink()
    code, said = checked(project, A)
    assert (code, f"{name}: expected a file of the kit" in said) == (errors.INVALID_INPUT, True), said


def test_a_day_that_is_none_is_named(project: Project) -> None:
    path = project.kit(A) / MANIFEST
    path.write_text(re.sub(r'"sealed_on":"[^"]+"', '"sealed_on":"2026-13-41"', path.read_text()))
    code, said = joined(project, A, sha256(path.read_bytes()))
    assert (code, "sealed_on: expected a day, found '2026-13-41'" in said) == (errors.INVALID_INPUT, True), said


def test_an_expired_certificate_is_named(project: Project) -> None:
    expired(project)
    code, said = joined(project, A, sha256((project.kit(A) / MANIFEST).read_bytes()))
    assert (code, "one valid at" in said) == (errors.INVALID_INPUT, True), said


def test_a_certificate_of_no_key_is_named(project: Project) -> None:
    reseal(project, lambda kit: with_another_point(kit / "cert.pem"), pins=True)
    code, said = joined(project, A, sha256((project.kit(A) / MANIFEST).read_bytes()))
    assert (code, "certificate: expected a key's, found one of no key" in said) == (errors.INVALID_INPUT, True), said


def test_kits_of_two_projects_never_join_under_one_digest(project: Project, digest: str) -> None:
    """A second run makes other kits, of the same task: whoever was told the first digest refuses."""
    assert provisioned(project)[0] == 0
    shutil.rmtree(project.kit(CLIENT))
    edit(project.root / "again" / CLIENT / MANIFEST, '"sealed_on":"20', '"sealed_on":"19')
    shutil.copytree(project.root / "again" / CLIENT, project.kit(CLIENT))
    code, said = joined(project, CLIENT, digest)
    assert (code, "--agreed: expected" in said) == (errors.INVALID_INPUT, True), said
    assert sha256((project.kit(CLIENT) / MANIFEST).read_bytes()) not in said  # whoever is in a hurry would copy it


def own(text: str) -> Callable[[Project, str], None]:
    return lambda project, who: (project.home(who) / who / "own.toml").write_text(text) and None


@pytest.mark.parametrize(
    ("who", "text", "code", "words"),
    [
        (A, "[aggregator.a]\nmemory_budget_mb = 1", 2, "memory_budget_mb: expected at least"),
        (
            A,
            '[aggregator.a]\ndatabase_url = "postgresql://a@127.0.0.1:9/x?connect_timeout=1"',
            4,
            "database_url: expected",
        ),
        (A, '[aggregator.a]\npeer_certificate = "x"', 2, "aggregator.a.peer_certificate: expected settings of"),
        (A, "[aggregator.b]\nlisten = 1", 2, "aggregator.b.listen: expected settings of this organisation's own roles"),
        (A, "[task]\nrounds = 9", 2, "task: expected settings of this organisation's own roles"),
        (A, "[client]\ndevice = 'cpu'", 2, "client.device: expected settings of this organisation's own roles"),
        (A, "aggregator = 1", 2, "aggregator: expected settings of"),
        (CLIENT, '[client]\nstate_dir = "task.toml"', 2, "client.state_dir: expected"),
        (CLIENT, '[client]\nrecords = "csv:none.csv"', 2, "none.csv"),
        (CLIENT, "[client]\nuploads_per_model = 4", 2, "uploads_per_model"),
    ],
)
def test_wrong_settings_of_one_s_own_are_named(
    project: Project, digest: str, who: str, text: str, code: int, words: str
) -> None:
    own(text)(project, who)
    found, said = joined(project, who, digest)
    assert (found, words in said) == (code, True), said


def test_settings_of_one_s_own_take_the_place_of_the_kit_s(project: Project, digest: str) -> None:
    assert joined(project, A, digest)[0] == 0
    before = re.search(r"MiB for uploads +(\d+)", checked(project, A)[1])
    own("[aggregator.a]\nmemory_budget_mb = 3048")(project, A)
    after = re.search(r"MiB for uploads +(\d+)", checked(project, A)[1])
    assert before is not None
    assert after is not None
    assert int(after[1]) - int(before[1]) == 1000


def test_every_field_of_a_task_that_was_edited_later_is_named(project: Project, digest: str) -> None:
    """Two fields and an address at once, each on its line."""
    assert joined(project, A, digest)[0] == 0
    task = project.home(A) / A / "task.toml"
    for old, new in (("rounds = 3", "rounds = 30"), ("delta = 1e-5", "delta = 1e-6"), ("127.0.0.1:10", "127.0.0.1:12")):
        edit(task, old, new)
    code, said = checked(project, A)
    assert code == errors.INVALID_INPUT
    for words in ("task.rounds: expected 3, found 30", "task.delta: expected 1e-05, found 1e-06"):
        assert words in said
    assert 'network.aggregator_b: expected "127.0.0.1:10", found "127.0.0.1:12"' in said


def test_the_folder_of_another_task_is_refused(project: Project, digest: str) -> None:
    """A task that began where a kit's state is, and another one's kit afterwards."""
    config = project.home(A) / A / f"{A}.toml"
    assert joined(project, A, digest)[0] == 0
    task = load(config).task.model_copy(update={"name": "before"})
    private_folder(config.parent / "state")
    with open_task_store(config.parent / "state", task, bytes(4 * task.dim)) as store:
        store.begin("before-1", Role.AGGREGATOR_A)
    code, said = joined(project, A, digest)
    assert (code, "expected a folder of this task, found" in said) == (errors.INVALID_INPUT, True), said


def test_a_kit_of_another_task_leaves_the_folder_of_a_task_as_it_was(project: Project, digest: str) -> None:
    """Otherwise the new `task.toml` is in the place of the one that exports the finished task."""
    folder = charged(project, digest).parent
    before, anew = files_in(folder), sent_again(project, A, "rounds = 3", "rounds = 4")
    code, said = joined(project, A, anew)
    assert (code, "found 'kits-1', which has other parameters" in said) == (errors.INVALID_INPUT, True), said
    assert said.rstrip().endswith("nothing was installed")
    assert files_in(folder) == before


def sent_again(project: Project, who: str, old: str, new: str) -> str:
    """Edit and provision again, and put the kit where the first one arrived. Return its project's digest."""
    edit(project.start / "task.toml", old, new)
    said = precad("provision", project.start / "project.toml", "--out", project.root / "again")
    shutil.rmtree(project.kit(who))
    shutil.copytree(project.root / "again" / who, project.kit(who))
    (anew,) = re.findall(r"^project digest +([0-9a-f]{64})$", said, re.MULTILINE)
    return str(anew)


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kit_of_another_task_leaves_a_client_that_has_uploaded_as_it_was(project: Project, digest: str) -> None:
    """It may run there, and reads its pins again. Before its first start the same authority may change the task."""
    folder = project.home(CLIENT) / CLIENT
    assert joined(project, CLIENT, digest)[0] == 0
    before, anew = files_in(folder), sent_again(project, CLIENT, "rounds = 3", "rounds = 4")
    uploads = folder / "client-state" / f"{CLIENT}.uploads"
    uploads.parent.mkdir(exist_ok=True)
    uploads.touch()
    code, said = joined(project, CLIENT, anew)
    assert code == errors.INVALID_INPUT, said
    first, second = (task_digest(kit) for kit in (folder, project.kit(CLIENT)))
    assert (
        f"expected a kit of the task in {folder}, 'diagnosis' (digest {first[:16]}), found one of 'diagnosis'" in said
    )
    assert f"(digest {second[:16]}): join it in another DIR" in said
    assert files_in(folder) == {**before, uploads: b""}
    uploads.unlink()
    assert joined(project, CLIENT, anew)[0] == 0
    assert task_digest(folder) == second


def test_a_kit_of_another_task_by_another_authority_leaves_a_folder_as_it_was(project: Project, digest: str) -> None:
    folder = project.home(CLIENT) / CLIENT
    assert joined(project, CLIENT, digest)[0] == 0
    shutil.rmtree(project.start / "authority")
    before, anew = files_in(folder), sent_again(project, CLIENT, "rounds = 3", "rounds = 4")
    code, said = joined(project, CLIENT, anew)
    assert (code, "expected a kit of the task in" in said) == (errors.INVALID_INPUT, True), said
    assert files_in(folder) == before


@pytest.mark.parametrize("who", [A, CLIENT])
def test_new_kits_that_move_a_server_join_over_a_task_that_has_begun(project: Project, digest: str, who: str) -> None:
    """As the runbook says of a dealer that is lost: the task is the same one, at other addresses."""
    folder = project.home(who) / who
    assert joined(project, who, digest)[0] == 0
    if who == A:
        begun(folder)
    else:
        (folder / "client-state").mkdir()
        (folder / "client-state" / f"{CLIENT}.uploads").touch()
    anew = sent_again(project, who, "127.0.0.1:10", "127.0.0.1:12")
    assert joined(project, who, anew)[0] == 0
    assert load(folder / f"{who}.toml").network.aggregator_b == "127.0.0.1:12"
    assert checked(project, who)[0] == 0


def begun(folder: Path) -> None:
    """Let A have met B."""
    task, initial = load(folder / f"{A}.toml").task, np.load(folder / "initial.npy").tobytes()
    private_folder(folder / "state")
    with open_ledger(folder / "state", task), open_task_store(folder / "state", task, initial) as store:
        store.begin("kits-1", Role.AGGREGATOR_A)


def task_digest(kit: Path) -> str:
    return str(json.loads((kit / MANIFEST).read_bytes())["task_digest"])


@pytest.mark.parametrize("command", [joined, lambda project, who, _: checked(project, who)], ids=["join", "check"])
def test_earlier_ledgers_that_a_ledger_was_not_started_with_are_refused(
    project: Project, digest: str, command: Callable[[Project, str, str], tuple[int, str]]
) -> None:
    """As `serve` refuses them: named in the middle of a task."""
    folder = charged(project, digest).parent
    shutil.copy(folder / "state/ledger.jsonl", folder / "before.jsonl")
    own('[[aggregator.a.earlier_ledgers]]\npath = "before.jsonl"\nmost_rounds = 9')(project, A)
    code, said = command(project, A, digest)
    expected = f"expected those that {folder}/state/ledger.jsonl was started with, none; found 1: {folder}/before.jsonl"
    assert (code, expected in said) == (errors.INVALID_INPUT, True), said


def test_pins_that_the_user_may_not_read_are_named(
    project: Project, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert joined(project, A, digest)[0] == 0
    peers = project.home(A) / A / "peers"
    deny(peers, monkeypatch)
    code, said = checked(project, A)
    expected = f"{peers}/{B}.pem: expected a file of the kit, found: Permission denied"
    assert (code, expected in said) == (errors.INVALID_INPUT, True), said


def test_settings_of_one_s_own_with_a_fault_are_named_before_anything_is_installed(
    project: Project, digest: str
) -> None:
    """By their own file, wherever they were tried."""
    own("[aggregator.a]\nlisten =")(project, A)
    folder = project.home(A) / A
    code, said = joined(project, A, digest)
    assert (code, f"{folder / 'own.toml'}: expected TOML" in said) == (errors.INVALID_INPUT, True), said
    assert not (folder / MANIFEST).exists()


@pytest.mark.parametrize("text", ["", "# [aggregator.a]\n# reconnect_timeout_s = 60.0\n"])
def test_a_file_of_ones_own_may_hold_no_setting(project: Project, digest: str, text: str) -> None:
    """As once its last one is taken out."""
    own(text)(project, A)
    assert joined(project, A, digest)[0] == 0
    assert checked(project, A)[0] == 0


def test_a_field_of_ones_own_with_a_fault_is_named_with_its_file(project: Project, digest: str) -> None:
    own('[aggregator.a]\nmemory_budget_mb = "much"')(project, A)
    path = project.home(A) / A / "own.toml"
    code, said = joined(project, A, digest)
    assert (code, f"{path}: aggregator.a.memory_budget_mb: expected" in said) == (errors.INVALID_INPUT, True), said


@pytest.mark.parametrize("url", ["mysql://ada:hunter2@db/x", "postgresql://ada:hun@ter2@db/x", "hunter2"])
def test_a_database_url_that_is_none_is_refused_before_anything_is_installed(
    project: Project, digest: str, url: str
) -> None:
    """No part of its password is repeated."""
    own(f'[aggregator.a]\ndatabase_url = "{url}"')(project, A)
    code, said = joined(project, A, digest)
    assert (code, "database_url: expected" in said, "ter2" in said) == (errors.INVALID_INPUT, True, False), said
    assert not (project.home(A) / A / MANIFEST).exists()


@pytest.mark.parametrize("command", ["check", "serve aggregator --role a", "status"])
def test_every_command_names_the_file_of_ones_own_that_brings_a_fault(
    project: Project, digest: str, command: str
) -> None:
    assert joined(project, A, digest)[0] == 0
    own('[aggregator.a]\nmemory_budget_mb = "much"')(project, A)
    folder = project.home(A) / A
    code, said = tried(*command.split(), folder / f"{A}.toml")
    assert code == errors.INVALID_INPUT, said
    assert f"{folder / 'own.toml'}: aggregator.a.memory_budget_mb: expected" in said


def test_a_fault_of_the_kit_s_own_file_is_not_said_of_another(project: Project, digest: str) -> None:
    assert joined(project, A, digest)[0] == 0
    own('[aggregator.a]\nmemory_budget_mb = "much"')(project, A)
    folder = project.home(A) / A
    with (folder / f"{A}.toml").open("a") as config:
        config.write('max_uploads = "many"\n')
    _, said = tried("serve", "aggregator", "--role", "a", folder / f"{A}.toml")
    assert re.findall(r"^precad: (.*): expected", said, re.MULTILINE) == [
        f"{folder / 'own.toml'}: aggregator.a.memory_budget_mb",
        "aggregator.a.max_uploads",
    ]


def test_an_edited_configuration_is_not_replaced_without_a_word(project: Project, digest: str) -> None:
    config = project.home(A) / A / f"{A}.toml"
    assert "as it was edited" not in joined(project, A, digest)[1]
    before = config.read_bytes()
    config.write_bytes(before + b"memory_budget_mb = 3048\n")
    code, said = joined(project, A, digest)
    assert (code, f"as it was edited: {A}.toml. Settings of your own go into own.toml" in said) == (0, True), said
    assert config.read_bytes() == before
    assert "as it was edited" not in joined(project, A, digest)[1]


def test_a_join_says_that_the_kit_is_installed_where_its_client_lacks_something(project: Project, digest: str) -> None:
    """Its organisation brings it, and the same command goes on."""
    records = project.home(CLIENT) / CLIENT / "records" / f"{CLIENT}.csv"
    records.rename(records.with_suffix(".aside"))
    code, said = joined(project, CLIENT, digest)
    assert (code, "not started: the kit stays installed" in said) == (errors.INVALID_INPUT, True), said
    assert str(records.name) in said
    records.with_suffix(".aside").rename(records)
    assert joined(project, CLIENT, digest)[0] == 0


def test_a_folder_that_an_earlier_protocol_began_is_refused(project: Project, digest: str) -> None:
    """By the check that `join` makes, with the name that the task had there."""
    config = project.home(A) / A / f"{A}.toml"
    assert joined(project, A, digest)[0] == 0
    task, initial = load(config).task, np.load(config.parent / "initial.npy").tobytes()
    digests = {"config_digest": task.digest_before, "initial_model_digest": convert.sha256(initial)}
    private_folder(config.parent / "state")
    with TaskStore(store_path(config.parent / "state"), **digests) as store:
        store.begin("before-1", Role.AGGREGATOR_A)
    code, said = joined(project, A, digest)
    assert (code, "found 'before-1', which was begun under" in said) == (errors.INVALID_INPUT, True), said


def charged(project: Project, digest: str) -> Path:
    """Let A's ledger hold a round that its other files do not know; return the folder."""
    config = project.home(A) / A / f"{A}.toml"
    assert joined(project, A, digest)[0] == 0
    task, state = load(config).task, config.parent / "state"
    private_folder(state)
    initial = np.load(config.parent / "initial.npy").tobytes()
    with open_ledger(state, task) as ledger, open_task_store(state, task, initial) as store:
        store.begin("kits-1", Role.AGGREGATOR_A)
        ledger.charge(0, [CLIENT])
    return state


def test_files_of_different_days_are_refused(project: Project, digest: str) -> None:
    charged(project, digest)
    code, said = joined(project, A, digest)
    assert (code, "of which nothing else is known here" in said) == (errors.INVALID_INPUT, True), said


def test_a_changed_line_of_the_ledger_is_refused(project: Project, digest: str) -> None:
    """By the check that `join` makes, by a check alone and by a start, with the code that the table has for it."""
    edit(charged(project, digest) / "ledger.jsonl", '"hospital-1"', '"hospital-2"')
    config = project.home(A) / A / f"{A}.toml"
    for code, said in (
        joined(project, A, digest),
        checked(project, A),
        tried("serve", "aggregator", config, "--role", "a"),
    ):
        assert (code, "the line was changed after it was written" in said) == (errors.REFUSED, True), said


def test_a_seal_is_the_authority_s_and_names_no_role(project: Project) -> None:
    """It opens no port: TLS peers ask for `<role>.precad` and an identity."""
    seal_pem = x509.load_pem_x509_certificate((project.kit(A) / "seal.pem").read_bytes())
    names = seal_pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["provision.precad"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == []


PROJECT, KIT, OWN = (
    "test_a_wrong_project_is_refused_before_anything_is_sent",
    "test_a_kit_that_was_changed_or_is_not_ours_is_refused_and_nothing_is_written",
    "test_wrong_settings_of_one_s_own_are_named",
)
BEGINNING = "test_servers_that_cannot_begin_say_why"
RUNNING = "tests/integration/test_kit_mistakes.py"
BEFORE_A_START = {
    "config_digest differs between the servers": KIT,  # every field by its name
    "client.state_dir: expected": OWN,
    "accept_weak_wire_form: expected true": PROJECT,
    "in mode 'proved', which has no dealer": PROJECT,
    "servers_follow_protocol: expected true": PROJECT,
    "model differs between the servers": KIT,  # initial models; later ones differ while running
    "aggregator B refused the link": KIT,  # for want of a pin
    "of which nothing else is known here": "test_files_of_different_days_are_refused",
    "the line was changed after it was written": "test_a_changed_line_of_the_ledger_is_refused",
    "which was begun under": "test_a_folder_that_an_earlier_protocol_began_is_refused",
    "expected a kit of the task in": "test_a_kit_of_another_task_leaves_a_client_that_has_uploaded_as_it_was",
    "expected a folder of this task, found": "test_the_folder_of_another_task_is_refused",
    "memory_budget_mb: expected at least": OWN,
    "database_url: expected a database that takes us": OWN,
    "the key of another certificate": KIT,
    "one valid at": "test_an_expired_certificate_is_named",
    "its certificate is not the pinned one": KIT,
}
"""Mistakes of the runbook's table that a kit, or its check, finds out before anything runs, and the tests here."""
WHILE_RUNNING = {
    "has a server lost its state_dir?": "test_folders_that_are_lost_or_of_an_earlier_day_end_both_servers",
    "was a server given back an old state_dir?": "test_folders_that_are_lost_or_of_an_earlier_day_end_both_servers",
    "min_clients: expected": BEGINNING,
    "must be open to us": BEGINNING,
    "require_pqc differs between the servers": BEGINNING,
    "stops: expected at most": "test_a_client_that_is_started_again_and_again_stops",
    "the task ended without a round": "test_a_task_that_comes_to_nothing_ends_its_servers",
    "the training diverged": "test_a_task_that_comes_to_nothing_ends_its_servers",
    "nothing was recorded": "test_a_disk_that_is_full_ends_its_server",
    "require_pqc: expected": "test_a_proxy_without_the_post_quantum_group_is_refused",
}
"""Those that only a running task, or its folder, can have, made by organisations that joined by kits, and the tests in
`RUNNING`."""


RESTORING = "tests/faults/test_restored.py"
RESTORED = {"was dealt to this server before": "test_a_past_that_was_undone_is_refused"}
"""Those of servers whose folders were restored, and the tests in `RESTORING`."""
COUNTING = "tests/clients/upload/test_upload_limit.py"
COUNTED = {"stops: expected servers that hold the": "test_servers_that_were_both_put_back_or_begun_anew_get_nothing"}
"""Those of clients that count their uploads, and the tests in `COUNTING`."""


def test_every_mistake_of_the_table_is_tried() -> None:
    """Here or, where it needs a running task, in the test that is named, which has the table's words."""
    table = (ROOT / "docs/reference/endings.md").read_text()
    assert set(re.findall(r"^\| `([^`]+)` \| \d \|", table, re.MULTILINE)) == {
        *BEFORE_A_START,
        *WHILE_RUNNING,
        *RESTORED,
        *COUNTED,
    }
    assert set(BEFORE_A_START.values()) <= globals().keys()
    for file, tests in ((RUNNING, WHILE_RUNNING), (RESTORING, RESTORED), (COUNTING, COUNTED)):
        text = (ROOT / file).read_text()
        for words, name in tests.items():
            assert words in text
            assert f"def {name}(" in text
