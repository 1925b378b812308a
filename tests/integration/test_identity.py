"""Nobody gets in: every kind of stranger against a running dealer and a running pair of aggregators, over real sockets.

Each test plays the first round honestly, attacks while the second is open for uploads, and then lets everybody finish.

Failure means one of these:
- a call that is not refused, or with another status than promised, or without saying why;
- anything that an attack changed (what the servers say of themselves, what they keep on disk, whom they invite);
- a second round whose accepted clients, uploaded bytes or model are not those of the honest uploads alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

from precad.clients.errors import ServerUnreachableError
from precad.clients.errors import TaskRefusedError as ClientRefusedError
from precad.clients.submission import RoundInvitation, Submission
from precad.clients.upload.session import ClientSession
from precad.deploy.authority.pki import create_authority, issue
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    dealer_pb2,
    dealer_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
)
from precad.protos.task.task import PROTOCOL_VERSION
from precad.protos.tls.files import PinFile, TlsFiles
from precad.protos.tls.identity import Identity, Role
from precad.protos.tls.transport import dial, explain
from precad.servers.aggregator import Aggregator
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from tests.harness.harness import (
    AGGREGATORS,
    Deployment,
    LeashedClient,
    Pki,
    asynchronous,
    channel_as,
    free_addresses,
    running,
    small_task,
)
from tests.harness.refusals import LOST_STATUS, refusal
from tests.reference.round import run_round

A, B, DEALER = Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER
STATUS = grpc.StatusCode
TASK = small_task(submit_timeout_s=3600.0)  # no test here waits for it
CLIENTS = sorted(TASK.clients)
"""alice, bob and mallory are enrolled. Eve has a client's certificate of the same authority and is not."""


@dataclass(frozen=True)
class Certificates:
    """Everybody's, and what attackers may hold."""

    pki: Pki
    foreign_mallory: TlsFiles
    """By another authority of the same name."""
    second_a: TlsFiles
    """Another certificate of server A's role, by the same authority, not the one agreed on."""
    second_b: TlsFiles
    """Another certificate of server B's role, likewise."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    ours, foreign, second = (tmp_path_factory.mktemp(name) for name in ("ours", "foreign", "second"))
    pki = Pki.create(ours, [*CLIENTS, "eve"])
    create_authority(foreign)
    for name in ("ca.pem", "ca.key"):
        shutil.copy(ours / name, second / name)
    return Certificates(
        pki=pki,
        foreign_mallory=issue(foreign, Identity(Role.CLIENT, "mallory")),
        second_a=issue(second, Identity(A, A.value)),
        second_b=issue(second, Identity(B, B.value)),
    )


@dataclass
class Scene:
    """A deployment whose second round is open, with nothing uploaded to it yet."""

    deployment: Deployment
    certificates: Certificates
    clients: dict[str, LeashedClient]
    invitations: dict[str, RoundInvitation]
    earlier: Submission
    """Mallory's, of the first round."""

    def channel(self, role: Role, tls: TlsFiles | str) -> grpc.aio.Channel:
        """To a server, with this certificate (or that of this name)."""
        tls = self.certificates.pki.tls(tls) if isinstance(tls, str) else tls
        return dial(self.address(role), role, tls)

    def address(self, role: Role) -> str:
        """Where a server listens."""
        a, b = self.deployment.addresses
        return {A: a, B: b, DEALER: self.deployment.dealer_address}[role]

    def submission(self, client: str) -> Submission:
        """The honest one of the round that is open."""
        return self.clients[client].make(vector_of(client, 1), self.invitations[client])

    def submit_honestly(self, *clients: str) -> Awaitable[Any]:
        """The open round's uploads of these clients."""
        return asyncio.gather(*(self.clients[client].submit(self.submission(client)) for client in clients))

    async def snapshot(self) -> dict[str, Any]:
        """Return what the servers say of themselves to the operator, and what they keep on disk."""
        seen: dict[str, Any] = dict(self.deployment.state_on_disk())
        for role in (A, B, DEALER):
            async with self.channel(role, "operator") as channel:
                seen[role] = await control_pb2_grpc.ControlStub(channel).GetStatus(control_pb2.StatusRequest())
        for aggregator in self.deployment.aggregators:
            intake = aggregator._telemetry.collecting.intake
            uploads = (intake.bytes_received, sorted(intake._started), sorted(intake._expected))
            seen[f"uploads to {aggregator.party}"] = uploads
        return seen

    async def finish(self, accepted: list[str], *, only_they_uploaded: bool = True) -> None:
        """Await the task's end, and check it.

        Both servers must have summed exactly the honest vectors of `accepted`. They must have counted no byte of
        anybody else where nobody else had one taken in.
        """
        goodbyes = await asyncio.gather(*(client.goodbye() for client in self.clients.values()))
        assert {goodbye.reason for goodbye in goodbyes} == {"2 rounds done"}
        await self.deployment.finish()
        expected = np.zeros(TASK.dim, dtype=np.float32)
        for t, takes_part in enumerate((CLIENTS, accepted)):
            vectors = {client: vector_of(client, t).tolist() for client in takes_part}
            expected = run_round(
                expected,
                {},
                vectors,
                ([0] * TASK.dim, [0] * TASK.dim),
                clip_norm=TASK.client_clip,
                frac_bits=TASK.frac_bits,
                learning_rate=TASK.learning_rate,
                divisor=TASK.divisor,
            ).parameters
        for party, role in enumerate(AGGREGATORS):
            record = self.deployment.rounds(party)[1]
            assert (record["accepted"], record["rejected"]) == (accepted, [])
            assert record["missing"] == [client for client in CLIENTS if client not in accepted]
            if only_they_uploaded:
                uploads = [self.submission(client) for client in accepted]
                headers = [upload.binding.ByteSize() + len(upload.statement) for upload in uploads]
                payloads = [len(upload.payloads[0]) for upload in uploads]
                expected_bytes = sum(headers) + sum(payloads) if party == 0 else 0
                assert int(record["bytes_by_link"]["from_clients"]) == expected_bytes
            model = np.load(self.deployment.folder / role / "model.npy")
            assert model.tobytes() == expected.tobytes()


