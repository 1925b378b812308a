"""Certificates by step-ca and by cert-manager, deploy/hosts/identities: what they make is what `precad pki` makes.

Each file is read as its program reads it, the certificate is made by `cryptography`, and precad checks it. Failure
means: an identity of another form, or a certificate that a link of docs/explanation/architecture.md refuses.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from precad.deploy.authority import pki
from precad.protos.tls.files import PinFile, TlsFileError, TlsFiles
from precad.protos.tls.identity import Identity, Role, peer_identity
from precad.protos.tls.transport import bind_server, dial
from tests.harness.command_line import require_accepted
from tests.harness.go_templates import TemplateFailedError, render_text
from tests.harness.sites import SITES, Site, pod, pod_spec, written

HOLDERS = [Identity(role, role.value) for role in Role if role.is_server] + [Identity(Role.CLIENT, "hospital-1")]
USAGES = {"serverAuth": ExtendedKeyUsageOID.SERVER_AUTH, "clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH}
NOW = dt.datetime.now(dt.UTC)
CERTIFICATE = {
    "secretName",
    "duration",
    "renewBefore",
    "subject",
    "uris",
    "dnsNames",
    "usages",
    "privateKey",
    "issuerRef",
}
"""Fields of cert-manager.io/v1 Certificate that the recipes may have; of `spec`."""


class Authority:
    """A root with an intermediate that signs, as step-ca has them."""

    def __init__(self) -> None:
        self.root, root_key = self._new("root", None, None)
        self.intermediate, self._key = self._new("intermediate", self.root, root_key)

    @staticmethod
    def _new(
        name: str, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        form = _form(subject, subject if issuer is None else issuer.subject, key)
        form = form.add_extension(x509.BasicConstraints(ca=True, path_length=1 if issuer is None else 0), critical=True)
        return form.sign(issuer_key or key, hashes.SHA256()), key

    def sign(
        self, subject: x509.Name, names: Iterable[x509.GeneralName], uses: Iterable[str], folder: Path
    ) -> TlsFiles:
        """Sign a certificate for a new key, and put all files where a process has them."""
        key = ec.generate_private_key(ec.SECP256R1())
        form = _form(subject, self.intermediate.subject, key)
        if names := list(names):
            form = form.add_extension(x509.SubjectAlternativeName(names), critical=False)
        form = form.add_extension(x509.ExtendedKeyUsage([USAGES[use] for use in uses]), critical=False)
        signed = form.sign(self._key, hashes.SHA256())
        folder.mkdir(parents=True)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        contents = {"cert.pem": signed, "ca.pem": self.intermediate}
        for name, certificate in contents.items():
            (folder / name).write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "key.pem").touch(mode=0o600)
        (folder / "key.pem").write_bytes(pem)
        return TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", authority=folder / "ca.pem")


def _form(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(minutes=5))
        .not_valid_after(NOW + dt.timedelta(days=1))
    )


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


# -- step-ca -----------------------------------------------------------------------------------------------------------


def step_template(holder: Identity) -> str:
    form = {Role.AGGREGATOR_A: "aggregator", Role.AGGREGATOR_B: "aggregator"}.get(holder.role, holder.role.value)
    return written(True)[f"identities/step-ca/{form}.tpl"]


def by_step(authority: Authority, template: str, subject: str, folder: Path) -> TlsFiles:
    """Sign what a template says of a token's subject, as step-ca reads its JSON."""
    found = json.loads(render_text(template, {"Subject": {"CommonName": subject}}))
    assert found.keys() == {"subject", "sans", "keyUsage", "extKeyUsage"}
    assert found["keyUsage"] == ["digitalSignature"]
    kinds = {"uri": x509.UniformResourceIdentifier, "dns": x509.DNSName}
    names = [kinds[name["type"]](name["value"]) for name in found["sans"]]
    attributes = {"organization": NameOID.ORGANIZATION_NAME, "organizationalUnit": NameOID.ORGANIZATIONAL_UNIT_NAME}
    of_subject = x509.Name([x509.NameAttribute(attributes[name], value) for name, value in found["subject"].items()])
    return authority.sign(of_subject, names, found["extKeyUsage"], folder)


