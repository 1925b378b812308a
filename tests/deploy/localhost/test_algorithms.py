"""Statements about tasks of other algorithms than PRECAD, for operators and researchers.

They say whose epsilon it is, on what it rests, and that there is none where there is none.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.check_privacy import privacy_facts
from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.planning import task_of_run
from precad.deploy.guarantees.run_evidence import training_of
from precad.deploy.localhost.summary import conditions_of
from precad.deploy.localhost.watch import warning_of
from precad.deploy.reporting.guarantees import guarantees_of, sentence
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.shown.figures import rounded_up
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, Unit, View
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.task_privacy import task_privacy
from precad.servers.telemetry.status import Status, epsilons_of
from tests.harness.harness import small_task

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
NON_PRIVATE = {"algorithm": "non-private", "noise_multiplier": 0.0}
USER_DP: dict[str, Any] = {"local_steps": 2, "client_clip": 0.5, "noise_multiplier": 3.0, "learning_rate": 1.0}
SPECIAL: dict[str, dict[str, Any]] = {
    "user-dp-fedavg": USER_DP,
    "ins-dp-fedavg": {"local_steps": 2, "client_clip": 2.0, "learning_rate": 1.0},
    "user-dp-fedavg, per-layer": {**USER_DP, "update_clipping": "per-layer"},
    "user-dp-fedavg, private-quantile": {**USER_DP, "update_clipping": "private-quantile", "quantile": 0.7},
    "tsgd-ptr": {**USER_DP, "trim_noise": 0.5, "trim_failure": 1e-6},
    "tsgd-gaussian": {**USER_DP, "trim_count": 1},
    "local-dp": {"client_clip": 100.0},
    "distributed-dp": {"non_colluding": 2, "client_clip": 400.0},
    "non-private": {"noise_multiplier": 0.0},
    "precad, unchecked": {"validation": "none"},
    "fedavg": {**USER_DP, "noise_multiplier": 0.0, "local_momentum": 0.5},
    "krum": {**USER_DP, "noise_multiplier": 0.0, "krum_attackers": 0},
    "multi-krum": {**USER_DP, "noise_multiplier": 0.0, "krum_attackers": 0, "krum_keep": 2},
}
UNPROTECTED = ("non-private", "fedavg", "krum", "multi-krum")
RELEASED = {"krum": "one client's update as it is", "multi-krum": "the sum of at most 2 clients' updates"}


def configuration_of(case: str) -> dict[str, Any]:
    """The demo's, four honest clients in one process, three rounds. case: an algorithm, and how it clips."""
    raw = demo_config(n_clients=4, rounds=3)
    raw["task"] |= {"algorithm": case.partition(",")[0], **SPECIAL[case]}
    raw["client"].pop("attacks", None)
    return raw | {"localhost": {"clients_per_process": 4}}


def test_an_algorithm_that_needs_updates_in_the_clear_is_a_configuration_error() -> None:
    raw = demo_config()
    raw["task"]["algorithm"] = "bulyan"
    expected = "algorithm: bulyan needs one server that sees every update.*precad simulate"
    with pytest.raises(ConfigError, match=expected):
        configuration.parse_section(type(small_task()), raw["task"], "task", base=Path())


def test_what_protects_nobody_is_warned_of_by_its_name() -> None:
    assert "nothing is guaranteed" in str(warning_of(small_task(**NON_PRIVATE)))
    assert "task.algorithm is fedavg" in str(warning_of(small_task(algorithm="fedavg", noise_multiplier=0.0)))
    assert warning_of(small_task()) is None
    assert "no norm is checked" in str(warning_of(small_task(validation="none")))
    assert "no norm is checked" in str(warning_of(small_task(validation="none", **NON_PRIVATE)))
    assert warning_of(small_task(algorithm="local-dp")) is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"algorithm": "krum"}, "one client's update as it is"),
        ({"algorithm": "multi-krum", "krum_keep": 1}, "one client's update as it is"),
        ({"algorithm": "multi-krum", "krum_keep": 2}, "the sum of at most 2 clients' updates"),
        ({"algorithm": "multi-krum"}, "the sum of all clients' updates"),
    ],
)
def test_a_task_of_krum_says_what_it_releases_before_anything_runs(changes: dict[str, Any], what: str) -> None:
    """The warning, the facts of `precad check`, and what the ledger's account rests on: nothing is proved."""
    task = small_task(noise_multiplier=0.0, krum_attackers=0, **changes)
    stated = f"not differentially private: a round releases {what}, without noise"
    privacy = task_privacy(task)
    assert stated in str(warning_of(task))
    assert privacy_facts(task) == {"privacy": stated}
    assert {*privacy.rests_on.values()} == {stated}
    assert [privacy.epsilon(view, 1, 1e-5) for view in View] == [math.inf, math.inf]


