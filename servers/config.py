"""Configuration of a server by its operator: the `[aggregator.a]`, `[aggregator.b]` and `[dealer]` sections.

Paths are relative to the configuration file. Private keys are paths here, never values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator

from precad.protos.config_path import ConfigPath
from precad.protos.tls.address import is_loopback, split_address
from precad.protos.tls.files import TlsFiles, TransportError
from precad.protos.tls.identity import Role

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Patience = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]


def _address(value: str) -> str:
    try:
        split_address(value)
    except TransportError as error:
        raise ValueError(str(error).removeprefix("address: ")) from None
    return value


Address = Annotated[str, AfterValidator(_address)]
"""HOST:PORT."""


def require_own_role(tls: TlsFiles, role: Role) -> None:
    """Require a certificate of `role` for this process to show. Raises TransportError, TlsFileError."""
    found = tls.load().identity
    if found.role is not role:
        raise TransportError(f"certificate: expected one of {role}, found one of {found.uri} ({tls.certificate})")


class ServerConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Settings that every server has."""

    listen: Address
    """HOST:PORT to listen on."""
    certificate: ConfigPath
    """Our certificate (PEM), issued by the authority, with our role."""
    key: ConfigPath
    """Its private key (PEM, mode 0600)."""
    key_passphrase_file: ConfigPath | None = None
    """File with the passphrase that the key is encrypted under (mode 0600). Without one, the passphrase is in the
    environment, in PRECAD_KEY_PASSPHRASE; a key in the clear needs neither."""
    authority: ConfigPath
    """The authority's certificate (PEM)."""
    require_pqc: bool = False
    """Whether every call to this server must come over a connection with the post-quantum group X25519MLKEM768. A and B
    set it both or not; the lane between them then has a second encryption (`precad.servers.links.lane_seal`)."""
    database_url: Annotated[SecretStr, Field(min_length=1)] | None = None
    """postgresql://... of a database for several replicas of this server (`precad.servers.database.replicas`; needs
    precad[postgres]). Without one it is in the environment, in PRECAD_DATABASE_URL; without both, there are files of
    SQLite in `state_dir`."""
    connect_timeout_s: Seconds = 60.0
    """How long to try to reach the other servers at the start."""
    reconnect_timeout_s: Patience = 600.0
    """How long to wait for another server that was lost, before this one ends too (exit code 4). The round in flight is
    given up and the next one begins when all are back. An aggregator's losses without a draw between them share it. 0:
    not at all."""
    drain_timeout_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 60.0
    """How long SIGTERM waits for the round in flight, at most (a dealer: until both aggregators have left). 0: not at
    all."""

    max_connections: Annotated[int, Field(ge=16, le=1_000_000)] = 20_480
    """Connections to `listen` at once, of all peers; who comes beyond is hung up on before the handshake. A client
    process has one for each client that it hosts."""
    max_connections_per_caller: Annotated[int, Field(ge=2, le=1_000_000)] = 16
    """Connections of one certificate's holder at once, as far as calls say whose they are. Beyond that, the one that
    has been without a call for longest is hung up on. A client or server needs one."""
    max_calls: Annotated[int, Field(ge=16, le=1_000_000)] = 20_480
    """Open calls of clients at once, beyond which they are told to come back. A connected client holds one."""
    max_calls_per_caller: Annotated[int, Field(ge=4, le=1_000_000)] = 8
    """Open calls of one certificate's holder at once. A client in a round needs two."""
    calls_per_caller_s: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 20.0
    """Calls that a client, or the operator, may begin per second in the long run. A client needs two a
    round, three in mode `proved`."""
    call_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 60
    """Calls that it may begin at once, after a silence."""

    operations_listen: Address | None = None
    """HOST:PORT of the operations port: dashboard, metrics, health. Without one there is none. Beyond this machine it
    needs `operations_tls`."""
    operations_token: ConfigPath | None = None
    """File with the operations port's bearer token (mode 0600). Without one, the token is in the environment, in
    PRECAD_OPERATIONS_TOKEN."""
    operations_tls: bool = False
    """Whether the operations port speaks TLS, with this server's certificate."""

    operations_linger_s: Patience = 0.0
    """How long the operations port still answers when the task is over and every link and file is closed. A signal ends
    it at once."""

    @model_validator(mode="after")
    def _check_operations(self) -> Self:
        if self.operations_listen is None or self.operations_tls or is_loopback(self.operations_listen):
            return self
        raise ValueError(
            "operations_listen: expected an address of loopback, or operations_tls = true, "
            f"found {self.operations_listen} in plain text"
        )

    @property
    def tls(self) -> TlsFiles:
        """Return the files with what this server shows and trusts."""
        return TlsFiles(
            certificate=self.certificate,
            key=self.key,
            authority=self.authority,
            key_passphrase_file=self.key_passphrase_file,
        )


