"""Hold the configuration of a client process: the `[client]` section, which its operator writes.

A process hosts one client by default; with several ids it hosts as many virtual clients, each with its own certificate
and its own connections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, Field, field_validator, model_validator

from precad.clients.holder_limit import HolderLimit
from precad.clients.own_code import look_in, offer
from precad.clients.query_consent import QueryConsent
from precad.clients.upload_limit import DEFAULT_UPLOADS_PER_MODEL
from precad.protos.config_path import ConfigPath
from precad.protos.tls.files import TlsFiles

DatasetName: TypeAlias = Literal[
    "digits",
    "mnist",
    "fashion-mnist",
    "emnist-digits",
    "emnist-letters",
    "emnist-balanced",
    "emnist-byclass",
    "cifar10",
    "airline-tweets",
    "sentiment140",
    "sentiment140-50k",
]
AttackName: TypeAlias = Literal[
    "none",
    "scaled",
    "wrap",
    "nan",
    "inconsistent-shares",
    "replay",
    "wrong-length",
    "late",
    "false-proof",
    "inconsistent-proof",
    "replayed-proof",
    "out-of-range",
    "label-flip",
    "random-labels",
    "mirrored-labels",
    "sign-flip",
    "gradient-noise",
    "feature-noise",
    "gaussian-features",
    "pixel-backdoor",
    "optimised-backdoor",
    "triangle-backdoor",
    "distributed-backdoor",
    "semantic-backdoor",
    "poisoned-records",
    "alie",
    "inner-product",
    "min-max",
    "stat-opt",
    "fang-trim",
    "adaptive",
]
"""Those of `precad.clients.attacks`."""
WITHHELD: Final = re.compile(r"key|secret|password|token|credential", re.IGNORECASE)
"""Names of parameters of a user's own class whose values are not shown."""
DIVIDED: Final = (
    "pixel-backdoor",
    "optimised-backdoor",
    "triangle-backdoor",
    "distributed-backdoor",
    "semantic-backdoor",
)
"""Attacks that act upon the number of the round's attackers, where they have a folder to tell one another."""
REACTING: Final = ("alie", "inner-product", "min-max", "stat-opt", "fang-trim", "adaptive")
"""Attacks that act upon what others send. Whatever a further attacker changes in these is not only its own upload."""
PartitionName: TypeAlias = Literal["iid", "shards", "dirichlet", "user"]
LabelName: TypeAlias = Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
"""The column with the labels, or the columns."""
FILE_KINDS: Final = ("csv", "parquet", "npz", "folder", "datasets")
"""Kinds of files that `records` may name: `csv:PATH` and so on. Anything else before the colon is a module."""
FLOWER: Final = "flower"
NVFLARE: Final = "nvflare"
SCRIPT: Final = ".py"
"""How the file of a script for NVFLARE's client API ends."""
_OF_TRAINERS: Final = ("python", "config", "node", "timeout_s", "output")
_OF_RECORDS: Final = ("label", "dealt")
_OF_DATASETS: Final = ("dataset", "classes", "download")


def require_source(source: str) -> str:
    """Return what names records. Raises ValueError for anything else."""
    kind, _, place = source.partition(":")
    is_module = all(part.isidentifier() for part in kind.split("."))
    if not place or not is_module or (kind not in FILE_KINDS and not place.isidentifier()):
        kinds = ", ".join(f"{kind}:PATH" for kind in FILE_KINDS)
        raise ValueError(f"expected one of {kinds}, or module:function, found {source!r}")
    return source


