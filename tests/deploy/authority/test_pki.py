"""The authority's directory: what certificates say, who can read the keys, and that nothing is ever overwritten."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from precad.deploy.authority.certificate_forms import CLOCK_SKEW
from precad.deploy.authority.pki import PkiError, create_authority, issue, request, sign
from precad.protos.tls.files import TlsFileError, TlsFiles
from precad.protos.tls.identity import Identity, Role, parse_certificate

SERVER_AUTH, CLIENT_AUTH = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
CLIENT = Identity(Role.CLIENT, "client-3")
DEALER = Identity(Role.DEALER, "dealer")
EC_KEY = bytes.fromhex("06072a8648ce3d0201")
"""The kind of a public key on a curve, as DER."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    create_authority(tmp_path / "pki")
    return tmp_path / "pki"


@pytest.fixture
def widest_umask() -> Iterator[None]:
    """The process lets every mode through."""
    previous = os.umask(0)
    yield
    os.umask(previous)


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every path below, hidden ones included, with what it holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")
    }


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def load(path: Path) -> x509.Certificate:
    return parse_certificate(path.read_bytes())


# What certificates say


@pytest.mark.parametrize(
    ("identity", "usages", "dns"),
    [
        (Identity(Role.AGGREGATOR_A, "aggregator-a"), [SERVER_AUTH, CLIENT_AUTH], ["aggregator-a.precad"]),
        (Identity(Role.AGGREGATOR_B, "aggregator-b"), [SERVER_AUTH, CLIENT_AUTH], ["aggregator-b.precad"]),
        (DEALER, [SERVER_AUTH], ["dealer.precad"]),
        (CLIENT, [CLIENT_AUTH], []),
        (Identity(Role.OPERATOR, "operator"), [CLIENT_AUTH], []),
    ],
    ids=lambda value: value.name if isinstance(value, Identity) else "",
)
def test_a_certificate_says_who_where_and_what_for(
    directory: Path, identity: Identity, usages: list[x509.ObjectIdentifier], dns: list[str]
) -> None:
    """Every field that a peer decides by."""
    files = issue(directory, identity)
    authority, certificate = load(directory / "ca.pem"), load(files.certificate)
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    authority_id = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    issuer_id = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value

    assert files.load().identity == identity
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [identity.uri]
    assert names.get_values_for_type(x509.DNSName) == dns
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
    assert constraints.critical
    assert not constraints.value.ca
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    assert authority_id.key_identifier == issuer_id.digest
    assert not certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    certificate.verify_directly_issued_by(authority)


def test_the_authority_signs_end_certificates_only(directory: Path) -> None:
    authority = load(directory / "ca.pem")
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    authority.verify_directly_issued_by(authority)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_another_implementation_accepts_the_chain(directory: Path) -> None:
    """OpenSSL, in strict mode, for the purposes that the certificate is for and for no other."""
    files = issue(directory, CLIENT)

    def verdict(purpose: str) -> int:
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            files.authority,
            files.certificate,
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert verdict("sslclient") == 0
    assert verdict("sslserver") != 0


def test_validity_begins_early_and_ends_on_the_day(directory: Path) -> None:
    """A peer whose clock is some minutes slow accepts a fresh certificate."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    certificate = load(issue(directory, CLIENT, days=7, now=now).certificate)
    assert certificate.not_valid_before_utc == now - CLOCK_SKEW
    assert certificate.not_valid_after_utc == now + dt.timedelta(days=7)


def test_serial_numbers_are_random_and_long(directory: Path) -> None:
    """128 bits at least, so that nobody predicts a certificate: 16 numbers are all under 2^128 once in 2^496."""
    serials = [load(issue(directory, Identity(Role.CLIENT, f"c{i}")).certificate).serial_number for i in range(16)]
    assert len(set(serials)) == 16
    assert max(serials).bit_length() > 128


# Who can read the keys


@pytest.mark.usefixtures("widest_umask")
def test_no_umask_opens_a_key(tmp_path: Path) -> None:
    directory = tmp_path / "pki"
    create_authority(directory)
    files = issue(directory, CLIENT)
    assert mode(directory / "ca.key") == 0o600
    assert mode(files.key) == 0o600
    assert mode(directory) == 0o700
    assert mode(files.key.parent) == 0o700


@pytest.mark.usefixtures("widest_umask")
def test_a_key_is_private_from_its_first_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at when it exists and is still empty, not only at the end."""
    seen: dict[str, int] = {}

    def fdopen(descriptor: int, *_: object) -> object:
        status = os.fstat(descriptor)
        assert status.st_size == 0
        seen[Path(os.readlink(f"/proc/self/fd/{descriptor}")).name] = status.st_mode & 0o777
        return original(descriptor, "wb")

    original = os.fdopen
    monkeypatch.setattr(os, "fdopen", fdopen)
    create_authority(tmp_path)
    issue(tmp_path, CLIENT)
    assert seen == {"ca.key": 0o600, "ca.pem": 0o644, "key.pem": 0o600, "cert.pem": 0o644}