def vector_of(client: str, t: int) -> RingArray:
    """Return what an honest client uploads in round t: well within the bound, told apart from every other."""
    return np.full(TASK.dim, 1000 * (t + 1) + CLIENTS.index(client), dtype=np.int64)


def silence(std: float, dim: int) -> RingArray:
    """No noise: what counts here is who is in the sum."""
    return np.zeros(dim, dtype=np.int64)


@contextlib.asynccontextmanager
async def second_round(certificates: Certificates, folder: Path) -> AsyncIterator[Scene]:
    """Three honest clients, one round done, the next one open; the servers answer attackers as often as they call."""
    open_doors = {"call_burst": 1_000_000, "calls_per_caller_s": 1e6, "max_calls_per_caller": 1000}
    noises = (silence, silence)
    async with running(TASK, certificates.pki, folder, noises=noises, dealer=open_doors, **open_doors) as deployment:
        clients = {client: LeashedClient(client, deployment) for client in CLIENTS}
        try:
            await asyncio.gather(*(client.join() for client in clients.values()))
            submissions = {}
            for name, client in clients.items():
                submissions[name] = client.make(vector_of(name, 0), await client.invitation())
            await asyncio.gather(*(clients[name].submit(submission) for name, submission in submissions.items()))
            invitations = {name: await client.invitation() for name, client in clients.items()}
            yield Scene(deployment, certificates, clients, invitations, submissions["mallory"])
        finally:
            for client in clients.values():
                await client.leave()


# Calls that attackers make


async def join(
    scene: Scene, role: Role, tls: TlsFiles | str, *, version: str = PROTOCOL_VERSION, digest: bytes = TASK.digest()
) -> None:
    hello = common_pb2.Hello(protocol_version=version, config_digest=digest)
    async with scene.channel(role, tls) as channel:
        stub = aggregator_pb2_grpc.AggregatorStub(channel)
        await stub.Join(aggregator_pb2.JoinRequest(hello=hello)).read()


async def download(scene: Scene, role: Role, tls: TlsFiles | str, round: int = 1) -> None:
    async with scene.channel(role, tls) as channel:
        stub = aggregator_pb2_grpc.AggregatorStub(channel)
        await stub.GetModel(aggregator_pb2.ModelRequest(round=round)).read()


