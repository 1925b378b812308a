"""Audit a deployment by what its members wrote down: a local run's folder, or folders that operators hand over.

    audit clients    coins, what each uploaded, and the models that were released to it; real ones their records too
    aggregators      who was in each committed round; its own noise, where an operator agreed to keep it

The seat of clients reads released models alone. A server's seat needs the noise that this server kept. Nothing is
changed, and files are verified as far as they are sealed.

An audit finds faults. It does not find a server that deceives it: everybody sees who audits, and in which coordinates.
So can a malicious client upload there, within C: servers are then accused, or a lack of noise is hidden.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing import canary_file
from precad.clients.auditing.canary_file import Canaries, Held
from precad.clients.auditing.kinks import Kinks
from precad.clients.auditing.real_file import RealSecrets
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError, UnfulfilledError, refusing
from precad.deploy.files.whole import write_whole
from precad.deploy.reporting.audits import FILE, MECHANISM
from precad.deploy.run_files.folder import require_deployed
from precad.deploy.shown.figures import audit_label
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.shares import Shares
from precad.lab.auditing.charges import charge_alarms
from precad.lab.auditing.real_record_rounds import Released, rounds_of
from precad.lab.auditing.real_record_verdicts import judged_real
from precad.lab.auditing.real_records import Vector, has_failed
from precad.lab.auditing.seat_verdicts import judged
from precad.lab.auditing.seats import Seat
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.errors import AuditError, SetupError
from precad.servers.store import audit_log, canary_noise
from precad.servers.store.folder import load_final_model, store_path

_SEATS: Final = {Role.AGGREGATOR_A.value: Seat.SERVER_A, Role.AGGREGATOR_B.value: Seat.SERVER_B}
FEWEST: Final = 2
"""Canaries, at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Evidence:
    """Everything that the members of a task wrote down, verified."""

    task: Task
    releases: Mapping[int, Mapping[str, Any]]
    """The committed rounds' entries in a server's log, by number."""
    evaluations: Mapping[int, Mapping[str, Any]]
    """Likewise, rounds that evaluated a model: they are charged, and release nothing of a canary."""
    first_model: str
    """Digest of the initial model."""
    last_model: NDArray[np.float32] | None
    """(d,): the final model, where a server's folder has it."""
    secrets: Mapping[str, Canaries]
    """By audit client."""
    real: Mapping[str, RealSecrets]
    """By real audit client."""
    kept: Mapping[Seat, Mapping[int, canary_noise.Opened]]
    """By seat of a server that kept its noise, and round."""

    @property
    def released(self) -> Released:
        """Return the committed rounds, as real audit clients need them."""
        rounds = [(str(release["model"]), frozenset(release["accepted"])) for release in self.releases.values()]
        return Released(self.first_model, rounds, self.last_model)

    @property
    def kinks(self) -> Kinks:
        """Return what all audit clients found together at kinks of the model."""
        held = (*self.secrets.values(), *self.real.values())
        return Kinks.of_all(one for secrets in held for one in secrets.kinks)

    @property
    def coins(self) -> NDArray[np.bool_]:
        """Return the coins of all canaries, (m,)."""
        coins = np.zeros(self.task.n_canaries, dtype=np.bool_)
        for client, places in self.task.canaries_of.items():
            coins[places.start : places.stop] = self.secrets[client].coins
        return coins


def audit_run(folder: Path, confidence: float = 0.95) -> dict[str, Any]:
    """Audit a local run, and write the report into its folder and its servers', for reports and dashboards.

    Raises: ConfigError, UnfulfilledError, AuditError, and what `evidence_of` raises.
    """
    require_deployed(folder, str(folder))
    deployment = configuration.load(folder / "config.toml")
    if deployment.client is None:
        raise ConfigError(f"--run: expected the folder of a local run, found no clients in {folder}")
    deployment.client.look_around()
    servers = [own.state_dir for own in (deployment.aggregator.a, deployment.aggregator.b) if own is not None]
    report = audit_deployment(deployment.task, servers, [deployment.client.state_dir], confidence)
    for place in (folder, *servers):
        write_report(place / FILE, report)
    return report