# Nothing is overwritten, nothing is left half-done


@pytest.mark.parametrize("present", ["ca.pem", "ca.key"])
def test_an_authority_is_never_overwritten(tmp_path: Path, present: str) -> None:
    """Whichever of its files exists; a link to nowhere counts as existing."""
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / present).write_text("precious")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / present).symlink_to(tmp_path / "nowhere")
    for directory in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(PkiError, match=f"{present}: File exists"):
            create_authority(directory)
        assert [path.name for path in directory.iterdir()] == [present]
    assert (tmp_path / "file" / present).read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_an_identity_is_issued_once(directory: Path) -> None:
    """So there is no second server A by a slip of the operator."""
    issue(directory, DEALER)
    before = snapshot(directory)
    with pytest.raises(PkiError, match="dealer exists already and is never overwritten"):
        issue(directory, DEALER)
    assert snapshot(directory) == before


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_a_client_cannot_take_the_place_of_the_authority(directory: Path, name: str) -> None:
    before = snapshot(directory)
    with pytest.raises(PkiError, match="exists already"):
        issue(directory, Identity(Role.CLIENT, name))
    assert snapshot(directory) == before


@pytest.mark.parametrize("failing_write", [1, 2])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_write: int) -> None:
    """Neither of an authority nor of a certificate, at either file."""

    def fail_at(n: int) -> None:
        calls = iter(range(1, n + 1))

        def fsync(_descriptor: int) -> None:
            if next(calls) == n:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fsync)

    fail_at(failing_write)
    with pytest.raises(PkiError, match="No space left"):
        create_authority(tmp_path)
    assert snapshot(tmp_path) == {}
    monkeypatch.undo()

    create_authority(tmp_path)
    before = snapshot(tmp_path)
    fail_at(failing_write)
    with pytest.raises(PkiError, match="No space left"):
        issue(tmp_path, CLIENT)
    assert snapshot(tmp_path) == before