async def upload(
    scene: Scene, role: Role, tls: TlsFiles | str, *parts: common_pb2.Binding | bytes, ends: bool = False
) -> None:
    """These parts, the bytes as chunks. Unless it `ends`, the stream stays open: the refusal has to come by itself."""
    async with scene.channel(role, tls) as channel:
        call = aggregator_pb2_grpc.AggregatorStub(channel).Submit()
        for part in parts:
            if isinstance(part, bytes):
                await call.write(aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=part)))
            else:
                await call.write(aggregator_pb2.SubmitPart(binding=part, statement=bytes(32)))
        if ends:
            await call.done_writing()
        await call


async def ask_control(scene: Scene, role: Role, tls: TlsFiles | str, method: str) -> None:
    requests = {
        "GetStatus": control_pb2.StatusRequest(),
        "Watch": control_pb2.WatchRequest(with_models=True),
    }
    async with scene.channel(role, tls) as channel:
        call = getattr(control_pb2_grpc.ControlStub(channel), method)(requests[method])
        await (call if method == "GetStatus" else call.read())


async def link(scene: Scene, role: Role, tls: TlsFiles | str) -> None:
    """As server A would: the right hello, and all."""
    hello = common_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        config_digest=TASK.digest(),
        nonce=bytes(16),
        model_digest=convert.sha256(bytes(4 * TASK.dim)),
    )
    async with scene.channel(role, tls) as channel:
        call = peer_pb2_grpc.PeerStub(channel).Link()
        await call.write(peer_pb2.PeerMessage(hello=hello))
        await call.read()


async def ask_dealer(scene: Scene, tls: TlsFiles | str) -> None:
    """As an aggregator would."""
    task_id = scene.earlier.binding.task
    hello = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=TASK.digest(), task=task_id)
    async with scene.channel(DEALER, tls) as channel:
        call = dealer_pb2_grpc.DealerStub(channel).Deal()
        await call.write(dealer_pb2.DealRequest(hello=hello))
        await call.read()


def rebound(scene: Scene, **fields: Any) -> common_pb2.Binding:
    """Mallory's binding of the open round, bound to something else."""
    binding = scene.submission("mallory").binding
    for name, value in fields.items():
        setattr(binding, name, value)
    return binding


# Without an identity


STRANGERS: dict[str, Callable[[Scene, Role], grpc.aio.Channel]] = {
    "no certificate": lambda s, role: channel_as(s.address(role), role, trust=s.certificates.pki.authority),
    "an unknown authority": lambda s, role: channel_as(
        s.address(role), role, trust=s.certificates.pki.authority, tls=s.certificates.foreign_mallory
    ),
    "plaintext": lambda s, role: channel_as(s.address(role), role, trust=Path(), plaintext=True),
}


@asynchronous
async def test_without_a_certificate_of_the_authority_no_call_begins(
    certificates: Certificates, tmp_path: Path
) -> None:
    """No server, of either role, answers anything at all; whoever was refused can tell that it was the certificate."""
    async with second_round(certificates, tmp_path) as scene:
        before = await scene.snapshot()
        for name, stranger in STRANGERS.items():
            for role in (A, B, DEALER):
                async with stranger(scene, role) as channel:
                    control = control_pb2_grpc.ControlStub(channel)
                    error = await refusal(lambda: control.GetStatus(control_pb2.StatusRequest()))  # noqa: B023
                    assert error.code() is STATUS.UNAVAILABLE, name
                    assert "hung up on our certificate" in explain(error, role, scene.address(role)), name
        assert await scene.snapshot() == before
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)


# With an identity that may not


Attack = tuple[Callable[[Scene], Awaitable[None]], grpc.StatusCode, str]