class Attacking(BaseModel, frozen=True, extra="forbid", strict=True):
    """Say what a malicious client does, by a name alone or a table."""

    kind: AttackName | str
    """A name of `precad.clients.attacks`, or `package.module:Class`."""
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Fields of the attack's class, by name."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        """Take a name for a table with nothing else. Raises ValueError for what is no attack's name."""
        if isinstance(given, Attacking):
            return given
        found = given if isinstance(given, dict) else {"kind": given}
        kind = found.get("kind")
        is_path = isinstance(kind, str) and all(part.isidentifier() for part in kind.replace(":", ".", 1).split("."))
        if kind not in get_args(AttackName) and not (is_path and ":" in str(kind)):
            known = ", ".join(map(repr, get_args(AttackName)))
            raise ValueError(f"expected {known}, or package.module:Class, found {kind!r:.80}")
        return found

    def __str__(self) -> str:
        """Return the kind, and its parameters where there are any, for people: without what may be a secret."""
        shown = {name: "REDACTED" if WITHHELD.search(name) else value for name, value in self.parameters.items()}
        told = ", ".join(f"{name} = {value}" for name, value in sorted(shown.items()))
        return f"{self.kind} ({told})" if told else self.kind


class ClientConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The clients of one process, or of one machine."""

    certificates: ConfigPath
    """Folder with one sub-folder per client id, holding `cert.pem` and `key.pem`."""
    key_passphrase_file: ConfigPath | None = None
    """File with the passphrase that all these keys are encrypted under (mode 0600). Without one, it is in the
    environment, in PRECAD_KEY_PASSPHRASE; keys in the clear need neither."""
    authority: ConfigPath
    """The authority's certificate (PEM)."""
    aggregator_a_certificate: ConfigPath | None = None
    """Aggregator A's certificate. Given one, a client trusts exactly this one as A's, instead of any that the
    authority has signed. Whoever holds the authority's key then cannot pass for A."""
    aggregator_b_certificate: ConfigPath | None = None
    """Aggregator B's, likewise. Set both or none."""
    dataset: DatasetName = "digits"
    """Where the records come from. `digits` are bundled; the others lie in the folder that the environment variable
    PRECAD_DATA names (docs/guides/data.md), or are downloaded where `download` allows it."""
    records: Annotated[str, Field(min_length=1)] | None = None
    """Records of the client's own, in place of `dataset`: `csv:PATH`, `parquet:PATH`, `npz:PATH`, `folder:PATH` (images
    by class), `datasets:PATH` (Hugging Face), or `module:function` (docs/guides/own-records.md). Paths and modules are
    looked for in `folder`, then in the current folder. `{client}` stands for the client's id."""
    label: LabelName | None = None
    """The column of `records` that holds the label; of `npz:` and `datasets:` unless it is `labels` or `label`. A list
    names several, of which a label takes a number each: for losses on numbers (`multi-label`, `mse`, `huber`)."""
    holdout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    """The share of the records that is not trained on, each by a keyed hash of its content. The client evaluates models
    on them (`task.evaluation = "clients"`). None: a fifth in a local run on `records`, which measures the accuracy, or
    of such a task; nothing elsewhere."""
    holdout_seed: Annotated[int, Field(ge=0)] = 0
    """Another one keeps other records. Protects nobody."""
    dealt: bool = False
    """Whether `records` is one source that is dealt over the task's clients, by `partition`. A local run says so
    itself. In a deployment each client has its own."""
    base_model: Annotated[str, Field(min_length=1)] | None = None
    """The safetensors file of `task.base_model_sha256`. Looked for as paths of `records` are."""
    adapter: Annotated[str, Field(min_length=1)] | None = None
    """The file of `task.adapter_sha256`; `adapter.safetensors` unless it is named."""
    adapter_rank: Annotated[int, Field(ge=1)] | None = None
    """How many columns of each adapter's B are trained here, the first ones; all where none is named."""
    folder: Annotated[ConfigPath, Field(validate_default=True)] = Path()
    """Where `records` and modules of the user's own are looked for first: the configuration's folder."""
    classes: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Only the records of these classes, in both halves; all where none is named."""
    partition: PartitionName = "iid"
    """How records are spread over the task's clients, in the order of client ids. `iid` deals after a shuffle; `shards`
    deals shards of records sorted by label; `dirichlet` draws proportions of each class; `user` deals whole users."""
    partition_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of that deal. Protects nobody."""
    shards_per_client: Annotated[int, Field(ge=1)] = 4
    """Shards of each client in partition `shards`; 100 clients then share 400 shards."""
    dirichlet_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """Concentration of partition `dirichlet`; the smaller, the fewer classes a client has."""
    download: bool = False
    """Whether a data set that is not there may be downloaded, through torchvision."""
    metrics: list[str] = Field(default_factory=list)
    """Metrics of local experiments beside the accuracy, by name, or `module:function` of (outputs, labels)."""
    memory_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory that a tile of per-record gradients may take, in MiB; 32 on a CPU and 2048 on a GPU unless set."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where gradients are computed; `auto` takes CUDA when there is one."""
    connect_timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    """How long to try to reach both aggregators."""
    reconnect_timeout_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 600.0
    """How long to try to reach an aggregator that was lost, before the client ends (exit code 4). 0: not at all."""
    state_dir: Annotated[ConfigPath, Field(validate_default=True)] = Path("client-state")
    """Where each client counts its uploads, so that a restart does not begin anew; made where there is none."""
    uploads_per_model: Annotated[int, Field(ge=1, le=1_000_000)] = DEFAULT_UPLOADS_PER_MODEL
    """m: how often a client uploads for one model while no round is committed. Asked once more, it ends (exit code 3):
    a server that deviates learns a bit of every upload of a round that it then loses. At most 3 in mode `proved`."""
    trainer: Annotated[str, Field(min_length=1)] | None = None
    """Code of your own that trains in the place of Algorithm 2, in a process of its own. It is
    `module:function`, or `flower:module:app` for a Flower ClientApp, or `nvflare:script.py` for a script of NVFLARE's
    client API. Only in tasks of `user-dp-fedavg` and `fedavg` (docs/guides/own-records.md)."""
    trainer_python: ConfigPath | None = None
    """The interpreter that runs it, with its packages; precad's own unless set. It need not have precad."""
    trainer_config: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Settings for the trainer: Flower's `run_config`. `{client}` in a text stands for the client's id. NVFLARE's
    scripts find them in `get_config()`; `script_args` are their arguments, `exchange_format` is numpy or pytorch."""
    trainer_node: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Settings of this client's place: Flower's `node_config`, beside `partition-id` and `num-partitions`."""
    trainer_timeout_s: Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)] | None = None
    """How long a round's training may take; at most, and unless set, four fifths of `task.submit_timeout_s`."""
    trainer_memory_mb: Annotated[int, Field(ge=64)] = 8192
    """Private memory that each of its processes may take, and the size of the folders in memory that it may write to.
    Memory that processes share, and how many there are, only your service manager bounds."""
    trainer_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads that its numerical libraries are told to take."""
    trainer_isolation: Literal["required", "best-effort"] = "required"
    """Whether a client starts no trainer where the kernel refuses to hide keys, network, processes and files from it.
    With `best-effort` it starts. The log at the start and `precad check` name each wall that this kernel lacks."""
    trainer_output: ConfigPath | None = None
    """File that gets what the trainer prints, which may be records (mode 0600). Nothing is kept without one."""
    queries: QueryConsent | None = None
    """Columns that the clients answer queries about, and their limit (`precad query`). None: no query is answered."""
    holder: HolderLimit | None = None
    """The data holder's limit over all tasks, queries and simulations, and the ledger that counts them (`precad
    holder`). None: a task's own budgets are the only ones."""
    attacks: dict[str, Attacking] = Field(default_factory=dict)
    """Experiments only: clients that misbehave, and how: the name of an attack, `package.module:Class`, or a table
    `{ kind = NAME, parameters = { .. } }` (docs/guides/simulation.md)."""
    colluders: ConfigPath | None = None
    """Experiments only: folder that attackers share, in which each puts its honest updates for the others to read. A
    local run makes one where an attack needs it."""

    @field_validator("records")
    @classmethod
    def _check_source(cls, source: str | None) -> str | None:
        return None if source is None else require_source(source)

    @field_validator("trainer")
    @classmethod
    def _check_trainer(cls, trainer: str | None) -> str | None:
        if trainer is not None and trainer.startswith(f"{NVFLARE}:") and trainer.endswith(SCRIPT):
            return trainer
        module, _, name = (trainer or "module:name").removeprefix(f"{FLOWER}:").partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            forms = f"module:function, {FLOWER}:module:app or {NVFLARE}:script{SCRIPT}"
            raise ValueError(f"expected {forms}, found {trainer!r}")
        return trainer

    @model_validator(mode="after")
    def _trainer_or_its_fields(self) -> Self:
        found = [name for name in _OF_TRAINERS if getattr(self, f"trainer_{name}")]
        if self.trainer is None and found:
            raise ValueError(f"trainer_{found[0]} is of a trainer: expected client.trainer beside it, found none")
        return self

    @model_validator(mode="after")
    def _dataset_or_records(self) -> Self:
        refused = _OF_RECORDS if self.records is None else _OF_DATASETS
        found = [name for name in refused if name in self.model_fields_set and getattr(self, name)]
        if found and self.records is None:
            raise ValueError(f"{found[0]} is of own records: expected client.records beside it, found none")
        if found:
            raise ValueError(f"records, {found[0]}: expected one of both, found both")
        return self

    @model_validator(mode="after")
    def _pins_both_or_none(self) -> Self:
        if (self.aggregator_a_certificate is None) != (self.aggregator_b_certificate is None):
            names = "aggregator_a_certificate, aggregator_b_certificate"
            raise ValueError(f"{names}: expected both or neither, found one")
        return self

    @property
    def attackers(self) -> frozenset[str]:
        """Return the clients that have an attack."""
        return frozenset(client for client, attacking in self.attacks.items() if attacking.kind != "none")

    @property
    def reacting_attack(self) -> str | None:
        """Return the kind of an attacker who may act upon what others of its round send; None where nobody does.

        Code of a user's own may do anything.
        """
        reacting = REACTING if self.colluders is None else (*REACTING, *DIVIDED)
        kinds = (attacking.kind for attacking in self.attacks.values())
        return next((kind for kind in kinds if kind in reacting or ":" in kind), None)

    def look_around(self) -> None:
        """Look for modules and files of the user's own where this section says."""
        look_in(self.folder)
        offer(self.base_model, self.adapter)

    @property
    def data_name(self) -> str:
        """Return what reports call the records: the data set, or the kind and name of their source, without folders."""
        if self.records is None:
            return self.dataset
        kind, _, place = self.records.partition(":")
        return f"{kind}:{Path(place).name}"

    @property
    def pins(self) -> tuple[Path | None, Path | None]:
        """Return the certificates that alone are trusted as A's and B's, if any."""
        return self.aggregator_a_certificate, self.aggregator_b_certificate

    def certified(self, clients: Iterable[str]) -> list[str]:
        """Return those whose certificate is here. One that only asked for its own has a folder, too."""
        return [client for client in clients if self.tls(client).certificate.is_file()]

    def tls(self, client: str) -> TlsFiles:
        """Return the files with what this client shows and trusts."""
        folder = self.certificates / client
        return TlsFiles(
            certificate=folder / "cert.pem",
            key=folder / "key.pem",
            authority=self.authority,
            key_passphrase_file=self.key_passphrase_file,
        )
