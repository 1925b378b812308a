"""A round of the vectors of mode `proved`, by this project's packages: at every client, and at both servers."""

from __future__ import annotations

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.errors import ParameterError, VerdictsDifferError
from precad.mpc.joint_coin import CoinShare
from precad.mpc.prg import Seed
from precad.mpc.proved import field, query, submission, verifier
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.client import OpenUpload
from precad.mpc.proved.field import P
from precad.mpc.proved.shares import HeldBytes, PackedShare
from precad.mpc.proved.submission import Binding, StatedBinding
from tests.vectors.proved_values import Json, label_of, masks_of, payload, sent_upload, sizes_of


class Played:
    """A round of the vectors: two servers, and the messages between them, one of which may have a bit flipped."""

    def __init__(self, case: Json) -> None:
        self.case, self.sizes, self.label = case, sizes_of(case), label_of(case)
        self.clients = {one["slot"]: one for one in sorted(case["clients"], key=lambda one: one["slot"])}
        self.sent: tuple[Json, Json] = ({}, {})

    def exchange(self, step: str, payloads: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Return what each server gets, and keep what was sent as it arrives."""
        changed, tamper = [bytearray(data) for data in payloads], self.case.get("tamper", {})
        if tamper.get("step") == step:
            changed[tamper["party"]][tamper["flip_byte"]] ^= 1
        for party in (0, 1):
            self.sent[party][step] = payload(bytes(changed[party]))
        return bytes(changed[1]), bytes(changed[0])

    def play(self) -> Json:
        """From the uploads to the noisy sum."""
        uploads = {slot: sent_upload(one, self.case) for slot, one in self.clients.items() if "x" in one}
        challenges, active = self.locked({slot: sent.binding.digest() for slot, (sent, _) in uploads.items()})
        checks = []
        for party in (0, 1):
            held = {slot: self.upload(party, slot, *uploads[slot]) for slot in active[party]}
            checks.append(ProofCheck(party, self.label, self.sizes, challenges[party], held))
        self.prove(checks, challenges, {slot: uploads[slot][0].binding for slot in active[0]})
        verdicts = self.verdicts(checks, active)
        valid = [[slot for slot, is_valid in found.items() if is_valid] for found in verdicts]
        ours = [joint_coin.digest(b"accepted", bytes(slot in one for slot in self.clients)) for one in valid]
        if self.exchange("accepted", (ours[0], ours[1])) != (ours[0], ours[1]):
            raise VerdictsDifferError([])
        return {
            "challenge": challenges[0].reveal().hex(),
            "noisy_sum": self.noisy_sum(checks, verdicts),
            "messages": list(self.sent),
            "valid": valid[0],
        }

    def locked(self, bindings: dict[int, bytes]) -> tuple[list[Seed], list[list[int]]]:
        """Return the challenge and the active slots of each server."""
        context = f"{self.label.task}/{self.label.round}/challenge"
        coins = [CoinShare(party, context, bytes.fromhex(self.case["coins"][party])) for party in (0, 1)]
        listed = b"".join(bindings.get(slot, bytes(32)) for slot in self.clients)
        locks = self.exchange("lock", (coins[0].commitment + listed, coins[1].commitment + listed))
        coin_values = self.exchange("reveal", (coins[0].value, coins[1].value))
        seeds, active = [], []
        for party in (0, 1):
            theirs = {slot: locks[party][32 * i + 32 : 32 * i + 64] for i, slot in enumerate(self.clients)}
            active.append([slot for slot in self.clients if bindings.get(slot) == theirs[slot]])
            transcript = joint_coin.digest(b"lock", *(bindings[slot] for slot in active[party]))
            seeds.append(joint_coin.joint_seed(coins[party], coin_values[party], locks[party][:32], transcript))
        return seeds, active

    def upload(self, party: int, slot: int, sent: StatedBinding, data: bytes) -> LockedUpload:
        """Return an upload as one server has it."""
        held = submission.holder_of(slot) == party
        seed = Seed(bytes.fromhex(self.clients[slot]["share_seed"]))
        share = PackedShare(HeldBytes(data), self.sizes.dim) if held else seed
        return LockedUpload(sent.binding.client, sent.binding.digest(), share)

    def prove(self, checks: list[ProofCheck], challenges: list[Seed], bindings: dict[int, Binding]) -> None:
        """Send the challenges to every active client, which proves or is silent."""
        for slot, binding in bindings.items():
            one, seed = self.clients[slot], Seed(bytes.fromhex(self.clients[slot]["share_seed"]))
            x, masks, salt = np.array(one["x"], dtype=np.int64), masks_of(one), bytes.fromhex(one["proof_salt"])
            drawn = (lambda _, masks=masks: masks, lambda _, salt=salt: salt)
            own = OpenUpload(x, self.sizes, binding, seed, slot, *drawn)
            assert own.hear(0, challenges[0].reveal()) is None
            try:
                sent = own.hear(1, challenges[1].reveal())
            except ParameterError:  # a client above the bound does not even try
                continue
            if sent is not None:
                holder = submission.holder_of(slot)
                assert checks[1 - holder].take_relay(slot, checks[holder].take_proof(slot, *sent))

    def verdicts(self, checks: list[ProofCheck], active: list[list[int]]) -> list[dict[int, bool]]:
        """Return the verdicts of each server."""
        if not any(active):
            self.exchange("verifier", (b"", b""))
            return [{}, {}]
        coins = [bytes.fromhex(coin) for coin in self.case["query_coins"]]
        lists = [b"".join(checks[party].close()) for party in (0, 1)]
        theirs = self.exchange("proofs", (coins[0] + lists[0], coins[1] + lists[1]))
        opened: list[dict[int, np.ndarray]] = []
        for party, received in enumerate(theirs):
            digests = [received[at : at + 32] for at in range(32, len(received), 32)]
            proved = checks[party].proved(digests)
            known = (coins[0], received[:32]) if party == 0 else (received[:32], coins[1])
            seed = query.query_seed(self.label, known, list(proved.values()))
            drawn = query.admissible_points(query.query_elements(seed, self.label), self.sizes)
            opened.append(checks[party].open(proved, query.prepare(drawn, self.sizes)))
        pieces = [b"".join(verifier.message_pieces(list(one.values()))) for one in opened]
        found = []
        for party, data in enumerate(self.exchange("verifier", (pieces[0], pieces[1]))):
            parts = verifier.read_message(iter([data] if data else []), len(opened[party]), self.sizes)
            found.append(checks[party].verdicts(dict(zip(opened[party], parts, strict=True))))
        return found

    def noisy_sum(self, checks: list[ProofCheck], verdicts: list[dict[int, bool]]) -> list[int]:
        """Return the sum of both servers' noisy shares, as integers."""
        parts = []
        for check, found, noise in zip(checks, verdicts, self.case["noises"], strict=True):
            share = check.accepted_sum(found) if found else np.zeros(self.sizes.dim, dtype=np.uint64)
            parts.append(field.add(share, np.array([int(v) % P for v in noise], dtype=np.uint64)))
        self.exchange("noisy sum", (field.to_bytes(parts[0]), field.to_bytes(parts[1])))
        return field.to_integers(field.add(parts[0], parts[1])).tolist()
