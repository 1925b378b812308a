"""Kits whose operators renewed certificates and pins: the same `precad join` goes on, and takes nothing back.

Failure means that a pin which was taken out, as its key was stolen, is trusted again after a restart.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.authority import pki
from precad.deploy.configuration.sections import load
from precad.deploy.provisioning.joining import join
from precad.deploy.provisioning.manifest import MANIFEST, Manifest, seal, sha256
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
        assert ("no authority here has certified its seal" in kit_line(project, CLIENT)) is (trusted == after)
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


def test_a_kit_that_was_installed_half_renewed_nothing(
    project: Project, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pins are not the old kit's, which is refused until it is joined again, and then holds its own ones."""
    pin = folder_of(project, A) / PIN
    old, new = pin.read_bytes(), new_key_of_b(project)
    shutil.copy(project.root / "new" / B / "request.pem", project.start / "requests" / f"{B}.pem")
    path = project.start / "task.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    said = precad("provision", project.start / "project.toml", "--out", project.root / "again")
    replace_file = pki.replace_file

    def killed(path: Path, *arguments: Any, **named: Any) -> None:
        if path.name == "task.toml":
            raise KeyboardInterrupt
        replace_file(path, *arguments, **named)

    monkeypatch.setattr(pki, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        join(project.root / "again" / A, project.home(A), said.split("project digest")[1].split()[0])
    monkeypatch.undo()
    assert pin.read_bytes() == new
    code, said = tried("check", folder_of(project, A) / f"{A}.toml")
    assert (code, "project.json: expected a file of the kit" in said) == (2, True)
    assert tried(*project.join(A, digest), "--no-start")[0] == 0
    assert pin.read_bytes() == old


@pytest.mark.parametrize("content", [b"", b"no certificate", "half", "a", "ca"])
@pytest.mark.parametrize("name", [PIN, "cert.pem", "ca.pem"])
def test_what_is_damaged_or_of_somebody_else_is_repaired(
    project: Project, digest: str, name: str, content: bytes | str
) -> None:
    """By the same kit: `precad check` refuses it, and nothing of it is called renewed."""
    home = folder_of(project, A)
    path, whole = home / name, (home / name).read_bytes()
    others = {"half": whole[: len(whole) // 2], "a": (home / "cert.pem").read_bytes(), "ca": b""}
    precad("pki", "init", project.root / "foreign")
    others["ca"] = (project.root / "foreign" / "ca.pem").read_bytes()
    path.write_bytes(others[content] if isinstance(content, str) else content)
    if (name, content) in {("cert.pem", "a"), ("ca.pem", "ca")}:
        return  # the own certificate; a new authority, without certificates of it
    assert tried("check", home / f"{A}.toml")[0] == 2
    code, said = tried(*project.join(A, digest), "--no-start")
    assert code == 0, said
    assert path.read_bytes() == whole


def test_a_manifest_that_nobody_vouches_for_is_called_that(project: Project) -> None:
    """Whoever writes into the folder seals another task. A byte more in ca.pem does not make it the authority's."""
    home = folder_of(project, A)
    (home / "task.toml").write_text((home / "task.toml").read_text().replace("rounds = 3", "rounds = 300"))
    precad("pki", "init", project.root / "forger")
    task = load(home / f"{A}.toml").task
    manifest = Manifest.parse((home / MANIFEST).read_bytes(), home / MANIFEST)
    files = {
        name: sha256((home / "task.toml").read_bytes()) if name.endswith("/task.toml") else digest
        for name, digest in manifest.files.items()
    }
    changes = {"files": files, "task": json.loads(task.canonical()), "task_digest": task.digest().hex()}
    forged = seal(manifest.model_copy(update=changes), project.root / "forger", days=30, passphrase=None)
    for name, content in forged.items():
        (home / name).write_bytes(content)
    assert tried("check", home / f"{A}.toml")[0] == 2
    (home / "ca.pem").write_bytes((home / "ca.pem").read_bytes() + b"\n")
    assert "no authority here has certified its seal: compare the project digest" in kit_line(project, A)