def test_an_infinite_epsilon_survives_every_way_to_a_reader() -> None:
    """A status as JSON, which has no infinity: read back it is one, and never null or zero."""
    status = Status(
        role="aggregator-a",
        version="",
        state="collecting",
        since=0,
        started_at=0,
        is_ready=True,
        epsilons=epsilons_of(small_task(**NON_PRIVATE), dict.fromkeys(View, math.inf)),
    )
    text = status.model_dump_json()
    assert [epsilon.spent for epsilon in Status.model_validate_json(text).epsilons] == [math.inf, math.inf]
    assert [found["spent"] for found in json.loads(text)["epsilons"]] == ["Infinity", "Infinity"]


def test_a_bound_is_rounded_up() -> None:
    assert rounded_up("inf") == rounded_up(math.inf) == "inf"
    assert (rounded_up(7.5418), rounded_up(7.5418, 3), rounded_up(7.5, 4)) == ("7.55", "7.542", "7.5000")


def test_a_status_says_whose_epsilon_it_is() -> None:
    units = {
        name: {epsilon.unit for epsilon in epsilons_of(small_task(algorithm=name), dict.fromkeys(View, 1.0))}
        for name in ("precad", "user-dp-fedavg", "local-dp")
    }
    assert units == {"precad": {Unit.RECORD}, "user-dp-fedavg": {Unit.CLIENT}, "local-dp": {Unit.RECORD}}


def test_a_certificate_takes_the_noise_that_servers_add() -> None:
    """To an attacker, UserDP-FedAvg is a sampled Gaussian of multiplier sqrt(2) sigma; where servers add no noise
    nothing is certified."""
    task = small_task(algorithm="user-dp-fedavg", client_rate=0.5, client_clip=2.0, noise_multiplier=3.0)
    training = training_of(task)
    assert (training.event.sampling_rate, training.rounds) == (0.5, task.most_draws)
    assert training.event.noise_multiplier == pytest.approx(3 * math.sqrt(2), rel=1e-15)
    with pytest.raises(ConfigError, match=r"whose servers check norms, found task\.validation 'none'"):
        training_of(task.model_copy(update={"validation": "none"}))
    for name in ("local-dp", "non-private"):
        with pytest.raises(ConfigError, match=f"whose servers add noise, found one of {name}"):
            training_of(small_task(algorithm=name, noise_multiplier=0.0 if name == "non-private" else 1.0))
    with pytest.raises(ConfigError, match="expected runs of precad with --attackers, found user-dp-fedavg"):
        task_of_run(task)


def test_a_figure_that_deviating_servers_undo_names_the_field_that_allows_it() -> None:
    """Mode `proved` takes distributed-dp by the operator's word alone, and nobody reads its epsilon without that word.
    The mode's other algorithms need none, nor do those of a dealer say one."""
    shared: dict[str, Any] = {"algorithm": "distributed-dp", "non_colluding": 2, "client_clip": 400.0}
    said = conditions_of(small_task(mode="proved", servers_follow_protocol=True, **shared))
    assert [text.rpartition("; ")[2] for text in said] == [
        "only while both servers follow the protocol, as `servers_follow_protocol` says"
    ]
    others = (small_task(**shared), small_task(mode="proved", algorithm="local-dp"), small_task(mode="proved"))
    assert not any("servers_follow_protocol" in text for task in others for text in conditions_of(task))


@pytest.mark.slow
def test_the_summary_of_distributed_dp_in_mode_proved_says_what_it_rests_on(tmp_path: Path) -> None:
    """As JSON, in the run's folder, and on its page."""
    raw = configuration_of("distributed-dp")
    raw["task"] |= {"mode": "proved", "servers_follow_protocol": True, "rounds": 1}
    file, folder = tmp_path / "task.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", str(file), "--output", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    written = json.loads((folder / "summary.json").read_text())
    for summary in (json.loads(done.stdout), written):
        assert [text.endswith("as `servers_follow_protocol` says") for text in summary["rests_on"]] == [True]
    shown = "".join(guarantee.rests_on for guarantee in guarantees_of(read_deployed(folder), "none"))
    assert "as `servers_follow_protocol` says" in shown