def test_the_slower_of_two_issues_loses(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the name free; the first to finish keeps it."""
    monkeypatch.setattr(os.path, "lexists", lambda _path: False)
    first = issue(directory, CLIENT)
    before = snapshot(directory)
    with pytest.raises(PkiError, match="Directory not empty"):
        issue(directory, CLIENT)
    assert snapshot(directory) == before
    assert first.load().identity == CLIENT


# What is asked for must make sense


@pytest.mark.parametrize("days", [0, -1, 36501, 10**12])
def test_days_are_bounded(directory: Path, tmp_path: Path, days: int) -> None:
    with pytest.raises(PkiError, match="days: expected 1 to 36500"):
        create_authority(tmp_path / "other", days=days)
    with pytest.raises(PkiError, match="days: expected 1 to 36500"):
        issue(directory, CLIENT, days=days)
    assert not (tmp_path / "other").exists()


def test_no_certificate_outlives_the_authority(tmp_path: Path) -> None:
    create_authority(tmp_path, days=30)
    with pytest.raises(PkiError, match="days: expected an end before that of the authority's certificate"):
        issue(tmp_path, CLIENT, days=31)
    assert issue(tmp_path, CLIENT, days=29).certificate.exists()


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_an_authority_has_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(PkiError, match="name: expected 1 to 64 characters"):
        create_authority(tmp_path, name=name)


def test_a_broken_authority_issues_nothing(directory: Path, tmp_path: Path) -> None:
    """Missing, garbled, or the key of another; the message names the file and quotes nothing of it."""
    create_authority(tmp_path / "other")
    other_key = (tmp_path / "other" / "ca.key").read_bytes()
    with pytest.raises(PkiError, match=r"cannot read .*ca\.pem: No such file"):
        issue(tmp_path, CLIENT)
    for name, content, message in (
        ("ca.key", other_key, r"ca\.key is not the key of .*ca\.pem"),
        ("ca.key", b"garbage", r"ca\.key: expected a PEM private key"),
        ("ca.pem", b"garbage", r"ca\.pem: expected one PEM certificate"),
    ):
        (directory / name).write_bytes(content)
        with pytest.raises(PkiError, match=message) as caught:
            issue(directory, CLIENT)
        assert "garbage" not in str(caught.value)
        assert not (directory / CLIENT.name).exists()


# Keys under a passphrase

PHRASE, OTHER = b"p" * 24, b"q" * 32


def openssl_opens(key: Path, passphrase: bytes) -> bool:
    command = ["openssl", "pkey", "-in", key, "-passin", f"pass:{passphrase.decode()}", "-noout"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_keys_are_encrypted_for_whoever_has_the_passphrase_alone(tmp_path: Path) -> None:
    """The authority's, an issued one, a requested one: as OpenSSL sees them."""
    directory = tmp_path / "pki"
    create_authority(directory, passphrase=PHRASE)
    issued = issue(directory, CLIENT, passphrase=OTHER, authority_passphrase=PHRASE)
    asked = request(tmp_path / "new", DEALER, passphrase=OTHER)
    sign(directory, asked, DEALER, authority_passphrase=PHRASE)
    for key, right, wrong in (
        (directory / "ca.key", PHRASE, OTHER),
        (issued.key, OTHER, PHRASE),
        (asked.with_name("key.pem"), OTHER, PHRASE),
    ):
        assert openssl_opens(key, right)
        assert not openssl_opens(key, wrong)
        assert key.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert mode(key) == 0o600


def test_an_authority_is_opened_by_its_passphrase_alone_and_a_short_one_is_refused(tmp_path: Path) -> None:
    """Nothing is written otherwise."""
    directory = tmp_path / "pki"
    create_authority(directory, passphrase=PHRASE)
    before = snapshot(tmp_path)
    for refused, message in (
        (lambda: issue(directory, CLIENT), r"ca\.key: expected a passphrase for an encrypted key, found none"),
        (lambda: issue(directory, CLIENT, authority_passphrase=OTHER), r"ca\.key: expected a key that the passphrase"),
        (lambda: request(tmp_path / "new", CLIENT, passphrase=b"short"), "expected a passphrase of 24 characters"),
        (lambda: create_authority(tmp_path / "other", passphrase=b"short"), "expected a passphrase of 24 characters"),
    ):
        with pytest.raises(PkiError, match=message) as caught:
            refused()
        assert OTHER.decode() not in str(caught.value)
    assert snapshot(tmp_path) == before


# A key that the authority never sees


def extensions(certificate: x509.Certificate) -> list[x509.Extension[x509.ExtensionType]]:
    """But for the name of the certificate's own key."""
    return [extension for extension in certificate.extensions if extension.oid != x509.SubjectKeyIdentifier.oid]


@pytest.mark.parametrize("identity", [DEALER, CLIENT], ids=lambda identity: identity.name)
def test_a_signed_request_gives_what_an_issued_certificate_gives(
    directory: Path, tmp_path: Path, identity: Identity
) -> None:
    """All extensions but the key's own are equal, and the certificate works with the key that stayed at home."""
    path = sign(directory, request(tmp_path / "home", identity), identity, days=30)
    (home := tmp_path / "home" / identity.name / "cert.pem").write_bytes(path.read_bytes())
    tls = TlsFiles(certificate=home, key=home.with_name("key.pem"), authority=directory / "ca.pem")
    assert tls.load().identity == identity

    shutil.rmtree(path.parent)
    issued = load(issue(directory, identity, days=30).certificate)
    of_the_key = x509.SubjectKeyIdentifier.oid
    signed = load(home)
    assert [e for e in signed.extensions if e.oid != of_the_key] == [
        e for e in issued.extensions if e.oid != of_the_key
    ]
    assert signed.subject == issued.subject


@pytest.mark.usefixtures("widest_umask")
def test_the_key_of_a_request_stays_where_it_was_made(directory: Path, tmp_path: Path) -> None:
    asked = request(tmp_path / "home", DEALER)
    sign(directory, asked, DEALER)
    assert snapshot(tmp_path / "home").keys() == {"dealer", "dealer/key.pem", "dealer/request.pem"}
    assert mode(asked.with_name("key.pem")) == 0o600
    assert mode(asked.parent) == mode(tmp_path / "home") == 0o700
    assert snapshot(directory).keys() == {"ca.pem", "ca.key", "dealer", "dealer/cert.pem"}
    assert b"PRIVATE" not in asked.read_bytes()


def forged(path: Path, uris: list[str], key: ec.EllipticCurvePrivateKey | None = None) -> Path:
    """A request that asks for these identities."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    path.write_bytes(builder.add_extension(names, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


def test_only_what_was_agreed_is_signed(directory: Path, tmp_path: Path) -> None:
    """Another identity, a second one beside it, another curve, another's signature, another kind of file."""
    path, before = tmp_path / "request.pem", snapshot(directory)
    mallory = "precad://client/mallory"
    cases = (
        (lambda: forged(path, [mallory]), "expected a request for precad://dealer/dealer, found one for .*mallory"),
        (lambda: forged(path, [DEALER.uri, mallory]), "expected a request for precad://dealer/dealer, found"),
        (lambda: forged(path, [DEALER.uri], ec.generate_private_key(ec.SECP384R1())), "expected a key on P-256"),
        (lambda: path.write_bytes(b"garbage"), "expected a PEM request"),
        (path.unlink, "expected a readable request"),
    )
    for make, message in cases:
        make()
        with pytest.raises(PkiError, match=message):
            sign(directory, path, DEALER)
        assert snapshot(directory) == before
    der = bytearray(x509.load_pem_x509_csr(forged(path, [DEALER.uri]).read_bytes()).public_bytes(Encoding.DER))
    der[-1] ^= 1  # of the signature
    path.write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM))
    with pytest.raises(PkiError, match="expected a request that its key has signed"):
        sign(directory, path, DEALER)
    assert snapshot(directory) == before


