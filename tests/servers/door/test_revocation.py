"""Revoked certificates: the list is read as written, follows its file, and shuts a client out of a running task."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.identity import fingerprint
from precad.servers.door.revocation import Revocations
from precad.servers.errors import RevokedError, SetupError
from tests.harness.harness import LeashedClient, Pki, asynchronous, running, small_task

PRINT = "ab" * 32


class Call:
    """Hold what a servicer sees of its caller."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    def auth_context(self) -> dict[str, list[bytes]]:
        """As gRPC gives it."""
        return {"x509_pem_cert": [self._pem], "transport_security_type": [b"ssl"]}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice", "bob"])


def test_without_a_file_nobody_is_revoked(pki: Pki) -> None:
    Revocations(None).require_valid(Call(pki.tls("alice").certificate.read_bytes()))


@pytest.mark.parametrize(
    "form", [str.lower, str.upper, lambda text: ":".join(text[i : i + 2] for i in range(0, 64, 2))]
)
def test_a_listed_certificate_is_refused_and_no_other(pki: Pki, tmp_path: Path, form: Callable[[str], str]) -> None:
    alice, bob = (pki.tls(name).certificate.read_bytes() for name in ("alice", "bob"))
    path = tmp_path / "revoked.txt"
    path.write_text(f"# left the project\n\n{form(fingerprint(alice))}  # alice\n{PRINT}\n")
    revocations = Revocations(path)
    revocations.require_valid(Call(bob))
    with pytest.raises(RevokedError, match="the certificate is revoked"):
        revocations.require_valid(Call(alice))


@pytest.mark.parametrize("content", ["alice", PRINT[:-1], PRINT + " " + PRINT, "\x00"])
def test_a_file_with_anything_else_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "revoked.txt"
    path.write_text(f"{PRINT}\n{content}\n")
    with pytest.raises(SetupError, match="revoked: expected a SHA-256 fingerprint in line 2"):
        Revocations(path)


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="revoked: expected a text file of fingerprints"):
        Revocations(tmp_path / "revoked.txt")


def test_a_byte_order_mark_hides_no_fingerprint(pki: Pki, tmp_path: Path) -> None:
    alice, path = pki.tls("alice").certificate.read_bytes(), tmp_path / "revoked.txt"
    path.write_text(fingerprint(alice) + "\n", encoding="utf-8-sig")
    with pytest.raises(RevokedError):
        Revocations(path).require_valid(Call(alice))


def test_the_file_is_read_again_and_one_that_breaks_revokes_no_less(pki: Pki, tmp_path: Path) -> None:
    alice, bob = (pki.tls(name).certificate.read_bytes() for name in ("alice", "bob"))
    path = tmp_path / "revoked.txt"
    path.write_text("")
    revocations = Revocations(path)
    revocations.require_valid(Call(alice))
    path.write_text(fingerprint(alice))
    with pytest.raises(RevokedError):
        revocations.require_valid(Call(alice))
    path.write_text("nonsense")
    with pytest.raises(RevokedError):
        revocations.require_valid(Call(alice))
    os.unlink(path)
    with pytest.raises(RevokedError):
        revocations.require_valid(Call(alice))
    path.write_text(fingerprint(bob) + "\n")
    revocations.require_valid(Call(alice))
    with pytest.raises(RevokedError):
        revocations.require_valid(Call(bob))


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


@asynchronous
async def test_a_client_that_is_revoked_during_a_task_is_out_from_the_next_round_on(pki: Pki, tmp_path: Path) -> None:
    """Its open session ends instead of an invitation, it cannot come back, and the others go on without it."""
    task, path = small_task(("alice", "bob"), rounds=3, batches_ahead=0), tmp_path / "revoked.txt"
    path.write_text("")
    async with running(task, pki, tmp_path, noises=(silence, silence), revoked=path) as deployment:
        alice, bob = (LeashedClient(name, deployment) for name in ("alice", "bob"))
        for client in (alice, bob):
            await client.join()
        vector = np.ones(task.dim, dtype=np.int64)
        submissions = [client.make(vector, await client.invitation()) for client in (alice, bob)]
        path.write_text(fingerprint(pki.tls("bob").certificate.read_bytes()))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bob.submit(submissions[1])
        assert (refused.value.code(), refused.value.details()) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "the certificate is revoked",
        )
        await bob.leave()
        await alice.submit(submissions[0])
        for _ in range(2):
            await alice.submit(alice.make(vector, await alice.invitation()))
        returned = LeashedClient("bob", deployment)
        with pytest.raises(grpc.aio.AioRpcError, match="the certificate is revoked"):
            await returned.join()
        await returned.leave()
        assert await alice.goodbye() == common_pb2.Goodbye(finished=True, reason="3 rounds done")
        await deployment.finish()
        assert [record["accepted"] for record in deployment.rounds(0)] == [["alice"]] * 3