def names_and_uses(path: Path) -> tuple[set[x509.GeneralName], set[Any]]:
    """Return what precad reads of a certificate, and TLS."""
    extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names), set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.mark.parametrize("holder", HOLDERS, ids=str)
def test_step_ca_makes_what_precad_pki_makes(authority: Authority, holder: Identity, tmp_path: Path) -> None:
    """Names and usages; the files load as that holder's, and others can pin a server's."""
    files = by_step(authority, step_template(holder), holder.name, tmp_path / "step")
    assert files.load().identity == holder
    pki.create_authority(tmp_path / "pki")
    ours = pki.issue(tmp_path / "pki", holder)
    assert names_and_uses(files.certificate) == names_and_uses(ours.certificate)
    if holder.role.is_server:
        assert PinFile(files.certificate, holder.role).load().fingerprints
    subject = x509.load_pem_x509_certificate(files.certificate.read_bytes()).subject
    assert not subject.get_attributes_for_oid(NameOID.COMMON_NAME)


@pytest.mark.parametrize(
    ("form", "subject"), [("aggregator", "dealer"), ("aggregator", "hospital-1"), ("dealer", "aggregator-a")]
)
def test_a_step_token_for_another_role_is_refused_by_the_template(form: str, subject: str) -> None:
    with pytest.raises(TemplateFailedError, match="expected a token for"):
        render_text(written(True)[f"identities/step-ca/{form}.tpl"], {"Subject": {"CommonName": subject}})


USUAL = """{"subject": {"organization": "precad"}, "sans": [{"type": "dns", "value": "hospital-1"}],
  "keyUsage": ["digitalSignature"], "extKeyUsage": ["serverAuth", "clientAuth"]}"""
"""In the form of step-ca's own default."""


@pytest.mark.parametrize(
    ("change", "subject", "words"),
    [
        (lambda _: USUAL, "hospital-1", "expected one precad:// URI, found none"),
        (lambda text: text, "dealer", "name: expected one for a client that is no role's"),
        (lambda text: text, "aggregator-b", "name: expected one for a client that is no role's"),
        (lambda text: text, "Hospital-1", "name: expected one for a client that matches"),
        (lambda text: text, "a/b", "identity: expected precad://<role>/<name>"),
        (
            lambda text: text.replace("client/%s", "clients/%s"),
            "hospital-1",
            "identity: expected precad://<role>/<name>",
        ),
        (lambda text: text.replace("precad://", "spiffe://"), "hospital-1", "found none"),
    ],
)
def test_another_form_of_certificate_is_refused(
    authority: Authority, change: Any, subject: str, words: str, tmp_path: Path
) -> None:
    template = change(step_template(HOLDERS[-1]))
    with pytest.raises(TlsFileError, match=re.escape(words)):
        by_step(authority, template, subject, tmp_path / "step").load()


def test_the_certificate_stands_alone_beside_the_one_that_signed_it(authority: Authority, tmp_path: Path) -> None:
    """step-ca hands out a chain, and shows its root: both are refused in our files' place."""
    files = by_step(authority, step_template(HOLDERS[-1]), "hospital-1", tmp_path / "step")
    alone, signer = files.certificate.read_bytes(), files.authority.read_bytes()
    files.certificate.write_bytes(alone + signer)
    with pytest.raises(TlsFileError, match=r"^certificate: expected a PEM certificate, found 2 of them"):
        files.load()
    files.certificate.write_bytes(alone)
    files.authority.write_bytes(authority.root.public_bytes(Encoding.PEM))
    with pytest.raises(TlsFileError, match=r"^certificate: expected one signed by .*, found one that it did not sign"):
        files.load()


