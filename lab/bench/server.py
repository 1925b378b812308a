"""One of the two measured server processes: the servers' own link and MPC thread, and a list of cases to run in step.

    precad bench server JOB --party a|b        (hidden; `precad.lab.bench.server_pair` starts it)

Both run the same cases in the same order and agree at a barrier before each clock starts. What only one of them can
know (bytes that it sent, its own seconds) it writes into its result file, for the parent to join.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from precad.dp.noise import rounded_gaussian
from precad.lab.bench.checks import EXCHANGE, FLOOR, GATE_OF_UNSOUND, NATIVE_ONLY, gate_blocks, run_check, run_floor
from precad.lab.bench.errors import WrongVerdictError
from precad.lab.bench.machine import take_own_core
from precad.lab.bench.measured import NOISE_STD, BatchRun, CaseRun, CountingChannel, Measured
from precad.lab.bench.proved import PROVED, ProvedRun
from precad.lab.bench.workload import Case, Updates, prepare
from precad.mpc.gate.top_bits import Gate
from precad.mpc.gate_names import make_gate
from precad.mpc.opening import open_in_place
from precad.mpc.prg import expanded_bytes
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.validation import Validated
from precad.protos.precad.v1 import common_pb2, peer_pb2_grpc
from precad.protos.task.task import PROTOCOL_VERSION
from precad.protos.tls.address import with_port
from precad.protos.tls.files import PinFile, TlsContext, TlsFiles
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.transport import bind_server, dial
from precad.servers.door.servicers import PeerServicer
from precad.servers.links.lane import Lane, lane_context
from precad.servers.links.lane_listener import LaneListener
from precad.servers.links.lane_opening import open_lane
from precad.servers.links.peer import PeerLink, dial_peer
from precad.servers.rounds.uploads import Spool
from precad.servers.telemetry.events import Telemetry

CONNECT_TIMEOUT_S = 60.0
GOODBYE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """Hold what both processes are told, in one file."""

    address: str
    """Address of server B."""
    pki: str
    """Folder of a throw-away authority with both aggregators' certificates."""
    cases: tuple[Case, ...]

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a file that `write` made."""
        fields = json.loads(path.read_text())
        return cls(fields["address"], fields["pki"], tuple(Case.from_json(case) for case in fields["cases"]))

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self)))

    def tls(self, party: Party) -> TlsFiles:
        """Return one server's certificate and key."""
        folder = Path(self.pki)
        own = folder / AGGREGATORS[party]
        return TlsFiles(certificate=own / "cert.pem", key=own / "key.pem", authority=folder / "ca.pem")

    def pinned(self, party: Party) -> PinFile:
        """Return the certificate that the other server pins."""
        return PinFile(self.tls(party).certificate, AGGREGATORS[party])

    def lane(self, party: Party) -> TlsContext:
        """Return what a server shows and trusts on the lane."""
        return lane_context(party, self.tls(party), self.tls(0 if party == 1 else 1).certificate)


