"""Mode `proved` takes its own part of delta, and every place that states an epsilon counts it.

Failure means: somebody is told an epsilon at a delta at which the mode does not keep it.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from precad.deploy.configuration.check_privacy import promised
from precad.deploy.guarantees.accounting import account_of_flags
from precad.deploy.guarantees.planning import task_of_run
from precad.deploy.localhost.summary import print_summary
from precad.deploy.oversight.status_shown import show_rounds, status_table
from precad.deploy.reporting.guarantees import guarantees_of
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.reporting.runs import Run
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, View
from precad.dp.accountants.slack import why_no_bound, with_slack
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from precad.servers.telemetry.status import RoundSummary, Status, epsilons_of
from tests.dp.accountants.test_slack import gaussian_delta, least_epsilon
from tests.harness.harness import small_task
from tests.harness.run_folders import changed, deployed

ETA = 3 * (2 + 1) * (2.0**-40 + 2.0**-65)
"""m (rounds + 1) (2^-40 + 2^-65), of theorem 2, for two rounds."""
DELTA, SIGMA = 4e-10, 4.0
ROOT = Path(__file__).resolve().parents[3]


def tasks(**changes: Any) -> tuple[Task, Task]:
    """A task of mode `proved` whose delta the mode half uses up, and the same in mode `masked`."""
    values = {"algorithm": "user-dp-fedavg", "noise_multiplier": SIGMA, "delta": DELTA, "frac_bits": 16} | changes
    return small_task(mode="proved", **values), small_task(**values)


def test_every_figure_of_a_task_is_at_the_root_of_the_closed_form(tmp_path: Path) -> None:
    proved, masked = tasks()
    expected = least_epsilon(math.sqrt(2) / SIGMA, ETA, DELTA)
    worst = least_epsilon(math.sqrt(proved.most_draws) / SIGMA, ETA, DELTA)
    for task, exact in ((proved, True), (masked, False)):
        with open_ledger(tmp_path / task.mode, task) as ledger:
            ledger.charge(0, ["alice"])
            ledger.charge(1, ["alice"])
            found = [
                ledger.statement(View.ONE_SERVER).epsilon,
                task_privacy(task).epsilon(View.ONE_SERVER, 2, task.delta),
                task_cost(task).of_view(View.ONE_SERVER, 2),
            ]
            discarded = [
                ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon,
                task_cost(task).view_if_discarded(View.ONE_SERVER),
                epsilons_of(task, dict.fromkeys(View, 0.0))[0].if_discarded,
            ]
            assert found == pytest.approx([expected] * 3, rel=1e-7) or not exact
            assert discarded == pytest.approx([worst] * 3, rel=1e-7) or not exact
            assert min(found + discarded) == min(found)
            if not exact:
                assert max(found) < 0.999 * expected
                assert max(discarded) < 0.999 * worst
    assert f"{math.ceil(worst * 100) / 100:.2f}" in promised(proved)
    assert promised(proved) != promised(masked)


def test_levels_and_several_runs_count_it_too(tmp_path: Path) -> None:
    delta = 1e-7
    proved, masked = tasks(algorithm="precad", delta=delta)
    with open_ledger(tmp_path / "a", proved) as ours, open_ledger(tmp_path / "b", masked) as theirs:
        for ledger in (ours, theirs):
            ledger.charge(0, ["alice"])
        for level in sorted(ledger.levels):
            assert ours.task_statement(level).epsilon > theirs.task_statement(level).epsilon
    privacy = task_privacy(proved)
    once, twice = (privacy.epsilon(View.ONE_SERVER, 2, delta, n) for n in (1, 2))
    assert once < twice  # two runs: each takes its part
    event = privacy.events[View.ONE_SERVER]
    assert event is not None
    assert PldAccountant().epsilon(event, 2, delta - (1 + math.exp(twice)) * 2 * ETA) <= twice


def test_where_clients_share_the_noise_the_uploads_of_all_whose_noise_counts_take_their_part() -> None:
    """Each of their uploads is spoilt with 2^-40, and the noise with it: the exact delta of the worst such law.

    The slack of one client's own uploads does not cover it.
    """
    clients, tau = {f"c{i:02d}": 10 for i in range(20)}, 20
    task = small_task(
        clients,
        mode="proved",
        algorithm="distributed-dp",
        non_colluding=tau,
        client_clip=1000.0,
        noise_multiplier=60.0,
        record_rate=1.0,
        servers_follow_protocol=True,
        frac_bits=12,
        delta=1e-9,
    )
    event = task_privacy(task).events[View.ONE_SERVER]
    assert event is not None
    n_uploads = tau * 3 * (task.rounds + 1)
    spoilt = -math.expm1(n_uploads * math.log1p(-(2.0**-40)))

    def exact(epsilon: float) -> float:
        return float((1 - spoilt) * gaussian_delta(epsilon, math.sqrt(2) / event.noise_multiplier) + spoilt)

    assert exact(task_privacy(task).epsilon(View.ONE_SERVER, 2, task.delta)) <= task.delta
    assert exact(with_slack(PldAccountant(), ETA).epsilon(event, 2, task.delta)) > task.delta
    assert task.delta_slack == pytest.approx(3 * (task.rounds + 1) * task.upload_slack)


def test_a_target_is_met_with_it() -> None:
    values = {"algorithm": "user-dp-fedavg", "delta": DELTA, "target_epsilon": 2.0, "frac_bits": 16}
    section = {"clients": {"alice": 10, "bob": 11}, "rounds": 2, "client_rate": 1.0, "record_rate": 0.5, **values}
    section |= {"record_clip": 1.0, "client_clip": 1.0, "learning_rate": 0.3, "dim": 24}
    proved, masked = Task(mode="proved", **section), Task(**section)
    assert least_epsilon(math.sqrt(2) / proved.noise_multiplier, ETA, DELTA) <= 2.0
    assert least_epsilon(math.sqrt(2) / (proved.noise_multiplier - 0.01), ETA, DELTA) > 2.0
    assert masked.noise_multiplier < proved.noise_multiplier


def test_a_budget_ends_a_task_while_it_is_kept(tmp_path: Path) -> None:
    proved, _ = tasks(rounds=40, lost_rounds=1, epsilon_budget_one_server=2.5, delta=6e-9)
    eta = 3 * 41 * (2.0**-40 + 2.0**-65)
    with open_ledger(tmp_path, proved) as ledger:
        n = 0
        while not ledger.would_exceed(["alice"]):
            ledger.charge(n, ["alice"])
            n += 1
        assert least_epsilon(math.sqrt(n) / SIGMA, eta, 6e-9) <= 2.5
        assert least_epsilon(math.sqrt(n + 1) / SIGMA, eta, 6e-9) > 2.5
        assert n == task_cost(proved).most_of_a_client < 40


def test_account_reads_the_mode_of_a_configuration() -> None:
    task = {
        "mode": "proved",
        "noise_multiplier": 2.0,
        "client_rate": 1.0,
        "record_rate": 0.1,
        "rounds": 2,
        "delta": DELTA,
        "record_clip": 1.0,
        "client_clip": 1.0,
        "dim": 24,
    }
    ours = account_of_flags({}, task, is_by_round=True)
    plain = account_of_flags({"frac_bits": 22}, {name: value for name, value in task.items() if name != "mode"})
    epsilon = ours["one_server"]["bound"]
    sigma = 2.0 / (1 + math.sqrt(24) * 2.0**-22)  # 22 bits: the most that C = 1 allows
    left = DELTA - (1 + math.exp(epsilon)) * ETA
    assert PldAccountant().epsilon(SampledGaussian(0.1, sigma), 2, left) <= epsilon
    assert plain["one_server"]["bound"] < epsilon == ours["by_round"]["one_server"]["bound"][-1]
    assert plain["one_server"]["if_discarded"]["rounds"] == ours["one_server"]["if_discarded"]["rounds"]
    assert plain["one_server"]["published"] == ours["one_server"]["published"]
    fewer = account_of_flags({"rounds": 1}, task)
    assert fewer["one_server"]["bound"] < epsilon


def told(task: Task, run: Run, epsilon: float) -> list[str]:
    """Return what a check, `precad account`, a summary and a report say of this bound."""
    plan = {"sigma": task.noise_multiplier, "q": 1.0, "p": 1.0, "rounds": task.rounds, "delta": task.delta}
    account = account_of_flags(plan | {"is_proved": True}, None)
    of_both = {f"{prefix}epsilon_{view}": epsilon for view in View for prefix in ("", "realised_")}
    summary, file = json.loads((run.folder / "summary.json").read_text()) | of_both, io.StringIO()
    print_summary(Console(file=file, width=400), summary, task)
    statements = tuple(replace(one, epsilon=epsilon, delta=task.delta) for one in run.statements)
    rows = guarantees_of(replace(run, task=task, statements=statements), "none")
    return [promised(task), " ".join(account["warnings"]), file.getvalue(), " ".join(row.rests_on for row in rows)]


def test_where_there_is_no_bound_people_are_told_why_and_what_to_change(tmp_path: Path) -> None:
    """Delta is (1 + e^9.95) eta, so that an epsilon of 9 may be a bound and one of 10 is none.

    An epsilon of 10 is none also where it is that of rounds that may be lost.
    """
    unit = {"algorithm": "user-dp-fedavg", "delta": (1 + math.exp(9.95)) * ETA}
    (below, _), (above, _) = (tasks(noise_multiplier=sigma, **unit) for sigma in (2.0, 0.7))
    bound = task_privacy(below).epsilon(View.ONE_SERVER, 2, below.delta)
    assert bound < task_cost(below).view_if_discarded(View.ONE_SERVER) < 9.95
    assert math.isinf(task_privacy(above).epsilon(View.ONE_SERVER, 2, above.delta))
    folder = deployed(tmp_path / "run", mode="proved", noise_multiplier=20.0)
    changed(folder / "summary.json", mode="proved", gate=None)
    run = read_deployed(folder)
    assert not any("no bound" in text for text in told(below, run, bound))
    cure = "all from epsilon = 9.9 on; lower rounds, or raise noise_multiplier or delta"
    for text in told(above, run, math.inf):
        assert f"no bound at delta = {above.delta:g}" in text
        assert cure in text
    between, _ = tasks(noise_multiplier=1.2, **unit)
    assert math.isfinite(task_privacy(between).epsilon(View.ONE_SERVER, 2, between.delta))
    assert promised(between).count("no bound") == promised(between).count(cure) == 1


def screens(task: Task, spent: float) -> list[str]:
    """Return what `precad run` and `watch`, in 80 columns, and `status` show of a task that has spent so much."""
    epsilons = epsilons_of(task, dict.fromkeys(View, spent))
    counts = {"n_chosen": 2, "n_accepted": 2, "n_rejected": 0, "n_missing": 0}
    summary = RoundSummary(round=0, **counts, seconds={}, bytes={}, model_digest="", epsilon=dict.fromkeys(View, spent))
    of_server = {"role": "a", "version": "1", "state": "x", "since": 0, "started_at": 0, "is_ready": True}
    status = Status(**of_server, epsilons=epsilons, rounds=(summary,), rounds_done=1, rounds_planned=2)

    async def statuses() -> AsyncIterator[Status]:
        yield status

    watched, shown = (io.StringIO() for _ in range(2))
    terminal = Console(file=watched, width=80, force_terminal=True, no_color=True, legacy_windows=False)
    asyncio.run(show_rounds(statuses(), terminal, title="t"))
    Console(file=shown, width=300).print(status_table({"a": status}))
    table = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", watched.getvalue())
    return [" ".join(re.sub("[│┃]", " ", text).split()) for text in (table, shown.getvalue())]


def test_screens_of_a_running_task_say_it_in_the_words_of_the_summary() -> None:
    """A narrow terminal too. The dashboard shows the field that a status has."""
    task, _ = tasks(noise_multiplier=0.7, algorithm="user-dp-fedavg", delta=(1 + math.exp(9.95)) * ETA)
    why = why_no_bound(task.delta, task.delta_slack)
    for text in screens(task, math.inf):
        assert why in text
        assert "inf" not in text.split()
    for text in screens(tasks()[0], 1.5):
        assert "no bound" not in text
    assert {one.no_bound for one in epsilons_of(task, dict.fromkeys(View, math.inf))} == {why}
    assert {one.no_bound for one in epsilons_of(tasks()[0], dict.fromkeys(View, 1.5))} == {""}
    script = (ROOT / "servers/operations/dashboard/dashboard.js").read_text()
    assert 'element("p", { class: "quiet" }, epsilon.no_bound)' in script
    assert 'if (!Number.isFinite(epsilon)) return "no bound";' in script
    assert "∞" not in script


def test_a_plan_for_runs_counts_it() -> None:
    proved, masked = tasks(algorithm="precad", noise_multiplier=2.0)
    assert task_of_run(proved).slack == ETA
    assert task_of_run(masked).slack == 0


@pytest.mark.parametrize(("delta", "is_enough"), [(2 * ETA, False), (2 * ETA * 1.001, True)])
def test_a_delta_that_the_mode_uses_up_is_refused(delta: float, is_enough: bool) -> None:
    if is_enough:
        small_task(mode="proved", delta=delta)
        return
    with pytest.raises(ValidationError, match=r"delta: expected more than 1\.64e-11.*raise delta or lower rounds"):
        small_task(mode="proved", delta=delta)