def test_a_client_of_step_ca_calls_a_server_of_step_ca(authority: Authority, tmp_path: Path) -> None:
    """Over TLS, with the intermediate as the only authority; the server knows who calls."""
    server_files, client_files = (
        by_step(authority, step_template(holder), holder.name, tmp_path / holder.name)
        for holder in (HOLDERS[1], HOLDERS[-1])
    )

    async def answer(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return peer_identity(context).uri.encode()

    async def scenario() -> bytes:
        server, port = bind_server("127.0.0.1:0", server_files)
        server.add_registered_method_handlers("desk", {"Who": grpc.unary_unary_rpc_method_handler(answer)})
        await server.start()
        try:
            async with dial(f"127.0.0.1:{port}", Role.AGGREGATOR_B, client_files) as channel:
                found: bytes = await channel.unary_unary("/desk/Who")(b"", timeout=30)
                return found
        finally:
            await server.stop(None)

    assert asyncio.run(scenario()) == b"precad://client/hospital-1"


def test_the_recipe_s_commands_and_files_exist() -> None:
    """Those of precad are taken by its command line; each file named is beside the text."""
    text = written(True)["identities/README.md"]
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    commands = [line.split()[1:] for line in blocks.splitlines() if line.startswith("precad ")]
    assert commands
    for arguments in commands:
        require_accepted(arguments)
    named = set(re.findall(r"(?:step-ca|cert-manager)/[\w-]+\.\w+", text))
    assert {f"identities/{name}" for name in named} <= written(True).keys()
    assert len(named) == 3


# -- cert-manager ------------------------------------------------------------------------------------------------------


def hours(text: str) -> int:
    found = re.fullmatch(r"(\d+)h", text)
    assert found is not None, text
    return int(found[1])


@pytest.mark.parametrize("site", SITES, ids=str)
def test_cert_manager_makes_what_precad_pki_makes(site: Site, authority: Authority, tmp_path: Path) -> None:
    """Field by field: only known fields, names and usages as ours, a key on P-256, and what a pod mounts."""
    document = yaml.safe_load(written(site.has_dealer)[f"identities/cert-manager/{site.role}.yaml"])
    assert (document["apiVersion"], document["kind"]) == ("cert-manager.io/v1", "Certificate")
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    spec = document["spec"]
    assert spec.keys() <= CERTIFICATE
    assert document["metadata"]["namespace"] == pod(site).namespace
    mounted = {volume["secret"]["secretName"] for volume in pod_spec(site)["volumes"] if "secret" in volume}
    assert spec["secretName"] in mounted
    assert spec["privateKey"] == {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
    assert spec["issuerRef"] == {"group": "cert-manager.io", "kind": "Issuer", "name": "precad"}
    assert set(spec["usages"]) <= {"digital signature", "server auth", "client auth"}
    assert spec["usages"][0] == "digital signature"
    assert hours(spec["renewBefore"]) < hours(spec["duration"])
    uses = [use.split()[0] + "Auth" for use in spec["usages"][1:]]
    names = [*map(x509.UniformResourceIdentifier, spec["uris"]), *map(x509.DNSName, spec.get("dnsNames", []))]
    files = authority.sign(x509.Name([]), names, uses, tmp_path / "made")
    holder = files.load().identity
    assert holder.role is site.role
    pki.create_authority(tmp_path / "pki")
    assert names_and_uses(files.certificate) == names_and_uses(pki.issue(tmp_path / "pki", holder).certificate)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_server_that_others_pin_is_not_renewed_by_itself(site: Site) -> None:
    """Whoever pins it would hang up; a client, whom nobody pins, is renewed in time."""
    spec = yaml.safe_load(written(site.has_dealer)[f"identities/cert-manager/{site.role}.yaml"])["spec"]
    assert (hours(spec["renewBefore"]) <= 1) == site.role.is_server