WRONG_ROLE: dict[str, Attack] = {
    "a client links as server A": (
        lambda s: link(s, B, "mallory"),
        STATUS.PERMISSION_DENIED,
        "needs the role aggregator-a, the peer's certificate says precad://client/mallory",
    ),
    "an operator links as server A": (
        lambda s: link(s, B, "operator"),
        STATUS.PERMISSION_DENIED,
        "needs the role aggregator-a",
    ),
    "server B links with itself": (
        lambda s: link(s, B, B.value),
        STATUS.PERMISSION_DENIED,
        "needs the role aggregator-a",
    ),
    "a client links with server A": (lambda s: link(s, A, "mallory"), STATUS.UNIMPLEMENTED, "Method not found"),
    "a client asks the dealer": (
        lambda s: ask_dealer(s, "mallory"),
        STATUS.PERMISSION_DENIED,
        "needs the role aggregator-a or aggregator-b",
    ),
    "an operator asks the dealer": (
        lambda s: ask_dealer(s, "operator"),
        STATUS.PERMISSION_DENIED,
        "needs the role aggregator-a or aggregator-b",
    ),
    **{
        f"a client asks {role} for {method}": (
            lambda s, role=role, method=method: ask_control(s, role, "mallory", method),
            STATUS.PERMISSION_DENIED,
            "needs the role operator",
        )
        for role, methods in ((A, ("GetStatus", "Watch")), (B, ("GetStatus",)), (DEALER, ("GetStatus",)))
        for method in methods
    },
    "server A watches server B": (
        lambda s: ask_control(s, B, A.value, "Watch"),
        STATUS.PERMISSION_DENIED,
        "needs the role operator",
    ),
    **{
        f"{name} {verb} as a client": (
            lambda s, call=call, name=name: call(s, B, name),
            STATUS.PERMISSION_DENIED,
            f"needs the role client, the peer's certificate says precad://{name}/{name}",
        )
        for name in ("operator", A.value)
        for verb, call in (
            ("joins", join),
            ("downloads", download),
            ("submits", lambda s, role, tls: upload(s, role, tls, s.submission("mallory").binding)),
        )
    },
    "a second server A with another certificate": (
        lambda s: link(s, B, s.certificates.second_a),
        STATUS.PERMISSION_DENIED,
        "certificate: expected the pinned one, SHA-256 ",
    ),
    "a second server A with the same certificate": (
        lambda s: link(s, B, A.value),
        STATUS.ALREADY_EXISTS,
        "linked with another aggregator A",
    ),
    "a second server A at the dealer": (
        lambda s: ask_dealer(s, s.certificates.second_a),
        STATUS.PERMISSION_DENIED,
        "certificate: expected the pinned one, SHA-256 ",
    ),
}

NOT_IN_THE_TASK: dict[str, Attack] = {
    "a client that is not enrolled joins": (
        lambda s: join(s, A, "eve"),
        STATUS.PERMISSION_DENIED,
        "client 'eve' is not enrolled in this task",
    ),
    "a client that is not enrolled submits": (
        lambda s: upload(s, A, "eve", rebound(s, client="eve")),
        STATUS.INVALID_ARGUMENT,
        "not_chosen: 'eve' is not in round 1",
    ),
    "a client with other parameters": (
        lambda s: join(s, A, "eve", digest=small_task(client_clip=2.0).digest()),
        STATUS.FAILED_PRECONDITION,
        "the [task] sections of the two configurations differ",
    ),
    "a client of another version": (
        lambda s: join(s, B, "mallory", version="precad/v0"),
        STATUS.FAILED_PRECONDITION,
        "protocol_version: expected 'precad/v1.1', found 'precad/v0'",
    ),
    "a client that is connected already": (
        lambda s: join(s, A, "mallory"),
        STATUS.ALREADY_EXISTS,
        "client 'mallory' has another open session",
    ),
    "a model of the round before": (
        lambda s: download(s, A, "mallory", round=0),
        STATUS.FAILED_PRECONDITION,
        "round 0 is not open",
    ),
}

