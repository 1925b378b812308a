"""`precad check --connect`: real servers and sockets that answer rightly, wrongly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import grpc
import numpy as np
import pytest

from precad.deploy import errors
from precad.deploy.cli import main as cli
from precad.deploy.configuration import check_links
from precad.deploy.configuration.check import check
from precad.deploy.configuration.sections import load
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server, stop_server
from precad.servers.door.admission import Admission
from precad.servers.errors import PeerUnreachableError
from precad.servers.telemetry.events import Telemetry
from tests.harness.command_line import CliRunner
from tests.harness.harness import free_addresses
from tests.harness.links import MONITORING, architecture_links
from tests.harness.organisations import NAMES, SERVERS, Organisations


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Organisations:
    found = Organisations.create(tmp_path_factory.mktemp("organisations"), has_dealer=False)
    Organisations.create(found.root / "strangers", has_dealer=False)
    return found


def dialled(made: Organisations, a: str, b: str) -> tuple[int, str]:
    """Return a client's check of A and B at these addresses."""
    made.write_configs({Role.AGGREGATOR_A: a, Role.AGGREGATOR_B: b})
    config = made.config(Role.CLIENT)
    found = CliRunner().invoke(cli.app, ["check", str(config), "--connect"], prog_name="precad")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.output


def tls_of(made: Organisations, role: Role) -> TlsFiles:
    folder = made.folder(role) / "tls"
    return TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", authority=folder / "ca.pem")


@contextmanager
def serving(
    tls: TlsFiles,
    credentials: grpc.ServerCredentials | None = None,
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (),
) -> Iterator[str]:
    """A server of ours, in a thread with a loop of its own; yields its address. credentials: others than ours."""
    loop, started = asyncio.new_event_loop(), []

    async def start() -> None:
        server, port = bind_server("127.0.0.1:0", tls, interceptors)
        if credentials is not None:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        started.append((server, port))

    loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    server, port = started[0]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(stop_server(server, 0), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def admitting(made: Organisations, role: Role) -> Iterator[str]:
    """A server behind admission control, which requires post-quantum keys; yields its address."""
    made.write_configs()
    aggregator = load(made.config(role)).aggregator
    config = aggregator.a if role is Role.AGGREGATOR_A else aggregator.b
    assert config is not None
    strict = config.model_copy(update={"require_pqc": True})
    with serving(config.tls, interceptors=(Admission(strict, NAMES, Telemetry(role)),)) as address:
        yield address


@contextmanager
def answering(reply: Callable[[socket.socket], None]) -> Iterator[str]:
    """A socket that is no server of ours, in a thread; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # of the listening socket, at the end
                while True:
                    connection, _ = listening.accept()
                    with contextlib.suppress(OSError), connection:
                        reply(connection)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_servers_that_answer_with_their_pinned_certificates_are_shown(made: Organisations) -> None:
    with serving(tls_of(made, Role.AGGREGATOR_A)) as a, serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, a, b)
    assert code == errors.SUCCESS, said
    for role, address in (("aggregator-a", a), ("aggregator-b", b)):
        assert f"{role} at {address}" in said
    assert said.count("answers with the pinned certificate and takes ours") == 2


def test_each_link_is_shown_with_its_key_exchange(made: Organisations) -> None:
    """A names the group, as it requires one. B, which is no whole server, names none."""
    with admitting(made, Role.AGGREGATOR_A) as a, serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, a, b)
    assert code == errors.SUCCESS, said
    flat = " ".join(said.split())
    assert "takes ours, keys by X25519MLKEM768," in flat
    assert "takes ours, keys by a group that it does not name," in flat


@pytest.mark.parametrize("names_its_group", [True, False])
def test_a_server_that_requires_post_quantum_keys_does_so_where_it_dials(
    made: Organisations, names_its_group: bool
) -> None:
    """A asks B, which must say that their connection has the group."""
    with contextlib.ExitStack() as stack:
        b = stack.enter_context(
            admitting(made, Role.AGGREGATOR_B) if names_its_group else serving(tls_of(made, Role.AGGREGATOR_B))
        )
        made.write_configs({Role.AGGREGATOR_B: b})
        config = made.config(Role.AGGREGATOR_A)
        config.write_text(config.read_text().replace("require_pqc = false", "require_pqc = true"))
        deployment = load(config)
        if names_its_group:
            assert "keys by X25519MLKEM768" in check_links.check_links(deployment)[f"aggregator-b at {b}"]
        else:
            expected = "require_pqc: expected the group X25519MLKEM768, found a group that it does not name"
            with pytest.raises(PeerUnreachableError, match=f"^aggregator-b at {b}: {expected}$"):
                check_links.check_links(deployment)


def test_every_link_that_fails_is_named_with_its_reason(made: Organisations) -> None:
    """A is another role's server; B is not there. Exit code 4, as for a process that cannot reach them."""
    (nobody,) = free_addresses(1)
    with serving(tls_of(made, Role.AGGREGATOR_B)) as a:
        code, said = dialled(made, a, nobody)
    assert code == errors.UNREACHABLE, said
    assert f"aggregator-a at {a}: its certificate is" in said
    assert f"aggregator-b at {nobody}: nothing listens there" in said


def test_a_server_of_another_authority_is_not_the_pinned_one(made: Organisations) -> None:
    """Same role, another certificate. Its server does not take our certificate either."""
    strangers = Organisations(made.root / "strangers", has_dealer=False)
    with serving(tls_of(strangers, Role.AGGREGATOR_A)) as a, serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, a, b)
    assert code == errors.UNREACHABLE, said
    assert f"aggregator-a at {a}: its certificate is not the pinned one, or comes from another authority" in said
    assert "aggregator-b" not in said


