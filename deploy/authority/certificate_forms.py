"""Define the fields and extensions of the authority's certificates, before validity and signature.

Source: RFC 5280 for the fields; ECDSA over P-256 because every TLS library takes it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from precad.protos.tls.identity import Identity, Role

CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a peer's clock may lag behind the operator's: certificates are valid from that long before their issue."""

USES: dict[Role, list[ObjectIdentifier]] = {
    Role.AGGREGATOR_A: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.AGGREGATOR_B: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.DEALER: [ExtendedKeyUsageOID.SERVER_AUTH],  # it is dialled, and dials nobody
    Role.CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.OPERATOR: [ExtendedKeyUsageOID.CLIENT_AUTH],
}
"""In which direction a role's certificate may be used."""


def authority_certificate(name: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Build a certificate of an authority, signed by itself. It may sign end certificates only (path length 0)."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        _unsigned(subject, subject, public_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
    )


def end_certificate(
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    uses: Sequence[ObjectIdentifier],
    public_key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
) -> x509.CertificateBuilder:
    """Build the certificate of a peer, which shows it in a TLS handshake."""
    key_of_authority = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _unsigned(subject, authority.subject, public_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_of_authority), critical=False)
    )


def subject_of(identity: Identity) -> x509.Name:
    """Return the subject, which is for people. It has no common name, which TLS libraries, gRPC among them, would take
    for a host name. A client named `dealer.precad` must not pass for the dealer."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "precad"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.role),
            x509.NameAttribute(NameOID.USER_ID, identity.name),
        ]
    )


def _unsigned(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Build the fields that an authority's certificate and a peer's have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())  # 159 random bits
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return the key usage. An authority signs certificates; a peer signs TLS handshakes."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