FORGED_HEADERS: dict[str, Attack] = {
    "another client's identity": (
        lambda s: upload(s, A, "mallory", s.submission("alice").binding),
        STATUS.INVALID_ARGUMENT,
        "wrong_client: the certificate is of 'mallory'",
    ),
    "a masked vector to B": (
        lambda s: upload(s, B, "mallory", s.submission("mallory").binding),
        STATUS.INVALID_ARGUMENT,
        "wrong_server: masked vectors go to server A alone",
    ),
    "the round before, replayed": (
        lambda s: upload(s, A, "mallory", s.earlier.binding),
        STATUS.INVALID_ARGUMENT,
        "wrong_round: round: expected 1, found 0",
    ),
    "the round before under this round's number": (
        lambda s: upload(s, A, "mallory", _renumbered(s.earlier.binding)),
        STATUS.INVALID_ARGUMENT,
        "wrong_binding: field model_digest differs",
    ),
    "a round to come": (
        lambda s: upload(s, A, "mallory", rebound(s, round=2)),
        STATUS.INVALID_ARGUMENT,
        "wrong_round: round: expected 1, found 2",
    ),
    **{
        f"another {field}": (
            lambda s, field=field, value=value: upload(s, A, "mallory", rebound(s, **{field: value})),
            STATUS.INVALID_ARGUMENT,
            f"wrong_binding: field {field} differs",
        )
        for field, value in (
            ("task", "small-0123456789abcdef"),
            ("model_digest", bytes(32)),
            ("config_digest", bytes(32)),
            ("dim", TASK.dim + 1),
            ("mode", "shares"),
            ("protocol_version", "precad/v0"),
        )
    },
    "no binding": (
        lambda s: upload(s, A, "mallory", bytes(8)),
        STATUS.INVALID_ARGUMENT,
        "malformed: a submission starts with its binding",
    ),
}


def _renumbered(binding: common_pb2.Binding) -> common_pb2.Binding:
    other = common_pb2.Binding()
    other.CopyFrom(binding)
    other.round = 1
    return other


@pytest.mark.parametrize("group", [WRONG_ROLE, NOT_IN_THE_TASK, FORGED_HEADERS], ids=["role", "task", "header"])
@asynchronous
async def test_a_refused_call_says_why_and_changes_nothing(
    group: dict[str, Attack], certificates: Certificates, tmp_path: Path
) -> None:
    """One after the other against one open round, and nothing is seen of any; then even Mallory takes part."""
    async with second_round(certificates, tmp_path) as scene:
        for name, (attack, code, text) in group.items():
            before = await scene.snapshot()
            error = await refusal(lambda: attack(scene))  # noqa: B023 - called in this turn of the loop
            assert error.code() is code, (name, error.details())
            assert text in error.details(), name
            assert await scene.snapshot() == before, name
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)


@asynchronous
async def test_a_client_that_is_not_enrolled_is_not_given_the_model(certificates: Certificates, tmp_path: Path) -> None:
    """The model is for the task's clients; a certificate of the authority alone does not make one."""
    async with second_round(certificates, tmp_path) as scene:
        for role in (A, B):
            error = await refusal(lambda: download(scene, role, "eve"))  # noqa: B023
            assert (error.code(), error.details()) == (STATUS.PERMISSION_DENIED, "client 'eve' is not in round 1")
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)


@pytest.mark.parametrize("are_theirs", [True, False])
@asynchronous
async def test_a_client_that_pins_talks_to_nobody_else(
    are_theirs: bool, certificates: Certificates, tmp_path: Path
) -> None:
    """Refuse certificates of the servers' roles by the same authority, which are not enough.

    With the pinned ones eve gets as far as being refused for what she is.
    """
    async with second_round(certificates, tmp_path) as scene:
        pins = certificates.pki.tls(A).certificate, certificates.pki.tls(B).certificate
        if not are_theirs:
            pins = certificates.second_a.certificate, certificates.second_b.certificate
        session = ClientSession(
            client="eve",
            task=TASK,
            addresses=scene.deployment.addresses,
            tls=certificates.pki.tls("eve"),
            train=lambda parameters: vector_of("alice", 0),
            pins=pins,
            connect_timeout_s=5.0,
        )
        expected = (ClientRefusedError, "not enrolled")
        if not are_theirs:
            expected = (ServerUnreachableError, "its certificate is not the pinned one")
        with pytest.raises(expected[0], match=expected[1]):
            await session.run()


@asynchronous
async def test_a_client_that_waits_for_servers_says_why_once(certificates: Certificates) -> None:
    """A line for each server and reason, however often it asks."""
    addresses = free_addresses(2)
    session = ClientSession(
        client="eve",
        task=TASK,
        addresses=(addresses[0], addresses[1]),
        tls=certificates.pki.tls("eve"),
        train=lambda parameters: vector_of("alice", 0),
        connect_timeout_s=5.0,
    )
    with structlog.testing.capture_logs() as lines, pytest.raises(ServerUnreachableError, match="nothing listens"):
        await session.run()
    said = sorted((line["server"], line["reason"]) for line in lines if line["event"] == "client.waiting")
    assert said == [
        (role, f"{role} at {at}: nothing listens there") for role, at in zip((A, B), addresses, strict=True)
    ]