def require_output(path: Path) -> None:
    """Refuse, before anything is trained, a file that cannot be written. Raises ConfigError."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--output: expected a file in an existing folder, found {path}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--output: expected a folder to write to, found {path.parent}")


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as one JSON object. Raises ConfigError."""
    import json

    with refusing(OSError, f"--output: expected a file to write to, found {path}"):
        write_whole(path, (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())


def audit_deployment(
    task: Task, servers: Sequence[Path], clients: Sequence[Path], confidence: float = 0.95
) -> dict[str, Any]:
    """Audit a task by the folders of its members, and return the report.

    servers: state_dirs of one or both aggregators. clients: those of all audit clients. Raises as `audit_run`.
    """
    if not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: expected a number in [0.5, 1), found {confidence!r:.60}")
    evidence = evidence_of(task, servers, clients)
    seen = {seat: found for seat in Seat if (found := observed(evidence, seat)) is not None}
    if not seen:
        raise UnfulfilledError("expected a round with an audit client in it, found none: more rounds are needed")
    released = (evidence.releases, evidence.evaluations)
    charging = [line for folder in servers for line in charge_alarms(task, folder, *released)]
    return _report(evidence, seen, {"ledgers": len(servers), "alarms": charging}, confidence)


def _report(
    evidence: Evidence, seen: Mapping[Seat, Observed], charging: Mapping[str, Any], confidence: float
) -> dict[str, Any]:
    """Return the report as one JSON object. seen: by the seats that saw rounds. charging: what ledgers lack."""
    task, kinks = evidence.task, evidence.kinks
    draws = {(found.present.tobytes(), found.contributions.tobytes()) for found in seen.values()}
    shares = Shares.of(confidence, len(seen), has_real=bool(evidence.real), draws=len(draws))
    views = [
        judged(seat, task, found, shares) | {"rounds_left_out": len(evidence.releases) - len(found.scores)}
        for seat, found in seen.items()
    ]
    real = judged_real(task, rounds_of(task, evidence.released, evidence.real), views, shares)
    return {
        "name": task.name,
        "task_digest": task.digest().hex(),
        "label": audit_label(confidence),
        "confidence": confidence,
        "delta": task.delta,
        "mechanism": {name: float(getattr(task, name)) for name in MECHANISM},
        "records_per_person": task.records_per_person,
        "rounds": max(len(found.scores) for found in seen.values()),
        "canaries": task.n_canaries,
        "audit_clients": len(task.audit_clients),
        "observations": max(found.scores.size for found in seen.values()),
        "seats": views,
        "kinks": {"pairs": kinks.pairs, "most": kinks.most, "alarms": kinks.alarms},
        "charging": charging,
        **({} if real is None else {"real": real}),
        "passed": not (kinks.alarms or charging["alarms"] or has_failed(real))
        and not any(view["alarms"] or view["exceeded"] for view in views),
    }


def evidence_of(task: Task, servers: Sequence[Path], clients: Sequence[Path]) -> Evidence:
    """Read and verify what the members wrote down.

    Raises: ConfigError for a folder of another task, or one that is missing; SetupError, AuditError,
    PeerMismatchError, StateFileError for one that was changed.
    """
    if not task.audit_clients:
        raise ConfigError("task.audit_clients: expected clients that audit the task, found none")
    if task.n_canaries < FEWEST:
        raise ConfigError(f"task.audit_clients: expected at least {FEWEST} canaries, found {task.n_canaries}")
    if not servers:
        raise ConfigError("--server: expected the state_dir of an aggregator, found none")
    logs = {folder: audit_log.read(store_path(folder)) for folder in servers}
    begun = {folder: _begun(folder, log, task) for folder, log in logs.items()}
    first, *others = logs.values()
    for other in others:
        audit_log.compare(first, other)
    longest = max(logs.values(), key=lambda log: len(audit_log.releases(log)))
    releases, evaluations = (audit_log.releases(longest, [kind]) for kind in audit_log.RELEASES)
    kept = {
        _SEATS[role]: canary_noise.read(folder, task, role)
        for folder, (role, _) in begun.items()
        if (folder / canary_noise.FILE).exists()
    }
    return Evidence(
        task=task,
        releases=dict(sorted(releases.items())),
        evaluations=evaluations,
        first_model=next(iter(begun.values()))[1],
        last_model=_last_model(task, servers, releases),
        secrets={
            client: _secrets(task, client, clients, Canaries(task.n_canaries, task.clients[client]))
            for client in task.canaries_of
        },
        real={
            client: _secrets(task, client, clients, RealSecrets.unread(task.clients[client], task.n_parameters))
            for client in task.real_audit_clients
        },
        kept=kept,
    )


def _begun(folder: Path, log: Sequence[audit_log.Entry], task: Task) -> tuple[str, str]:
    """Return whose folder it is, and the initial model's digest. Raises ConfigError for another task's."""
    begun: Mapping[str, Any] = next((entry.fields for entry in log if entry.kind == "task"), {})
    ours, theirs = task.digest().hex(), str(begun.get("config", ""))
    if theirs != ours:
        raise ConfigError(f"{folder}: expected the task of digest {ours[:16]}, found {theirs[:16] or 'none'}")
    role = str(begun.get("role"))
    if role not in _SEATS:
        raise ConfigError(f"{folder}: expected an aggregator's state_dir, found that of {role}")
    return role, str(begun.get("model", ""))


def _secrets(task: Task, client: str, folders: Sequence[Path], unread: Held) -> Held:
    """Return an audit client's secrets, from the one of these folders that has them. Raises ConfigError."""
    for folder in folders:
        path = canary_file.path_of(folder, client, task.digest())
        if path.exists():
            return canary_file.read(path, canary_file.header_of(client, task.digest()), unread)
    searched = ", ".join(map(str, folders)) or "no folder"
    raise ConfigError(f"--clients: expected the state_dir of audit client {client}, found no canaries in {searched}")


def _last_model(
    task: Task, servers: Sequence[Path], releases: Mapping[int, Mapping[str, Any]]
) -> NDArray[np.float32] | None:
    """Return the final model (d,); None where no folder holds it."""
    last = releases[max(releases)]["model"] if releases else None
    for folder in servers:
        try:
            vector = load_final_model(folder, task.dim)
        except SetupError:
            continue
        if convert.sha256(convert.model_to_bytes(vector)).hex() == last:
            return vector
    return None


def observed(evidence: Evidence, seat: Seat) -> Observed | None:
    """Return what a seat saw in the rounds that it saw whole; None where there are none with an audit client in them.

    Raises AuditError where a client's file does not say what it uploaded to a round that accepted it.
    """
    heads = _heads(evidence) if seat is Seat.CLIENTS else []
    scores, own, added, present = [], [], [], []
    for t, (number, release) in enumerate(evidence.releases.items()):
        of_round = _moved(evidence.task, heads, t) if seat is Seat.CLIENTS else _opened(evidence, seat, number)
        if of_round is None:
            continue
        contributed, was_there = _contributed(evidence, t, release)
        scores.append(of_round[0])
        own.append(of_round[1])
        added.append(contributed)
        present.append(was_there)
    if not any(row.any() for row in present):
        return None
    own_noise = None if seat is Seat.CLIENTS else np.array(own)
    step = 2.0**-evidence.task.frac_bits / evidence.task.record_clip
    sizes = [places.stop - places.start for places in evidence.task.canaries_of.values()]
    of_client = np.repeat(np.arange(len(sizes)), sizes)
    return Observed(np.array(scores), np.array(added), np.array(present), evidence.coins, own_noise, step, of_client)


def _heads(evidence: Evidence) -> list[NDArray[np.float32] | None]:
    """Return the released models at the canaries' coordinates, T + 1 of them; None for one that nobody wrote down."""
    known = {one.model_digest.hex(): one.head for secrets in evidence.secrets.values() for one in secrets.contributions}
    known[evidence.first_model] = np.zeros(evidence.task.n_canaries, dtype=np.float32)
    digests = [str(release["model"]) for release in evidence.releases.values()]
    if digests and evidence.last_model is not None:
        known[digests[-1]] = evidence.last_model[evidence.task.canary_coordinates]
    return [known.get(digest) for digest in (evidence.first_model, *digests)]


def _moved(task: Task, heads: Sequence[NDArray[np.float32] | None], t: int) -> tuple[Vector, Vector] | None:
    """Return W / eta (theta_(t+1) - theta_t) in units of -R, and no noise of its own."""
    before, after = heads[t], heads[t + 1]
    if before is None or after is None:
        return None
    factor = -task.divisor / (task.rate(task.learning_rate, t) * task.record_clip)
    return (after.astype(np.float64) - before.astype(np.float64)) * factor, np.zeros(0)


def _opened(evidence: Evidence, seat: Seat, number: int) -> tuple[Vector, Vector] | None:
    """Return the opened sum minus that server's noise, and the noise, in units of -R."""
    kept = evidence.kept.get(seat, {}).get(number)
    if kept is None:
        return None
    return _in_clips(kept.total - kept.noise, evidence.task), _in_clips(kept.noise, evidence.task)


def _contributed(evidence: Evidence, t: int, release: Mapping[str, Any]) -> tuple[Vector, NDArray[np.bool_]]:
    """Return what canaries added to the round after t committed ones, in units of R, and whose client was in it.

    A client that was asked again for the same model wrote down each of its updates; the last one was accepted.
    """
    task = evidence.task
    added, present = np.zeros(task.n_canaries), np.zeros(task.n_canaries, dtype=np.bool_)
    for client, places in task.canaries_of.items():
        if client not in release["accepted"]:
            continue
        found = [one for one in evidence.secrets[client].contributions if one.n_committed == t]
        if not found:
            raise AuditError(f"round {release['round']}: expected what {client} added in its file, found nothing")
        added[places.start : places.stop] = _in_clips(found[-1].uploaded, task)
        present[places.start : places.stop] = True
    return added, present


def _in_clips(words: RingArray, task: Task) -> Vector:
    """Return integers of the grid in units of -R: an update is minus its gradients."""
    return -fixed_point.decode(words, task.frac_bits) / task.record_clip