def test_a_server_that_does_not_take_our_certificate_is_told_from_one_that_does(made: Organisations) -> None:
    """It shows the pinned certificate, and takes those of another authority alone."""
    own, stranger = tls_of(made, Role.AGGREGATOR_A), made.root / "strangers" / "authority" / "ca.pem"
    pair = (own.key.read_bytes(), own.certificate.read_bytes())
    taking_others = grpc.ssl_server_credentials([pair], stranger.read_bytes(), require_client_auth=True)
    with serving(own, taking_others) as a, serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, a, b)
    assert (code, f"aggregator-a at {a}: it hung up on our certificate" in said) == (errors.UNREACHABLE, True), said


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["no-tls", "hangs-up"])
def test_what_is_no_server_of_ours_is_named(made: Organisations, answer: bytes) -> None:
    def reply(connection: socket.socket) -> None:
        connection.recv(64)
        connection.sendall(answer)

    with answering(reply) as a, serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, a, b)
    assert code == errors.UNREACHABLE, said
    assert f"aggregator-a at {a}: " in said
    assert not answer or "it does not speak TLS" in said, said


@pytest.mark.parametrize("name", ["no-such-host.invalid", "no..name"])
def test_a_name_without_an_address_is_named_once(made: Organisations, name: str) -> None:
    with serving(tls_of(made, Role.AGGREGATOR_B)) as b:
        code, said = dialled(made, f"{name}:7001", b)
    assert (code, said.count(name)) == (errors.UNREACHABLE, 1), said
    assert f"aggregator-a at {name}:7001: its name is not resolved: " in said


def test_a_firewall_that_drops_everything_is_told_from_a_server_that_is_not_there(
    made: Organisations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue of connections, whose packets Linux drops."""
    monkeypatch.setattr(check_links, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        with serving(tls_of(made, Role.AGGREGATOR_B)) as b:
            code, said = dialled(made, f"127.0.0.1:{listening.getsockname()[1]}", b)
    assert (code, "no answer within 0.5 s: a firewall" in said) == (errors.UNREACHABLE, True), said


def test_a_client_that_only_asked_for_a_certificate_dials_nobody(tmp_path: Path) -> None:
    """Beside one of the same machine that has its own, as kits lay them; `check` leaves it out likewise."""
    made = Organisations.create(tmp_path, has_dealer=False)
    made.write_configs()
    config = made.config(Role.CLIENT)
    clients = sorted((made.folder(Role.CLIENT) / "clients").iterdir())
    assert len(clients) > 1
    (clients[0] / "cert.pem").unlink()
    deployment = load(config)
    assert {link.tls.certificate.parent for link in check_links.links(deployment)} == set(clients[1:])
    shown = check(deployment)["clients"]["certificates"]
    assert [one["of"].rpartition("/")[2] for one in shown] == [folder.name for folder in clients[1:]]


def test_each_role_dials_the_links_of_the_architecture(tmp_path: Path) -> None:
    """Those between processes of a task, but for the lane, which A is told of."""
    made = Organisations.create(tmp_path)
    made.write_configs()
    ports = {role: int(address.rpartition(":")[2]) for role, address in NAMES.items()}
    expected = {link for link in architecture_links() if link.source != MONITORING and link.port in ports.values()}
    found = {
        (source, link.role.value, int(link.address.rpartition(":")[2]))
        for source in (*SERVERS, Role.CLIENT)
        for link in check_links.links(load(made.config(source)))
    }
    assert found == {tuple(link) for link in expected}


def test_a_server_that_dials_nobody_is_told_so(tmp_path: Path) -> None:
    """B of mode `proved` waits for A and for clients: no heading stands there with nothing below it."""
    made = Organisations.create(tmp_path, has_dealer=False)
    made.write_configs()
    config = made.config(Role.AGGREGATOR_B)
    np.save(made.folder(Role.AGGREGATOR_B) / "initial.npy", np.zeros(load(config).task.dim, np.float32))
    command = ["check", str(config), "--connect"]
    found = CliRunner().invoke(cli.app, command, prog_name="precad")
    assert (found.exit_code, found.output.splitlines()[-1]) == (0, "links             none"), found.output