@pytest.mark.parametrize("impostor", ["another certificate", "the same certificate"])
@asynchronous
async def test_a_second_server_a_ends_with_a_clear_error(
    impostor: str, certificates: Certificates, tmp_path: Path
) -> None:
    """The real program, started a second time elsewhere: it stops, and the pair that it wanted to join goes on."""
    async with second_round(certificates, tmp_path) as scene:
        before = await scene.snapshot()
        config = certificates.pki.aggregator(0, listen=free_addresses(1)[0], folder=tmp_path)
        config = config.model_copy(update={"state_dir": tmp_path / "second"})
        config = config.model_copy(update={"connect_timeout_s": 6.0})
        if impostor == "another certificate":
            theirs = certificates.second_a
            config = config.model_copy(update={"certificate": theirs.certificate, "key": theirs.key})
        second = Aggregator(party=0, task=TASK, config=config, addresses=(scene.address(B), scene.address(DEALER)))
        refused = (TaskRefusedError, "aggregator B refused the link: .*expected the pinned one")
        if impostor == "the same certificate":  # it may be A that lost its link, so it asks for a while
            refused = (PeerUnreachableError, "no link within 6 s: .*linked with another aggregator A")
        with pytest.raises(refused[0], match=refused[1]):
            await second.run()
        assert await scene.snapshot() == before
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)


# With an identity that may, and an upload that may not


@asynchronous
async def test_a_second_submission_of_the_round_is_refused_and_the_first_one_counts(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Whether it is the same again or another."""
    async with second_round(certificates, tmp_path) as scene:
        await scene.submit_honestly("mallory")
        before = await scene.snapshot()
        for binding in (scene.submission("mallory").binding, rebound(scene, digest_a=bytes(32))):
            error = await refusal(lambda: upload(scene, A, "mallory", binding))  # noqa: B023
            assert error.code() is STATUS.INVALID_ARGUMENT
            assert error.details() == "duplicate: 'mallory' has submitted in round 1"
        assert await scene.snapshot() == before
        await scene.submit_honestly("alice", "bob")
        await scene.finish(accepted=CLIENTS)


Parts = tuple[common_pb2.Binding | bytes, ...]

SPOILT: dict[str, tuple[Callable[[Scene], Parts], bool, str]] = {
    "a byte too many": (
        lambda s: (rebound(s, digest_a=convert.sha256(bytes(193))), bytes(193)),
        False,
        "wrong_length: payload: expected 192 bytes, found more",
    ),
    "a byte too many, in a chunk of its own": (
        lambda s: (rebound(s, digest_a=convert.sha256(bytes(193))), bytes(192), bytes(1)),
        False,
        "wrong_length: payload: expected 192 bytes, found more",
    ),
    "a byte too few": (
        lambda s: (rebound(s, digest_a=convert.sha256(bytes(191))), bytes(191)),
        True,
        "wrong_length: payload: expected 192 bytes, found 191",
    ),
    "nothing": (
        lambda s: (rebound(s, digest_a=convert.sha256(b"")),),
        True,
        "wrong_length: payload: expected 192 bytes, found 0",
    ),
    "other bytes than announced": (
        lambda s: (s.submission("mallory").binding, bytes(192)),
        True,
        "wrong_digest: the bytes do not have the announced digest",
    ),
    "two bindings": (
        lambda s: (s.submission("mallory").binding, s.submission("mallory").binding),
        False,
        "malformed: a submission has one binding",
    ),
}
"""The maker of the spoilt parts, whether the stream then ends, and the refusal."""


@pytest.mark.flaky(reason=LOST_STATUS)
@pytest.mark.parametrize("spoilt", SPOILT)
@asynchronous
async def test_a_spoilt_upload_costs_its_client_the_round_and_nobody_else(
    spoilt: str, certificates: Certificates, tmp_path: Path
) -> None:
    """Refused at the first byte too many; a second try in the round is a duplicate."""
    parts, ends, text = SPOILT[spoilt]
    async with second_round(certificates, tmp_path) as scene:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await upload(scene, A, "mallory", *parts(scene), ends=ends)
        assert (caught.value.code(), caught.value.details()) == (STATUS.INVALID_ARGUMENT, text)
        again = await refusal(lambda: upload(scene, A, "mallory", scene.submission("mallory").binding))
        assert again.details() == "duplicate: 'mallory' has submitted in round 1"
        await scene.clients.pop("mallory").leave()  # so that nobody waits for the other half of its upload
        await scene.submit_honestly("alice", "bob")
        await scene.finish(accepted=["alice", "bob"], only_they_uploaded=not ends)


@asynchronous
async def test_an_endless_upload_is_cut_off_at_once(certificates: Certificates, tmp_path: Path) -> None:
    """The server takes in no more than what was under way when it refused: 200 MiB are offered."""
    n_taken = 0

    async def endless(binding: common_pb2.Binding) -> AsyncIterator[aggregator_pb2.SubmitPart]:
        nonlocal n_taken
        yield aggregator_pb2.SubmitPart(binding=binding)
        for _ in range(200):
            yield aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=bytes(convert.CHUNK_BYTES)))
            n_taken += 1

    async with second_round(certificates, tmp_path) as scene:
        async with scene.channel(A, "mallory") as channel:
            stub = aggregator_pb2_grpc.AggregatorStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Submit(endless(scene.submission("mallory").binding))
        assert n_taken < 20  # what fits in gRPC's flow control windows, not what was offered
        assert scene.deployment.aggregators[0]._telemetry.collecting.intake.bytes_received == 0
        await scene.clients.pop("mallory").leave()
        await scene.submit_honestly("alice", "bob")
        await scene.finish(accepted=["alice", "bob"])


@asynchronous
async def test_an_upload_that_its_client_does_not_state_to_b_is_none(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Mallory tells B another thing than A, and A cannot see it: not active at either, and not a reason for anybody to
    stop."""
    async with second_round(certificates, tmp_path) as scene:
        submission = scene.submission("mallory")
        await upload(scene, A, "mallory", submission.binding, submission.payloads[0], ends=True)
        await scene.submit_honestly("alice", "bob")
        await scene.finish(accepted=["alice", "bob"], only_they_uploaded=False)


# The whole client, not on a leash


@asynchronous
async def test_the_real_client_says_why_it_was_refused(certificates: Certificates, tmp_path: Path) -> None:
    """Eve runs the honest client program: one line that names the server, the reason and the status."""
    async with second_round(certificates, tmp_path) as scene:
        eve = ClientSession(
            client="eve",
            task=TASK,
            addresses=scene.deployment.addresses,
            tls=certificates.pki.tls("eve"),
            train=lambda parameters: vector_of("alice", 0),
        )
        with pytest.raises(ClientRefusedError, match=r"aggregator-[ab] at .*'eve' is not enrolled .*PERMISSION_DENIED"):
            await eve.run()
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)


