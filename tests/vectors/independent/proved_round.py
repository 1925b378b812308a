"""A round of mode `proved` with honest parties: it carries every message from one to the other, and keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_field import FIELD, from_bytes
from tests.vectors.independent.proved_messages import Round
from tests.vectors.independent.proved_server import Server


@dataclass
class Parties:
    """Two servers and the chosen clients of one round. sent: what each server sent to the other, by step."""

    round: Round
    slots: Mapping[str, int]
    servers: tuple[Server, Server]
    clients: Mapping[str, Client]
    sent: tuple[dict[str, bytes], dict[str, bytes]] = field(default_factory=lambda: ({}, {}))

    @classmethod
    def of(cls, round: Round, slots: Mapping[str, int]) -> Parties:
        """Return fresh parties."""
        servers = (Server(0, round, slots), Server(1, round, slots))
        return cls(round, slots, servers, {name: Client(name) for name in slots})

    def holder(self, client: str) -> Server:
        """Return the server that holds a client's slot."""
        return self.servers[self.slots[client] % 2]

    def seeded(self, client: str) -> Server:
        """Return the other one."""
        return self.servers[1 - self.slots[client] % 2]

    def upload(self, updates: Mapping[str, Sequence[int]]) -> None:
        """Invite these clients, and take their uploads at both servers."""
        for name, x in updates.items():
            invitations = [server.invite(name) for server in self.servers]
            relay = self.holder(name).submit(name, self.clients[name].upload(self.round, invitations, x))
            self.seeded(name).submit_relay(relay)

    def lock(self) -> list[bytes]:
        """Lock at both servers, and return the challenge of each: one, unless a server deviates."""
        self.exchange("lock", [server.lock() for server in self.servers])
        self.exchange("reveal", [server.reveal(self.theirs("lock", server)) for server in self.servers])
        return [server.challenge(self.theirs("reveal", server)) for server in self.servers]

    def prove(self) -> None:
        """Send each server's challenge to its active clients, and take their proofs at both servers."""
        for name, slot in self.slots.items():
            for server in self.servers:
                if slot not in server.active:
                    continue
                sent = self.clients[name].challenge(server.party, self.round.round, server.challenge_seed)
                if sent is not None:
                    self.seeded(name).prove_relay(self.holder(name).prove(name, sent))

    def check(self) -> list[int]:
        """Run the check at both servers, and return the valid slots."""
        if self.servers[0].due == "proofs":
            self.exchange("proofs", [server.proofs() for server in self.servers])
            for server in self.servers:
                server.query(self.theirs("proofs", server))
        is_due = self.servers[0].due == "verifier"
        self.exchange("verifier", [server.verifier() if is_due else b"" for server in self.servers])
        self.exchange("accepted", [server.verdicts(self.theirs("verifier", server)) for server in self.servers])
        for server in self.servers:
            server.accepted(self.theirs("accepted", server))
        return self.servers[0].valid

    def open(self, noises: Sequence[Sequence[int]]) -> list[int]:
        """Return the noisy sum as centred integers. noises: A's and B's, d integers each."""
        payloads = [server.noisy_share(noise) for server, noise in zip(self.servers, noises, strict=True)]
        self.exchange("noisy sum", payloads)
        shares = [from_bytes(payload, self.round.sizes.dim) for payload in payloads]
        return [FIELD.centred(a + b) for a, b in zip(*shares, strict=True)]

    def exchange(self, step: str, payloads: Sequence[bytes]) -> None:
        """Keep what both sent in a step."""
        for party, payload in enumerate(payloads):
            self.sent[party][step] = payload

    def theirs(self, step: str, server: Server) -> bytes:
        """Return what a server's peer sent in a step."""
        return self.sent[1 - server.party][step]