def expected_epsilons(task: Any, participation: int) -> list[float]:
    """By the accountant and closed forms, from numbers written down here."""
    if not task.rules.is_private:
        return [math.inf, math.inf]
    if task.algorithm in ("user-dp-fedavg", "tsgd-gaussian"):
        return [eps_from_mu(1e-5, math.sqrt(participation) / m) for m in (3.0, 3.0 * math.sqrt(2))]
    if task.algorithm == "tsgd-ptr":
        events = [(1.0, 3.0 * root, 0.5, 0.5, 1e-6) for root in (1.0, math.sqrt(2))]
        return [
            min(eps_ptr_rounds(*one, participation, 1e-5), pld_eps_ptr(*one, participation, 1e-5)) for one in events
        ]
    rounded = 1 + math.sqrt(task.dim) * 0.5**task.frac_bits
    if task.algorithm == "precad":
        events = [SampledGaussian(0.5, share * 4.6 / rounded) for share in (1.0, math.sqrt(2))]
        return [PldAccountant().epsilon(event, participation, 1e-5) for event in events]
    steps = 2 if task.algorithm == "ins-dp-fedavg" else 1
    event = SampledGaussian(0.5, 4.6 / rounded)
    return [PldAccountant().epsilon(event, steps * participation, 1e-5)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("case", SPECIAL)
def test_a_run_of_each_algorithm_from_the_command_line_to_the_page(case: str, tmp_path: Path) -> None:
    """Over processes: summary, page, audit of both servers' logs. Every epsilon is computed here a second time."""
    file, folder = tmp_path / "task.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(configuration_of(case)))
    done = subprocess.run(
        [*PRECAD, "run", file, "--output", folder, "--json"], capture_output=True, text=True, check=True, timeout=300
    )
    summary = json.loads(done.stdout)
    task = configuration.load(folder / "config.toml").task
    algorithm = task.algorithm
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    most = max(sum(c in line["participants"] for line in lines) for c in task.clients)
    for name, rounds in (("realised_epsilon", most), ("epsilon", task.rounds + task.most_lost_rounds)):
        found = [float(summary[f"{name}_{view}"]) for view in View]
        assert found == pytest.approx(expected_epsilons(task, rounds), rel=1e-7)
    assert (f"WARNING: task.algorithm is {algorithm}" in done.stderr) == (algorithm in UNPROTECTED)
    assert (summary["accepted"], summary["rejected"]) == (sum(len(line["participants"]) for line in lines), 0)

    if task.quantile_rule is not None:  # by another way to the exponential, from the servers' last vector
        log_ratio = float(np.load(folder / "a" / "model.npy")[-1])
        assert log_ratio != 0
        assert summary["learnt_bound"] == pytest.approx(task.client_clip * math.exp(log_ratio), rel=1e-12)
    run = read_deployed(folder)
    text = " ".join([sentence(run, "none"), *(f"{g.what} {g.rests_on}" for g in guarantees_of(run, "none"))])
    assert ("nothing is guaranteed" in text) == (algorithm in UNPROTECTED)
    assert ("for one client" in text) == (algorithm in ("user-dp-fedavg", "tsgd-ptr", "tsgd-gaussian", "precad"))
    assert ("collude with nobody" in text) == (algorithm == "distributed-dp")
    assert ("both servers together learn no more" in text) == (algorithm in ("ins-dp-fedavg", "local-dp"))
    for name, what in RELEASED.items():
        stated = f"not differentially private: a round releases {what}, without noise"
        places = (done.stderr, text, " ".join(summary.get("rests_on", ())))
        assert [stated in place for place in places] == [name == algorithm] * len(places)
    unchecked = not task.checks_norms
    assert ("no norm is checked" in done.stderr) == (summary.get("validation") == "none") == unchecked
    assert ("no norm is checked" in text) == unchecked
    audit = subprocess.run(
        [*PRECAD, "audit", "log", folder / "a", "--against", folder / "b"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert audit.returncode == 0, audit.stderr