# Everybody's certificate is renewed while a round is open


@asynchronous
async def test_a_task_goes_on_while_every_server_renews_its_certificate(tmp_path: Path) -> None:
    """Replace the keys of A, B and the dealer, and the pins with them, in the middle of a round.

    Link, lane and clients' streams stand. Whoever comes from then on meets the new certificates, and the round gives
    the same sum.
    """
    pki = Pki.create(tmp_path / "pki", [*CLIENTS, "eve"])
    mallory, a, b = (pki.tls(name) for name in ("mallory", A, B))
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(pki.directory / name, renewed / name)
    async with second_round(Certificates(pki, mallory, a, b), tmp_path) as scene:
        for role in (A, B, DEALER):
            old, new = pki.tls(role), issue(renewed, Identity(role, role.value))
            pin = PinFile(new.certificate, role)
            async with dial(scene.address(role), role, pki.tls("operator"), pin) as early:
                with pytest.raises(grpc.aio.AioRpcError, match="certificate"):
                    await control_pb2_grpc.ControlStub(early).GetStatus(control_pb2.StatusRequest())
            new.key.replace(old.key)
            shutil.copy(new.certificate, old.certificate.with_name("cert.new"))
            old.certificate.with_name("cert.new").replace(old.certificate)
            async with dial(scene.address(role), role, pki.tls("operator"), pin) as late:
                await control_pb2_grpc.ControlStub(late).GetStatus(control_pb2.StatusRequest())
        await scene.submit_honestly(*CLIENTS)
        await scene.finish(accepted=CLIENTS)
