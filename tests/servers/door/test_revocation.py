"""Revoked certificates: the list is read as written, follows its file, and shuts a client out of a running task."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.identity import fingerprint
from precad.servers.door.revocation import Revocations, fingerprints
from precad.servers.errors import RevokedError, SetupError
from tests.harness.harness import LeashedClient, Pki, asynchronous, running, small_task

PRINT = "ab" * 32
P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the curve."""


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


def signed_by(curve: ec.EllipticCurve, days: int) -> tuple[x509.Certificate, x509.Certificate]:
    """Return an authority on a curve, and a certificate of it."""
    key, name = ec.generate_private_key(curve), x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o" * days)])
    form = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    now = dt.datetime.now(dt.UTC)
    dated = form.not_valid_before(now).not_valid_after(now + dt.timedelta(days=days))
    return dated.sign(key, hashes.SHA256()), dated.sign(key, hashes.SHA256())


def element(tag: int, content: bytes) -> bytes:
    """Return an element of DER, of fewer than 2^16 bytes."""
    n = len(content)
    size = [n] if n < 0x80 else [0x81, n] if n < 0x100 else [0x82, n >> 8, n & 0xFF]
    return bytes([tag, *size]) + content


def written_otherwise(certificate: x509.Certificate, order: int) -> x509.Certificate:
    """Return the certificate with the other signature (r, n - s) in the place of (r, s)."""
    r, s = decode_dss_signature(certificate.signature)
    kind = element(0x30, bytes.fromhex("06082a8648ce3d040302"))  # ECDSA with SHA-256
    signature = element(0x03, b"\0" + encode_dss_signature(r, order - s))
    return x509.load_der_x509_certificate(element(0x30, certificate.tbs_certificate_bytes + kind + signature))


@pytest.mark.parametrize(
    ("curve", "order"),
    [
        (ec.SECP256R1(), P256),
        (ec.SECP384R1(), 2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D),
        (ec.SECP521R1(), 2**521 - 0x5AE79787C40D069948033FEB708F65A2FC44A36477663B851449048E16EC79BF7),
    ],
)
@pytest.mark.parametrize("days", [1, 60])
def test_a_revoked_certificate_that_its_holder_writes_otherwise_is_refused(
    tmp_path: Path, curve: ec.EllipticCurve, order: int, days: int
) -> None:
    """An ECDSA signature has a second form, which everybody can compute: the authority's holds, TLS takes it."""
    authority, listed = signed_by(curve, days)
    other = written_otherwise(listed, order)
    other.verify_directly_issued_by(authority)
    pems = [one.public_bytes(Encoding.PEM) for one in (listed, other)]
    assert fingerprint(pems[0]) != fingerprint(pems[1])
    path = tmp_path / "revoked.txt"
    for named in pems:
        path.write_text(fingerprint(named))
        for shown in pems:
            with pytest.raises(RevokedError):
                Revocations(path).require_valid(Call(shown))
        Revocations(path).require_valid(Call(authority.public_bytes(Encoding.PEM)))


def test_a_certificate_of_an_authority_without_ecdsa_has_one_form() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o")])
    form = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    now = dt.datetime.now(dt.UTC)
    dated = form.not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    pem = dated.sign(key, None).public_bytes(Encoding.PEM)
    assert fingerprints(pem) == {fingerprint(pem)}


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
    """Its open session ends instead of an invitation, and the others go on without it.

    It cannot come back, not with its certificate written otherwise either.
    """
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
        as_issued = pki.tls("bob").certificate.read_bytes()
        other = written_otherwise(x509.load_pem_x509_certificate(as_issued), P256).public_bytes(Encoding.PEM)
        for shown in (as_issued, other):  # gRPC takes the other signature for the authority's
            pki.tls("bob").certificate.write_bytes(shown)
            returned = LeashedClient("bob", deployment)
            with pytest.raises(grpc.aio.AioRpcError, match="the certificate is revoked"):
                await returned.join()
            await returned.leave()
        assert await alice.goodbye() == common_pb2.Goodbye(finished=True, reason="3 rounds done")
        await deployment.finish()
        assert [record["accepted"] for record in deployment.rounds(0)] == [["alice"]] * 3
