"""A whole deployment on one machine: the dealer, both aggregators and the clients, each an operating-system process.

The runner is the operator. It makes certificates for this run, resolves the configuration and starts the processes. It
watches both aggregators over gRPC, measures the public model on the held-out records, and writes the run folder. It
holds no share and no seed, and takes no part in the protocol.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.models import networks
from precad.clients.models.metrics import has_accuracy
from precad.clients.training import evaluation
from precad.deploy.authority import pki
from precad.deploy.conducts import wanted_of
from precad.deploy.configuration.initial_model import given_to_run
from precad.deploy.configuration.local import resolve
from precad.deploy.configuration.measures import learning_of, public_measures, remark_on_classes
from precad.deploy.configuration.sections import Deployment
from precad.deploy.configuration.trainers import NO_RECORD_FIGURE, counted
from precad.deploy.errors import REFUSED, UNREACHABLE, ConfigError, InterruptedRunError, RunFailedError
from precad.deploy.localhost import resuming
from precad.deploy.localhost.dashboards import Dashboards
from precad.deploy.localhost.fork_server import CLIENTS, SERVERS
from precad.deploy.localhost.forks import ForkedChildren, Forks
from precad.deploy.localhost.grouping import client_groups
from precad.deploy.localhost.guarding import Guard, until_over
from precad.deploy.localhost.needs import (
    remark_on_room,
    require_engines_and_memory,
    require_free_ports,
    require_room,
    require_trainer,
)
from precad.deploy.localhost.observing import Observation, Observers, Progress, round_metrics
from precad.deploy.localhost.processes import Child, Children
from precad.deploy.localhost.summary import conditions_of
from precad.deploy.localhost.watch import LiveTable, warning_of
from precad.deploy.run_files import state
from precad.deploy.run_files.client_evaluations import client_evaluations
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.public_quality import last_public_figures
from precad.deploy.run_files.spent import costs_of_run, epsilon_of_a_client, larger_of, spent_in_run
from precad.deploy.run_files.state import INTERRUPTED_RUN
from precad.dp.accountants import pld
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.slack import why_no_bound
from precad.dp.accountants.task_cost import TaskCost
from precad.mpc.gate_names import require_gate
from precad.protos.precad.v1 import control_pb2
from precad.protos.task.evaluation import n_due
from precad.protos.task.model_update import has_diverged, learnt_bound
from precad.protos.task.target import TARGET, said
from precad.protos.tls.identity import AGGREGATORS, Identity, Role
from precad.servers.store.folder import read_earlier
from precad.servers.store.record import to_message

CERTIFICATES_AT_ONCE = 8
_LOOKED_AT = 16
"""Test records on which a model is looked at for numbers that are not finite."""
_SHARE_OF_LOOKS = 0.02
"""Share of the time that these looks take, where rounds are short. The first model is looked at, and the last."""
_INTERRUPTED = "interrupted; every process was stopped"
T = TypeVar("T")


class LocalRun:
    """One run. `run` returns its summary."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        output: Path,
        console: Console,
        *,
        measured_every: int = 1,
        forks: Forks | None = None,
        resumes: bool = False,
    ) -> None:
        """Validate everything, then write the folder. Raises ConfigError, GateUnavailableError,
        EngineUnavailableError, TrainerError, PkiError.

        `measured_every`: rounds between two measured models, which takes processor time from the servers while they
        work; with 0, only the final model is measured. `forks` starts the processes; without it, each is an interpreter
        of its own. `resumes`: continue the run in the folder, in which nothing is written before `run`.
        """
        self._started = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupted = asyncio.Event()
        self._measured_every, self._console = measured_every, console
        folder, self._resumes, self._is_closed = RunFolder(output.absolute()), resumes, False
        if resumes:
            resuming.require_resumable(output)
        self._resolved, self.deployment = self._resolve(raw, folder)
        if resumes:
            resuming.require_same(self.deployment, folder)
        require_free_ports(self.deployment.network)
        if not self.deployment.task.is_proved:
            require_gate(self.deployment.task.gate)
        require_engines_and_memory(self.deployment)
        require_room(self.deployment)
        if not resumes:
            self._remark(remark_on_room(self.deployment))
        require_trainer(self.deployment)
        self.folder = folder if resumes else self._new_folder(output)
        task = self.deployment.task
        if (target := raw["task"].get(TARGET)) is not None:
            self._remark(said(target, task))
        self._dashboards = Dashboards.of(self.deployment, self.folder)
        self._dashboards.announce(console)
        self._children = Children(self.folder.logs) if forks is None else ForkedChildren(self.folder.logs, forks)
        self._progress, self._earlier_s, self._has_diverged = Progress(), 0.0, False
        self._looks_at = 0.0

    def _resolve(self, raw: Mapping[str, Any], folder: RunFolder) -> tuple[dict[str, Any], Deployment]:
        """Return the configuration as written and as validated, and keep what measures the model.

        Raises ConfigError, DataError.
        """
        resolved, deployment, split = resolve(raw, folder)
        assert deployment.client is not None  # resolve() supplied it
        self._test, self._learning = split.test, learning_of(deployment.task, deployment.client, split.test)
        public_measures(deployment)
        self._remark(remark_on_classes(split.train))
        self._wanted = wanted_of(deployment.client, deployment.task, split.test)
        return resolved, deployment

    def _remark(self, line: str | None) -> None:
        """Print what an operator should know before the start, if there is anything."""
        if line:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _initial(self) -> NDArray[np.float32]:
        """Return the public model that the task starts from, (d,). Raises ConfigError, SetupError."""
        if (given := given_to_run(self.deployment)) is not None:
            return given.parameters
        return networks.initial_vector(self.deployment.task)

    def _new_folder(self, output: Path) -> RunFolder:
        """Make the folder and what every process needs. The configuration comes last: where it is, all of it is."""
        self.folder = RunFolder.create(output)
        self._issue_certificates()
        np.save(self.folder.initial_model, self._initial())
        self.folder.write_config(self._resolved)
        return self.folder

    def _issue_certificates(self) -> None:
        """Make the run's authority, and a certificate for everybody: several at once, as each waits for the disk."""
        pki.create_authority(self.folder.pki)
        absent = {Role.CLIENT, *({Role.DEALER} if self.deployment.dealer is None else ())}
        servers = [Identity(role, role.value) for role in Role if role not in absent]
        clients = [Identity(Role.CLIENT, client) for client in self.deployment.task.clients]
        with ThreadPoolExecutor(CERTIFICATES_AT_ONCE) as threads:
            list(threads.map(partial(pki.issue, self.folder.pki), (*servers, *clients)))

    async def run(self, *, stays: bool = False) -> dict[str, Any]:
        """Raises RunFailedError when a server or the dealer ends early, InterruptedRunError when it is interrupted.

        Model and summary of an interrupted run are those of the rounds that there were. `stays`: leave to `close` the
        processes of a run that has ended well, for their dashboards.
        """
        try:
            with state.held(self.folder.root, resumes=self._resumes):
                return await self._run(stays=stays)
        except BaseException:
            await asyncio.to_thread(self.close)
            raise

    async def _run(self, *, stays: bool) -> dict[str, Any]:
        """Run while the folder is ours."""
        try:
            if self._resumes:
                await asyncio.to_thread(self._take_up)
            if self._progress.ended:
                await asyncio.to_thread(self.close)
            else:
                await self._train(stays=stays)
        except InterruptedRunError:
            raise InterruptedRunError(self._keep_rounds()) from None
        return self._finish()

    def close(self) -> None:
        """Stop every process, servers first: a round whose clients leave would be committed, and paid, for nothing.

        Closing twice does nothing.
        """
        if not self._is_closed:
            self._is_closed = True
            self._children.close(first=[role.value for role in (Role.DEALER, Role.AGGREGATOR_A, Role.AGGREGATOR_B)])

    def _take_up(self) -> None:
        """Take in the rounds before, which nobody else writes any more. Raises as `resuming.read_before`."""
        before = resuming.read_before(self.folder, self.deployment)
        self._progress = Progress(before.task_id, before.lines, before.parameters, before.ended)
        self._earlier_s = before.seconds
        self.folder.keep_logs()
        self.folder.write_config(self._resolved)
        self._take_rounds(before)
        done = f"{len(self._progress.metrics)} of {self.deployment.task.rounds} rounds are done"
        self._console.print(f"continuing the run in {self.folder.root}: {done}", highlight=False, soft_wrap=True)

    def _take_rounds(self, before: resuming.Before) -> None:
        """Take in rounds that both servers committed and that have no line, and the model after them."""
        if before.parameters is not None:
            self._progress.final = before.parameters
        for number, (a, b) in enumerate(before.further, start=1):
            self.folder.outdate()
            parameters = before.parameters if number == len(before.further) else None
            self._progress.metrics.append(self._line(to_message(a), to_message(b), parameters))
        self.folder.write_all_metrics(self._progress.metrics)

    async def _train(self, *, stays: bool) -> None:
        """Start every process, show the rounds, and stop whoever is left, unless they stay."""
        self._loop = loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()  # signals are the main thread's
        signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        for number in signals:
            loop.add_signal_handler(number, self._interrupted.set)
        task, n_done, is_over = self.deployment.task, len(self._progress.metrics), False
        algorithm = "" if task.rules.is_default else f"{task.algorithm}, "
        dealer = "" if task.is_proved else "a dealer, "
        title = f"{task.name}: {algorithm}two aggregators, {dealer}{len(task.clients)} clients"
        try:
            with LiveTable(self._console, title=title, rounds=task.rounds, done=n_done) as table:
                table.why_no_bound = why_no_bound(task.delta, task.delta_slack) if task.is_proved else ""
                if (warning := warning_of(task)) is not None:
                    table.warn(warning)
                for condition in conditions_of(task, self._earlier):
                    table.note(f"every epsilon rests on: {condition}")
                await self._watch_until_done(table, self._interrupted)
            is_over = True
        finally:
            await asyncio.to_thread(self._let_close if stays and is_over else self.close)
            for number in signals:
                loop.remove_signal_handler(number)

    def _let_close(self) -> None:
        """Wait for servers that show the task's end; stop those that never leave: the task is over, and is kept."""
        try:
            resuming.wait_until_closed(self.folder)
        except ConfigError:
            self.close()

    def _keep_rounds(self) -> str:
        """Write the model and the summary of an interrupted run, and say of how many rounds they are.

        The model is the last one that both servers hold, whatever of it we were told; before a round, the initial one.
        """
        self._take_rounds(resuming.read_before(self.folder, self.deployment))
        n_rounds, planned = len(self._progress.metrics), self.deployment.task.rounds
        final = self._progress.final if n_rounds else self._initial()
        root, config = (shlex.quote(str(path)) for path in (self.folder.root, self.folder.config))
        kept = f"{n_rounds} of {planned} rounds are kept in {self.folder.root}"
        if final is None:  # the servers' databases are elsewhere
            return f"{_INTERRUPTED}; {kept}, without a model"
        if not n_rounds:
            if self.deployment.task.query is not None:  # there is no answer to keep
                return _INTERRUPTED
            kept = f"no round was done: {self.folder.root} holds the initial model"
        self._progress.ended = f"{INTERRUPTED_RUN} {n_rounds} of {planned} rounds"
        self._summarise(final)
        return f"{_INTERRUPTED}; {kept}; `precad run {config} --output {root} --resume` continues"

    def interrupt(self) -> None:
        """End the run with InterruptedRunError, from another thread; one that is yet to begin ends at once."""
        if self._loop is None:
            self._interrupted.set()
        else:
            with suppress(RuntimeError):  # the loop is closed, so the run is over
                self._loop.call_soon_threadsafe(self._interrupted.set)

    async def _watch_until_done(self, table: LiveTable, interrupted: asyncio.Event) -> None:
        stopping = asyncio.create_task(interrupted.wait())
        await self._unless_stopped(partial(self._children.prepare, CLIENTS), stopping)
        await self._unless_stopped(self._start_clients, stopping)
        await self._unless_stopped(partial(self._children.prepare, SERVERS), stopping)
        servers = await self._unless_stopped(self._start_servers, stopping)
        if why := self._children.refusal:
            table.warn(f"each process loads its code by itself, which takes longer: {why}")
        guard = Guard(servers, self._children, self.folder.logs, self._progress)
        observers = Observers(self.deployment, self._progress, self._take_in)
        watching = asyncio.create_task(observers.run(table))
        guarding = asyncio.create_task(guard.run(table))
        linking = asyncio.create_task(self._dashboards.show_links(self._console, table.note))
        try:
            await until_over(watching, guarding, stopping, observers)
            if stopping.done():
                raise InterruptedRunError(_INTERRUPTED)
            if not watching.done():
                watching.cancel()
                await asyncio.to_thread(self._take_missed, table)
            if (alone := guard.why_alone()) is not None:  # rounds without anybody are soon over
                raise alone
        finally:
            for task in (watching, stopping, guarding, linking):
                task.cancel()
            await asyncio.gather(watching, stopping, guarding, linking, return_exceptions=True)

    def _take_missed(self, table: LiveTable) -> None:
        """Take in a short task that was over before we watched it. Raises RunFailedError, as `resuming.read_before`."""
        before, progress = resuming.read_before(self.folder, self.deployment), self._progress
        if not before.ended:
            raise RunFailedError(
                "both aggregators ended, and no file of theirs says that the task is over", exit_code=UNREACHABLE
            )
        n_known = len(progress.metrics)
        progress.task_id, progress.ended = before.task_id, before.ended
        self._take_rounds(before)
        for metrics in progress.metrics[n_known:]:
            table.add(metrics)

    async def _unless_stopped(self, work: Callable[[], T], stopping: asyncio.Task[Any]) -> T:
        """Do what may wait for code to be loaded. Raises InterruptedRunError."""
        working = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await asyncio.to_thread(self._children.hurry)
            await asyncio.gather(working, return_exceptions=True)  # or it starts processes that nobody stops
            raise InterruptedRunError(_INTERRUPTED)
        return working.result()

    def _start_servers(self) -> list[Child]:
        """Start the processes without whom there is no run. Each waits for the others."""
        of_dealer, of_a, of_b = (
            str(self.config_of(role)) for role in (Role.DEALER, Role.AGGREGATOR_A, Role.AGGREGATOR_B)
        )
        has_dealer = self.deployment.dealer is not None
        return [
            *([self._children.start("dealer", "serve", "dealer", of_dealer)] if has_dealer else []),
            self._children.start("aggregator-a", "serve", "aggregator", of_a, "--role", "a"),
            self._children.start("aggregator-b", "serve", "aggregator", of_b, "--role", "b"),
        ]

    def config_of(self, server: Role) -> Path:
        """Return the configuration that a server reads: the run's, unless a benchmark has another one for it."""
        return self.folder.config

    def _start_clients(self) -> None:
        """Start the clients, which try to reach the servers until those listen.

        No round is over before we watch: the first one needs every client, and we try as often as each of them.
        """
        for group in client_groups(self.deployment):
            if self._interrupted.is_set():
                return
            name = group[0] if len(group) == 1 else f"{group[0]}-to-{group[-1]}"
            flags = [part for client in group for part in ("--id", client)]
            self._children.start(name, "client", str(self.folder.config), *flags)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _take_in(self, a: Observation, b: Observation, table: LiveTable) -> None:
        """Write down and show a finished round."""
        metrics = await asyncio.to_thread(self._line, a.record, b.record, a.parameters)
        self.folder.outdate()
        self._progress.metrics.append(metrics)
        self._progress.final = a.parameters  # None where we are late: the last round's comes in any case
        self.folder.append_metrics(metrics)
        table.add(metrics)
        if a.parameters is not None and not self._has_diverged:
            await asyncio.to_thread(self._look_for_divergence, metrics["round"], a.parameters, table)
        if len(self._progress.metrics) == 1:
            await asyncio.to_thread(pld.warm_up)  # for the summary: nobody waits for the accountants before

    def _look_for_divergence(self, t: int, parameters: NDArray[np.float32], table: LiveTable) -> None:
        """Say once, by the public model alone, that clients learn nothing more. The run goes on, to end with code 3.

        Outputs and losses are looked at for a share of the time, on cores that servers and clients need.
        """
        own, loss, began = parameters[: self.deployment.task.n_parameters], self._learning.loss, time.monotonic()
        if began < self._looks_at and not has_diverged(own):
            return
        some = self._test.take(np.arange(min(_LOOKED_AT, len(self._test))))
        is_finite = evaluation.is_finite(own, self._learning.build(0), some, loss)
        self._looks_at = began + (time.monotonic() - began) / _SHARE_OF_LOOKS
        if is_finite:
            return
        self._has_diverged = True
        table.warn(
            f"round {t}: the training diverged: the model, its outputs or its loss are not finite; "
            "further rounds spend the budget on noise"
        )

    @cached_property
    def _costs(self) -> tuple[TaskCost, TaskCost]:
        """Return what the ledgers count, earlier tasks too. The first round is charged before there is a line."""
        return costs_of_run(self.folder, self.deployment.task)

    @cached_property
    def _earlier(self) -> tuple[EarlierTask, ...]:
        """Return the finished tasks that servers are told to count. Raises SetupError, DpError."""
        servers = self.deployment.aggregator.a, self.deployment.aggregator.b
        found = (
            read_earlier(own, role) or () for own, role in zip(servers, AGGREGATORS, strict=True) if own is not None
        )
        return tuple(task for tasks in found for task in tasks)

    def _line(
        self, a: control_pb2.RoundRecord, b: control_pb2.RoundRecord, parameters: NDArray[np.float32] | None
    ) -> dict[str, Any]:
        """Return a round's line of metrics.jsonl. parameters: the model after it, (d,), where it is known."""
        quality: dict[str, Any] = {"accuracy": None}
        if parameters is not None and self._is_measured(a.round):
            quality = self._quality(parameters)
        metrics = round_metrics(a, b, accuracy=quality.pop("accuracy")) | quality
        due = n_due(self.deployment.task.evaluation_every, len(self._progress.metrics))
        return metrics | larger_of(*(epsilon_of_a_client(cost, a.round, due) for cost in self._costs))

    def _is_measured(self, t: int) -> bool:
        return self._measured_every > 0 and (t + 1) % self._measured_every == 0

    def _quality(self, parameters: NDArray[np.float32]) -> dict[str, Any]:
        """Return the accuracy, None where labels are no classes, the metrics that were asked for, and the attackers'
        success where they aim at anything."""
        model, found = parameters[: self.deployment.task.n_parameters], self._learning.build(0)
        is_right = has_accuracy(self._learning.loss, self._test.labels)
        others = evaluation.finite(evaluation.measured(model, found, self._test, self._learning.metrics))
        success = evaluation.attack_success(model, found, self._wanted)
        return {
            "accuracy": evaluation.accuracy(model, found, self._test) if is_right else None,
            **({"metrics": others} if others else {}),
            **({} if success is None else {"attack_success": success}),
        }

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        """Write the model and the summary. Raises RunFailedError where there was no round."""
        final = self._progress.final
        if final is None or not self._progress.metrics:
            raise RunFailedError(f"the task ended without a round: {self._progress.ended}", exit_code=REFUSED)
        return self._summarise(final)

    def _summarise(self, final: NDArray[np.float32]) -> dict[str, Any]:
        """Write this model, (d,), and the summary of the rounds that there were."""
        task, metrics = self.deployment.task, self._progress.metrics
        concluded = self._conclude(final)
        summary: dict[str, Any] = {
            "rounds": len(metrics),
            "clients": len(task.clients),
            "processes": len(self._children.all),
            **concluded,
            **last_public_figures(self.folder, task, metrics),
            **client_evaluations(self.folder, task, metrics),
            **({} if (bound := learnt_bound(final, task)) is None else {"learnt_bound": bound}),
            **spent_in_run(self.folder, task, metrics[-1] if metrics else None),
            "delta": task.delta,
            **({"rests_on": conditions} if (conditions := conditions_of(task, self._earlier)) else {}),
            "accepted": sum(len(m["accepted"]) for m in metrics),
            "rejected": sum(len(m["rejected"]) for m in metrics),
            "missing": sum(len(m["missing"]) for m in metrics),
            "rejected_clients": sorted({client for m in metrics for client in m["rejected"]}),
            **self._trainer(),
            "seconds_total": round(self._earlier_s + time.monotonic() - self._started, 3),
            "seconds_per_round": round(sum(m["seconds_total"] for m in metrics) / max(len(metrics), 1), 4),
            "bytes_client_up": sum(m["bytes"]["clients_to_a"] + m["bytes"]["clients_to_b"] for m in metrics),
            "bytes_server_link": sum(m["bytes"]["a_to_b"] + m["bytes"]["b_to_a"] for m in metrics),
            "gate": None if task.is_proved else task.gate,
            "mode": task.mode,
            "algorithm": task.algorithm,
            **({} if task.checks_norms else {"validation": task.validation}),
            "task": self._progress.task_id,
            "ended": self._progress.ended,
            **({"resumed": self.folder.times_resumed} if self._resumes else {}),
            "output": str(self.folder.root),
        }
        self.folder.write_summary(summary)
        return summary

    def _trainer(self) -> dict[str, Any]:
        """Return what the summary says of foreign trainers, where clients had any."""
        own = self.deployment.client
        if own is None or own.trainer is None:
            return {}
        of_record = {"epsilon_record": None, "no_epsilon_record": NO_RECORD_FIGURE}
        return {"trainer": {"name": own.trainer, **counted(own.state_dir), **of_record}}

    def _conclude(self, final: NDArray[np.float32]) -> dict[str, Any]:
        """Write the model, and return what the summary says of it."""
        parameters = final[: self.deployment.task.n_parameters]
        model = networks.trained(self._learning.build(0), parameters)
        torch.save(model.state_dict(), self.folder.model)
        is_finite = evaluation.is_finite(parameters, model, self._test, self._learning.loss)
        return {"model_is_finite": is_finite, **self._quality(final)}