def rewritten(pem: bytes, before: bytes, after: bytes) -> bytes:
    """Return the PEM object with other bytes at the first place where some are."""
    label, der = pem.splitlines()[0], base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    assert before in der
    changed = base64.encodebytes(der.replace(before, after, 1))
    return b"\n".join((label, changed.strip(), label.replace(b"BEGIN", b"END"), b""))


def test_a_request_of_another_version_or_with_other_names_is_refused_in_one_line(
    directory: Path, tmp_path: Path
) -> None:
    """The library has errors of their own for them, and whoever makes the request writes its names."""
    pem = forged(tmp_path / "request.pem", [DEALER.uri, "x\nprecad: signed\x1b[2J" + 600 * "x"]).read_bytes()
    refused = (
        rewritten(pem, b"\x02\x01\x00", b"\x02\x01\x10"),
        rewritten(pem, b"\x86\x16precad", b"\xa3\x16precad"),  # an x400Address in the place of a URI
        pem,
    )
    for content in refused:
        (tmp_path / "request.pem").write_bytes(content)
        with pytest.raises(PkiError, match=r"expected a (PEM )?request") as caught:
            sign(directory, tmp_path / "request.pem", DEALER)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_an_authority_of_another_version_or_key_is_refused(directory: Path) -> None:
    files = issue(directory, Identity(Role.CLIENT, "client-1"))
    pem = files.authority.read_bytes()
    for before, after in ((b"\x02\x01\x02\x02", b"\x02\x01\x0a\x02"), (EC_KEY, EC_KEY[:-1] + b"\x7f")):
        files.authority.write_bytes(rewritten(pem, before, after))
        with pytest.raises(TlsFileError, match=r"^(authority|certificate): expected"):
            files.load()


def test_an_identity_is_signed_once_and_asked_for_once(directory: Path, tmp_path: Path) -> None:
    asked = request(tmp_path / "home", DEALER)
    with pytest.raises(PkiError, match="exists already and is never overwritten"):
        request(tmp_path / "home", DEALER)
    sign(directory, asked, DEALER)
    with pytest.raises(PkiError, match="exists already and is never overwritten"):
        sign(directory, asked, DEALER)