class BenchmarkServer:
    """One process. `run` returns when every case is measured."""

    def __init__(self, job: Job, party: Party, result: Path) -> None:
        self._job, self._party, self._result = job, party, result
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End it without a result."""
        self._stopped.set()

    async def run(self) -> None:
        """Raises: WrongVerdictError, ServerError, MpcError, TransportError."""
        async with AsyncExitStack() as stack:
            link, lane = await self._link(stack)
            receiving = asyncio.create_task(link.run())
            thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
            stack.callback(thread.shutdown, wait=False, cancel_futures=True)
            loop = asyncio.get_running_loop()
            stack.callback(lane.close)
            measuring = loop.run_in_executor(thread, run_cases, self._job.cases, lane)
            stopping = asyncio.create_task(self._stopped.wait())
            try:
                await asyncio.wait((measuring, stopping), return_when=asyncio.FIRST_COMPLETED)
                if measuring.done():
                    self._result.write_text(json.dumps([asdict(case) for case in measuring.result()]))
            finally:
                await link.say_goodbye(common_pb2.Goodbye(finished=True), GOODBYE_TIMEOUT_S)
                stopping.cancel()
                await asyncio.wait((receiving,), timeout=GOODBYE_TIMEOUT_S)
                receiving.cancel()
                with suppress(Exception, asyncio.CancelledError):
                    await receiving

    async def _link(self, stack: AsyncExitStack) -> tuple[PeerLink, Lane]:
        """Return the servers' own link and lane: A dials B over TLS, each trusts exactly the other's certificate."""
        job, party = self._job, self._party
        hello = common_pb2.Hello(protocol_version=PROTOCOL_VERSION)
        if party == 0:
            link, theirs = await dial_peer(
                stack,
                lambda: dial(job.address, Role.AGGREGATOR_B, job.tls(0), job.pinned(1)),
                hello,
                job.address,
                CONNECT_TIMEOUT_S,
            )
            lane = await open_lane(job.address, theirs.lane_port, theirs.lane_token, job.lane(0), CONNECT_TIMEOUT_S)
            return link, lane
        server, _ = bind_server(job.address, job.tls(1))
        listener = LaneListener(with_port(job.address, 0), job.lane(1))
        hello.lane_port, hello.lane_token = listener.port, listener.token
        servicer = PeerServicer(job.pinned(0), Telemetry(AGGREGATORS[1]))
        peer_pb2_grpc.add_PeerServicer_to_server(servicer, server)
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        stack.callback(servicer.release)
        link, _ = await servicer.wait_for_peer(hello, CONNECT_TIMEOUT_S)
        return link, await listener.accept(CONNECT_TIMEOUT_S)


def run_cases(cases: tuple[Case, ...], lane: Lane) -> list[Measured]:
    """Run every case, in the MPC thread.

    Cases of one size take turns. Whatever else the machine does meanwhile then meets all of them alike, and their
    ratios less than their times.
    """
    take_own_core(lane.party)
    gates: dict[str, Gate] = {}
    runs = [_run_of(case, CountingChannel(lane, f"case-{i}"), gates) for i, case in enumerate(cases)]
    for _, group in itertools.groupby(runs, key=lambda run: (run.case.dim, run.case.clients)):
        same_size = list(group)
        for repetition in range(max(run.case.warm_up + run.case.repetitions for run in same_size)):
            for run in same_size:
                if repetition < run.case.warm_up + run.case.repetitions:
                    run.repeat(repetition, is_timed=repetition >= run.case.warm_up)
    return [run.measured for run in runs]


def _run_of(case: Case, channel: CountingChannel, gates: dict[str, Gate]) -> CaseRun:
    if case.implementation == FLOOR:
        return FloorRun(case, channel)
    if case.implementation == EXCHANGE:
        return ExchangeRun(case, channel)
    if case.implementation == PROVED:
        return ProvedRun(case, channel)
    name = GATE_OF_UNSOUND if case.implementation in NATIVE_ONLY else case.implementation
    gates[name] = gates.get(name) or make_gate(name)
    return CheckRun(case, gates[name], channel)


class FloorRun(CaseRun):
    """Both servers at the same time: they share the memory's bandwidth in the check, too."""

    def repeat(self, repetition: int, *, is_timed: bool) -> None:
        """See base."""
        self._channel.exchange("barrier", b"")
        floor = run_floor(self.case)
        if is_timed:
            self.measured.check_s.append(floor.total)
            for name, seconds in asdict(floor).items():
                self.measured.parts.setdefault(name, []).append(seconds)


class ExchangeRun(CaseRun):
    """An empty step of the link, there and back, as the protocol makes one per round."""

    def repeat(self, repetition: int, *, is_timed: bool) -> None:
        """See base."""
        start = time.perf_counter()
        self._channel.exchange("empty", b"")
        if is_timed:
            self.measured.check_s.append(time.perf_counter() - start)


class CheckRun(BatchRun):
    """A check of shares or masked updates."""

    def __init__(self, case: Case, gate: Gate, channel: CountingChannel) -> None:
        super().__init__(case, channel)
        self._gate, self._blocks = gate, gate_blocks(case, gate)

    def _repeat(self, repetition: int, spool: Spool, *, is_timed: bool) -> None:
        case, channel, updates = self.case, self._channel, Updates(self.case)
        held = prepare(case, updates, repetition, channel.party, self._blocks, spool)
        checked, seconds = self._check(lambda: run_check(case, held, self._gate, channel))
        if checked.verdicts != case.expected(repetition):
            raise WrongVerdictError(f"{case}: expected {case.expected(repetition)}, found {checked.verdicts}")
        if not is_timed:
            _require_right_sum(updates.accepted_sum(repetition), checked, channel)
            return
        self.measured.check_s.append(seconds)
        self.measured.dealer_s.append(held.dealer_seconds)
        self._aggregate(lambda: _open_noisy_sum(checked.accepted_share_sum, channel))


def _require_right_sum(expected: RingArray, checked: Validated, channel: CountingChannel) -> None:
    open_in_place(checked.accepted_share_sum, "sum", channel)
    if not np.array_equal(checked.accepted_share_sum, expected):
        raise WrongVerdictError("the shares of the accepted clients do not add up to their updates")


def _open_noisy_sum(share_sum: RingArray, channel: CountingChannel) -> None:
    share_sum += rounded_gaussian.sample(NOISE_STD, share_sum.size, expanded_bytes())
    open_in_place(share_sum, "noisy sum", channel)