class EarlierLedger(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The ledger of a finished task at the same server."""

    path: ConfigPath
    """Its `ledger.jsonl`."""
    most_rounds: Annotated[int, Field(ge=1)] | None = None
    """In how many rounds a client can have been at most, as `precad account` shows of that task. None: against servers
    that discard draws nothing is proved."""


class AggregatorConfig(ServerConfig, frozen=True):
    """One aggregation server."""

    peer_certificate: ConfigPath
    """The other aggregator's certificate, or two of them while it is renewed. No other is trusted on the link between
    the two. This file, like those above, may be replaced while the server runs."""
    dealer_certificate: ConfigPath | None = None
    """The dealer's certificate, pinned likewise. None in a task of mode `proved`, which has no dealer."""
    initial_model: ConfigPath
    """Flat float32 vector of the task's dimension (.npy). Both servers must hold the same bytes."""
    state_dir: ConfigPath
    """Where the ledgers, the state of the task and the models are written, and uploads that memory has no room for. A
    folder of this task is continued, one of another task is refused."""
    revoked: ConfigPath | None = None
    """File of clients' certificates that are no longer accepted: a SHA-256 fingerprint a line
    (`precad.servers.door.revocation`). It may change while the server runs."""
    earlier_ledgers: list[EarlierLedger] = Field(default_factory=list)
    """Ledgers of finished tasks of the same clients at this server. Every figure and budget counts what they hold. Each
    has a `path`, and `most_rounds`: in how many rounds a client can have been at most, as `precad account` shows of
    that task. Without it nothing is proved against servers that discard draws."""
    memory_budget_mb: Annotated[int, Field(ge=1, le=1 << 24)] = 4096
    """Resident memory that this server may take, in MiB. The needs of the model come first (24 bytes a parameter and
    768 MiB). Uploads that do not fit into the rest wait in a file of `state_dir`."""
    max_upload_in_memory_mb: Annotated[int, Field(ge=0, le=1 << 24)] = 16
    """An upload that is longer than this many MiB waits in the file in any case."""
    max_uploads: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Uploads that come in at once; further clients are told to come back. Each takes a message of memory, 4 MiB at
    most. Unread bytes are bounded, so an upload moves about 1 MiB in a round trip of its line, however fast that is."""
    max_upload_mb: Annotated[int, Field(ge=1, le=1 << 24)] = 4096
    """Length of all uploads that come in at once together, in MiB. One alone may be longer."""
    max_downloads: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Clients that download the model at once; further ones are told to come back."""
    min_transfer_bytes_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 32_768.0
    """Slowest average pace of an upload or download, in bytes a second, while others wait for a place. A slower one is
    cut off to make room; it may begin again when the others have had theirs. Where nobody waits, none is cut off. 0:
    only those that would not be over by the round's deadline."""
    transfer_grace_s: Seconds = 10.0
    """How old a transfer is before it is judged by its speed."""
    engine: Literal["cpu", "cuda"] = "cpu"
    """Where the check computes what grows with the model (`precad.mpc.local.engines`). `cuda` needs a GPU, and is
    refused without."""
    check_threads: Annotated[int, Field(ge=1, le=256)] = 1
    """How many cores the engine `cpu` may use for it. The result is the same integers. Each core beyond the first costs
    16 KiB per enrolled client of the budget."""

    rejoin_timeout_s: Patience = 2.0
    """How long a task that goes on waits for clients that are not back yet, once there are enough for a round."""

    evaluation_records: Annotated[str, Field(min_length=1)] | None = None
    """Public records that committed models are measured on, named as `client.records` is: `csv:PATH`,
    `module:function` and so on. Needs task.evaluation = "public". They are read by a process of their own, which holds
    no key (`precad.servers.telemetry.quality`). An app's `test` records, where it has some."""
    evaluation_label: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] | None = None
    """Their label, as `client.label`."""
    evaluation_metrics: list[str] = Field(default_factory=list)
    """Figures beside the accuracy and an app's: by name, or `module:function` of (outputs, labels)."""
    evaluation_folder: Annotated[ConfigPath, Field(validate_default=True)] = Path()
    """Where they and modules are looked for: the configuration's folder."""
    evaluation_timeout_s: Seconds = 60.0
    """How long that process may take over its start, and over a model. It is killed after that, and the model has no
    figure; no round waits."""

    sum_function: Annotated[str, Field(min_length=1)] | None = None
    """Consent to run `task.sum_function` in this server's process, by its name. Whoever writes that code can do here
    whatever this server can: read it before."""

    keep_canary_noise: bool = False
    """Whether this server writes down its own noise at the canaries' coordinates, for an audit of what one server sees
    (`precad audit privacy`). Needs task.audit_clients."""

    step_timeout_s: Patience = 600.0
    """How long the other server may take over its part of a step, or the dealer over a round's tuples. Then the round
    is given up as if it had hung up. More where it may be at work (`precad.servers.links.step_limits`). That is 8 n d
    bytes at 8 MiB/s, the step's own bytes at 1 Mbit/s, and the time for uploads, dealer and clients. 0: for ever."""
    lane_listen: Address | None = None
    """Server B only: HOST:PORT where A connects for MPC's steps. By default a free port on the host of `listen`."""

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        given = [name for name in ("evaluation_label", "evaluation_metrics") if getattr(self, name)]
        if given and self.evaluation_records is None:
            raise ValueError(f"{given[0]} is of public records: expected evaluation_records beside it, found none")
        return self

    @model_validator(mode="after")
    def _check_threads(self) -> Self:
        if self.engine == "cpu" or self.check_threads == 1:
            return self
        raise ValueError(f"check_threads: expected 1 with engine = {self.engine!r}, found {self.check_threads}")


class DealerConfig(ServerConfig, frozen=True):
    """The dealer."""

    aggregator_a_certificate: ConfigPath
    """Server A's certificate, pinned."""
    aggregator_b_certificate: ConfigPath
    """Server B's certificate, pinned."""
    state_dir: ConfigPath
    """Where the record of what was dealt is written. A batch in it is never dealt again: keep it for all tasks."""
