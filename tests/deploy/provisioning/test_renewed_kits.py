"""Kits whose operators renewed certificates and pins: the same `precad join` goes on, and takes nothing back.

Failure means that a pin which was taken out, as its key was stolen, is trusted again after a restart.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from precad.protos.tls.files import TlsFiles
from tests.harness.kits import PARTICIPANTS, SERVERS, Project, precad, tried

ADDRESSES = {"aggregator-a": "127.0.0.1:9", "aggregator-b": "127.0.0.1:10", "lane": "127.0.0.1:11"}
A, B = SERVERS
CLIENT = "hospital-1"
PIN = f"peers/{B}.pem"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Everybody joined; and the project's digest."""
    project = Project(tmp_path_factory.mktemp("organisations") / "one", precad)
    project.begin(ADDRESSES)
    project.request()
    digest = project.provision()
    project.give_records()
    for who in PARTICIPANTS:
        precad(*project.join(who, digest), "--no-start")
    return project.root, digest


@pytest.fixture
def digest(made: tuple[Path, str]) -> str:
    return made[1]


@pytest.fixture
def project(made: tuple[Path, str], tmp_path: Path) -> Project:
    """A copy of what everybody has."""
    shutil.copytree(made[0], tmp_path / "one")
    return Project(tmp_path / "one", precad)


def folder_of(project: Project, who: str) -> Path:
    """Return where a participant's kit is installed."""
    return project.home(who) / who


def kit_line(project: Project, who: str) -> str:
    """Return what `precad check` says of a kit."""
    code, said = tried("check", folder_of(project, who) / f"{who}.toml", "--json")
    assert code == 0, said
    return str(json.loads(said)["kit"])


def new_key_of_b(project: Project) -> bytes:
    """Let B make another key, have it certified and install both. Return the certificate."""
    precad("pki", "request", project.root / "new", "--role", B)
    made = project.root / "new" / B
    precad("pki", "renew", project.start / "authority", "--role", B, "--request", made / "request.pem")
    certificate = (project.start / "authority" / B / "cert.pem").read_bytes()
    (folder_of(project, B) / "cert.pem").write_bytes(certificate)
    shutil.copy(made / "key.pem", folder_of(project, B) / "key.pem")
    return certificate


def test_the_pin_of_a_stolen_key_does_not_come_back(project: Project, digest: str) -> None:
    """At whoever pins it; and at its own server no other's certificate is suspected."""
    old, new = (folder_of(project, A) / PIN).read_bytes(), new_key_of_b(project)
    for pinned in (old + new, new):
        for who in (A, CLIENT):
            (folder_of(project, who) / PIN).write_bytes(pinned)
            assert tried(*project.join(who, digest), "--no-start")[0] == 0
            assert (folder_of(project, who) / PIN).read_bytes() == pinned
            assert kit_line(project, who) == f"of {who}, unchanged but for {PIN}, renewed since"
    assert tried(*project.join(B, digest), "--no-start")[0] == 0
    assert (folder_of(project, B) / "cert.pem").read_bytes() == new
    assert kit_line(project, B) == f"of {B}, unchanged but for cert.pem, renewed since"


def test_an_authority_takes_the_place_of_another(project: Project, digest: str) -> None:
    """First beside it, then alone. The seal stays the one of before, which nobody trusts any more."""
    home, before = folder_of(project, CLIENT), (folder_of(project, CLIENT) / "ca.pem").read_bytes()
    second = project.root / "second"
    precad("pki", "init", second)
    precad("pki", "sign", second, home / "request.pem", "--role", "client", "--name", CLIENT)
    after = (second / "ca.pem").read_bytes()
    (home / "ca.pem").write_bytes(before + after)
    (home / "cert.pem").write_bytes((second / CLIENT / "cert.pem").read_bytes())
    for server in SERVERS:
        precad("pki", "sign", second, folder_of(project, server) / "request.pem", "--role", server)
        (home / "peers" / f"{server}.pem").write_bytes((second / server / "cert.pem").read_bytes())
    for trusted in (before + after, after):
        (home / "ca.pem").write_bytes(trusted)
        assert tried(*project.join(CLIENT, digest), "--no-start")[0] == 0
        assert "ca.pem, cert.pem, peers/" in kit_line(project, CLIENT)
        assert (home / "ca.pem").read_bytes() == trusted
    TlsFiles(certificate=home / "cert.pem", key=home / "key.pem", authority=home / "ca.pem").load()


def test_the_task_is_nothing_that_is_renewed(project: Project, digest: str) -> None:
    """Beside a renewed pin, too. The same kit takes it back."""
    new_pin, task = new_key_of_b(project), folder_of(project, A) / "task.toml"
    (folder_of(project, A) / PIN).write_bytes(new_pin)
    task.write_text(task.read_text().replace("rounds = 3", "rounds = 300"))
    code, said = tried("check", folder_of(project, A) / f"{A}.toml")
    assert (code, "task.rounds: expected 3, found 300" in said) == (2, True)
    assert tried(*project.join(A, digest), "--no-start")[0] == 0
    assert "rounds = 3\n" in task.read_text()
    assert (folder_of(project, A) / PIN).read_bytes() == new_pin


def test_a_new_project_brings_its_own_certificates(project: Project, digest: str) -> None:
    """Its digest is another, which operators agreed on anew; pins of before are gone then."""
    pin, old = folder_of(project, A) / PIN, (folder_of(project, A) / PIN).read_bytes()
    new = new_key_of_b(project)
    pin.write_bytes(old + new)
    shutil.copy(project.root / "new" / B / "request.pem", project.start / "requests" / f"{B}.pem")
    path = project.start / "task.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    said = precad("provision", project.start / "project.toml", "--out", project.root / "again")
    agreed = said.split("project digest")[1].split()[0]
    assert agreed != digest
    for who in (A, B):
        kit = project.root / "again" / who
        code, said = tried("join", kit, project.home(who), "--agreed", agreed, "--no-start")
        assert code == 0, said
        assert kit_line(project, who) == f"of {who}, unchanged"
    assert pin.read_bytes() == new
