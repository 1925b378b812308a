"""`precad certify --run`: what a run folder says, what one run proves, and what many do."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from precad.clients import records
from precad.clients.config import ClientConfig
from precad.clients.models import networks
from precad.clients.training import evaluation
from precad.deploy.cli.main import app
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.local import resolve
from precad.deploy.guarantees.planning import plan_given
from precad.deploy.guarantees.run_evidence import _OF_THE_LAW, read_runs, training_of
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import (
    Conduct,
    PldAccountant,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    round_event,
)
from precad.dp.accountants.task_cost import Level
from precad.dp.certificates.prediction import ENROLLED, LOSSES, Method, Threat, certify
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.tls.identity import AGGREGATORS
from precad.servers.store.folder import ledger_path, open_ledger, open_task_store
from tests.harness.command_line import CliRunner

TASK = {
    "name": "digits",
    "clients": ["a", "b", "c"],
    "rounds": 4,
    "client_rate": 0.25,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 2.0,
    "noise_multiplier": 8.0,
    "learning_rate": 1.0,
}


def precad(*arguments, exit_code=0):
    """Run the command. Return what it prints on standard output and standard error."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == exit_code, result.output
    return result


def make_run(root, seed, *, client=None, earlier=None, localhost=None, **task):
    """A run folder as `precad run` leaves it, with a model that is certain of what it says, right or wrong."""
    root.mkdir()
    folder = RunFolder(root)
    raw = {"task": TASK | task, "client": client or {}, "localhost": localhost or {}}
    resolved, deployment, _ = resolve(raw, folder)
    folder.write_config(resolved)
    parameters = networks.initial_parameters("mlp", seed=seed) * 50
    torch.save(networks.unflatten(torch.from_numpy(parameters), networks.build("mlp")), folder.model)
    for t, participants in enumerate((["a"], ["a", "b"], [], ["a"])):
        folder.append_metrics({"round": t, "participants": participants, "model_digest": f"{seed}-{t}"})
        with open_ledger(folder.state_dir("a"), deployment.task, earlier) as ledger:
            ledger.charge(t, participants)
    folder.write_summary({"ended": "4 rounds done"})
    return root


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", 1)


def test_the_training_is_the_one_that_attackers_meet(run):
    """Rate q, sqrt(2) sigma R over C, all draws there can be; confidences are the final model's on its own test set."""
    evidence = read_runs([run])
    assert evidence.training.event == SampledGaussian(0.25, math.sqrt(2) * 8.0 / 2.0)
    assert evidence.training.rounds == 4 + 3  # a server may lose three rounds for their draws
    test = records.digits().test
    parameters = networks.initial_parameters("mlp", seed=1) * 50
    right = np.argmax(evidence.confidences, axis=1) == test.labels
    assert np.mean(right) == evaluation.accuracy(parameters, "mlp", test)
    assert np.sum(evidence.confidences, axis=1) == pytest.approx(np.ones(len(test)))
    assert evidence.labels == test.labels.tolist()


def test_one_run_proves_nothing_and_says_so(run):
    """Hoeffding's radius from one training exceeds one, all that a confidence can be from its mean.

    So every method is vacuous, and the estimate beside it is named as an estimate.
    """
    report = json.loads(precad("certify", "--run", run, "--at-most", "2", "--json").stdout)
    assert all(not any(tolerated) for tolerated in report["tolerated"].values())
    assert all(not any(curve) for curve in report["certified_accuracy"].values())
    assert math.sqrt(math.log(2 * 10 * 360 / 0.01) / 2) > 2.5  # Hoeffding's
    assert report["run"]["radius"] == 1
    assert report["estimate"]["label"] == "approximation"
    assert report["estimate"]["of"] == "expected confidence estimated from 1 model"
    assert max(report["estimate"]["tolerated"]["exact"]) > 0
    shown = precad("certify", "--run", run, "--at-most", "2").stdout
    assert "exact: VACUOUS" in shown
    assert "1 model, not a guarantee" in shown
    assert "nothing can follow from fewer than 27" in " ".join(shown.split())
    assert "each within 1, the whole range: VACUOUS" in " ".join(shown.split())


def test_a_certificate_of_runs_names_its_conditions(run):
    """Which rounds are lost, where draws are claimed, and who may join."""
    flags = ("--run", run, "--at-most", "2", "--attack-cost", "--method", "exact")
    added, replaced = (" ".join(precad("certify", *flags, "--threat", threat).stdout.split()) for threat in Threat)
    assert f"every certificate rests on: {ENROLLED}" in added
    assert ENROLLED not in replaced
    q = json.loads(precad("certify", *flags, "--json").stdout)["run"]["q"]
    assert (f"every certificate rests on: {LOSSES}" in replaced) is (q < 1)
    assert "these bounds hold together with probability at least 0.99" in added


def test_many_runs_prove_what_their_mean_and_radius_do(tmp_path):
    """40 runs, all of one model but with other digests: their mean, within Hoeffding's radius for 7200 bounds."""
    first = make_run(tmp_path / "first", 1)
    folders = [first]
    for i in range(2, 41):
        folder = tmp_path / str(i)
        shutil.copytree(first, folder)
        (folder / "metrics.jsonl").write_text((first / "metrics.jsonl").read_text().replace('"1-', f'"{i}-'))
        folders.append(folder)
    arguments = [part for folder in folders for part in ("--run", folder)]
    report = json.loads(precad("certify", *arguments, "--method", "exact", "--at-most", "4", "--json").stdout)
    radius = math.sqrt(math.log(2 * 10 * 360 / 0.01) / 80)
    assert report["run"]["radius"] == pytest.approx(radius)
    evidence = read_runs(folders[:1])
    row = int(np.argmax(np.max(evidence.confidences, axis=1)))
    low = max(evidence.confidences[row]) - radius
    expected = certify(low, 1 - low, evidence.training, method=Method.EXACT, threat=Threat.ADD, at_most=4)
    assert report["tolerated"]["exact"][row] == pytest.approx(expected.tolerated, abs=1)
    assert expected.tolerated > 0
    assert report["confidence"] == 0.99
    privacy = report["run"]["privacy_of_all_models"]
    assert privacy["rounds_of_a_client"] == 120
    assert privacy["one_server"]["basic_composition"]["delta"] == pytest.approx(40 * 1e-5)
    event = round_event(
        View.ONE_SERVER, record_sampling_rate=0.5, noise_multiplier=8.0, record_clip=1.0, dim=4810, frac_bits=16
    )
    assert privacy["one_server"]["epsilon"] == PldAccountant().epsilon(event, 120, 1e-5)
    assert privacy["one_server"]["epsilon"] < privacy["one_server"]["basic_composition"]["epsilon"]


def test_a_budget_that_may_end_the_training_takes_the_sampling_away(tmp_path):
    """When it ends depends on who was drawn: a fourth round of one client would spend this one. One that no four rounds
    of a client can spend changes nothing."""
    tight = read_runs([make_run(tmp_path / "tight", 1, epsilon_budget_one_server=0.42)])
    assert tight.training.event.sampling_rate == 1
    assert not tight.provenance["sampling_claimed"]
    assert "q = 1 is accounted" in precad("certify", "--run", tmp_path / "tight", "--method", "pld").stdout
    loose = read_runs([make_run(tmp_path / "loose", 1, epsilon_budget_one_server=50.0)])
    assert training_of(loose.task).event.sampling_rate == 0.25


def test_a_budget_counts_earlier_tasks_when_it_takes_the_sampling_away(tmp_path):
    """All rounds of one client cost 0.97 of this budget. A round of an earlier task leaves room for fewer."""
    alone = read_runs([make_run(tmp_path / "alone", 1)])
    most = alone.training.rounds
    budget = task_privacy(alone.task).epsilon(View.ONE_SERVER, most, alone.task.delta) / 0.97
    with open_ledger(tmp_path / "before", alone.task) as ledger:
        ledger.charge(0, ["a"])
    earlier = earlier_tasks([(ledger_path(tmp_path / "before"), 1)])
    found = [
        read_runs([make_run(tmp_path / name, 1, earlier=counted, epsilon_budget_one_server=budget)])
        for name, counted in (("first", ()), ("second", earlier))
    ]
    assert [one.training.event.sampling_rate for one in found] == [0.25, 1]
    assert [one.provenance["sampling_claimed"] for one in found] == [True, False]


def test_all_models_together_count_an_earlier_task_of_the_servers_once(tmp_path):
    """Two runs cost what one of twice the draws does, by a ledger that counts the earlier task as well."""
    task = read_runs([make_run(tmp_path / "alone", 1)]).task
    with open_ledger(tmp_path / "before", task) as ledger:
        for t in range(4):
            ledger.charge(t, ["a"])
    earlier = earlier_tasks([(ledger_path(tmp_path / "before"), 7)])
    runs = [make_run(tmp_path / str(seed), seed, earlier=earlier) for seed in (1, 2)]
    found = read_runs(runs).provenance["privacy_of_all_models"]
    twice = task.model_copy(update={"rounds": 2 * task.rounds, "lost_rounds": 2 * (task.most_draws - task.rounds)})
    assert twice.most_draws == 2 * task.most_draws
    with open_ledger(tmp_path / "twice", twice, earlier) as ledger:
        for t in range(6):
            ledger.charge(t, ["a"])
        realised, discarded = (
            ledger.statement(View.ONE_SERVER, conduct=conduct).epsilon
            for conduct in (Conduct.WATCHES, Conduct.MAY_DISCARD)
        )
    of_server = found["one_server"]
    assert of_server["epsilon"] == pytest.approx(realised, rel=1e-9)
    assert of_server["epsilon_if_draws_are_discarded"] == pytest.approx(discarded, rel=1e-9)
    with open_ledger(runs[0] / "a", task) as ledger:
        each = ledger.statement(View.ONE_SERVER).epsilon
    assert of_server["basic_composition"]["epsilon"] == pytest.approx(2 * each, rel=1e-9)


def test_runs_whose_epsilon_is_infinite_are_certified_all_the_same(tmp_path):
    """Say "inf" of all models where mode proved takes all of delta: bounds on attackers rest on the noise alone."""
    runs = [make_run(tmp_path / str(i), i, mode="proved", noise_multiplier=0.5, delta=1e-10) for i in (1, 2)]
    flags = ("--run", runs[0], "--run", runs[1], "--at-most", "2", "--method", "exact")
    report = json.loads(precad("certify", *flags, "--json").stdout)
    for view in View:
        found = report["run"]["privacy_of_all_models"][view.value]
        assert found["epsilon"] == found["epsilon_if_draws_are_discarded"] == "inf"
        assert found["basic_composition"] == {"epsilon": "inf", "delta": 2e-10}
    assert "no bound" in precad("certify", *flags).stdout


def test_the_privacy_of_all_models_is_not_printed_without_its_condition(tmp_path):
    """Nor without its unit, a whole client; PRECAD's own figures need neither word."""
    for algorithm, is_said in (("tsgd-gaussian", True), ("precad", False)):
        runs = [make_run(tmp_path / f"{algorithm}{i}", i, algorithm=algorithm) for i in (1, 2)]
        flags = ("--run", runs[0], "--run", runs[1], "--at-most", "1", "--method", "exact")
        shown = " ".join(precad("certify", *flags).stdout.split())
        assert ("all 2 models together, one client, one server corrupted" in shown) is is_said
        condition = (
            "these epsilons rest on: what its updates say, not that it took part; if both servers and the dealer"
        )
        assert (condition in shown) is is_said
        assert "all 2 models together" in shown


def test_a_run_is_planned_from_its_own_task(run):
    """Lead and task from the folder; the plan is what another training of that task would need."""
    report = json.loads(
        precad("certify", "--run", run, "--plan", "--attackers", "2", "--epsilon", "4", "--json").stdout
    )
    assert report["task"]["kind"] == "precad"
    assert (report["task"]["n_clients"], report["task"]["n_records"], report["task"]["rounds"]) == (3, 1437, 4)


def test_a_wish_is_at_the_delta_that_is_asked_for(run):
    """Also beside a run, whose task has another one. What is shown names it."""
    wish = ["certify", "--run", run, "--plan", "--attackers", "1", "--epsilon", "4"]
    own, asked = (json.loads(precad(*wish, *delta, "--json").stdout) for delta in ((), ("--delta", "1e-9")))
    assert (own["task"]["delta"], asked["task"]["delta"]) == (1e-5, 1e-9)
    assert own["best"]["sigma"] < asked["best"]["sigma"]
    assert "epsilon <= 4 at delta 1e-09" in precad(*wish, "--delta", "1e-9").stdout.replace("\n", " ")


def test_a_run_whose_epsilon_is_of_a_persons_records_is_planned_so(tmp_path, run):
    """For two records more noise, of the same lead."""
    pairs = make_run(tmp_path / "pairs", 1, records_per_person=2)
    wish = ["--plan", "--attackers", "1", "--epsilon", ".5", "--lead", ".9", ".1", "--json"]
    one, two = (json.loads(precad("certify", "--run", folder, *wish).stdout) for folder in (run, pairs))
    assert "records_per_person" not in one["task"]
    assert two["task"]["records_per_person"] == 2
    assert one["best"]["sigma"] < two["best"]["sigma"]


def test_what_a_plan_promises_is_what_the_ledger_of_such_a_task_has(tmp_path):
    """With 4 fractional bits the grid takes four fifths of each sigma; less noise than planned exceeds the wish."""
    run = make_run(tmp_path / "coarse", 1, frac_bits=4)
    wish = ["--plan", "--attackers", "1", "--epsilon", ".5", "--lead", ".9", ".1", "--json"]
    report = json.loads(precad("certify", "--run", run, *wish).stdout)
    best, privacy = report["best"], report["privacy"]
    task = read_runs([run]).task

    def ledgers(sigma: float) -> float:
        changed = task.model_copy(update={"noise_multiplier": sigma, "rounds": best["rounds"]})
        return task_privacy(changed).epsilon(View.ONE_SERVER, privacy["rounds"], task.delta)

    assert best["decided_by"] == "epsilon"
    assert ledgers(best["sigma"]) == pytest.approx(privacy["epsilon"], rel=1e-6)
    assert ledgers(best["sigma"]) <= 0.5 < ledgers(best["sigma"] * 0.99)
    assert report["warnings"] == []


@pytest.mark.parametrize("budget", [None, 1000.0])
def test_a_plan_for_attackers_is_certified_once_it_is_the_task(tmp_path, budget):
    """`certify` counts all draws that there can be, and no draw where a budget of a view may tell it by its end."""
    changes = {} if budget is None else {"epsilon_budget_one_server": budget}
    task = read_runs([make_run(tmp_path / "run", 1, client_rate=0.2, rounds=10, **changes)]).task
    wish = {"attackers": 2, "epsilon": 50.0, "FA": 0.9, "FB": 0.1, "threat": "add", "most_noise_to_signal": 100.0}
    plans = [plan for plan in plan_given(wish, task)["plans"] if plan["rounds"] == task.rounds]
    decided = [plan for plan in plans if plan["decided_by"] == "attackers"]
    assert len(decided) >= 2
    for plan in decided:
        planned = {"noise_multiplier": plan["sigma"], "client_clip": plan["client_clip"]}
        training = training_of(task.model_copy(update=planned), has_unknown_costs=True)
        assert training.event.sampling_rate == (0.2 if budget is None else 1.0)
        assert certify(0.9, 0.1, training, method=Method.EXACT, threat=Threat.ADD).tolerated == 2


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_configuration_that_the_servers_did_not_run_is_refused(tmp_path, letter):
    """One more round that may be lost, or one less, makes another certificate of the same ledgers."""
    run = make_run(tmp_path / "run", 1)
    folder = RunFolder(run)
    task = configuration.load(folder.config).task
    folder.state_dir(letter).mkdir(exist_ok=True)
    store = open_task_store(folder.state_dir(letter), task, bytes(4 * task.dim))
    store.begin("digits-0123456789abcdef", AGGREGATORS["ab".index(letter)])
    store.close()
    assert read_runs([run]).training.rounds == 7
    text = folder.config.read_text()
    folder.config.write_text(text.replace("[task]", "[task]\nlost_rounds = 1", 1))
    said = precad("certify", "--run", run, exit_code=2).stderr
    assert f"--run: expected the task {task.digest().hex()[:16]} in" in " ".join(said.split())


def test_a_run_with_evaluations_is_not_planned(tmp_path):
    changes = {"evaluation": "clients", "evaluation_every": 2, "evaluation_noise": 50.0}
    run = make_run(tmp_path / "evaluated", 1, **changes)
    wish = ["--plan", "--attackers", "1", "--epsilon", "4"]
    for flags, flag in ((wish, "--attackers"), (["--plan"], "--plan")):
        said = " ".join(precad("certify", "--run", run, *flags, exit_code=2).stderr.split())
        assert f"expected runs without evaluations, which {flag} does not count" in said


HIDDEN = {"mode": "proved", "round_period_s": 600.0}
SEEN = "against clients, who may see draws"


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({}, Level.CLIENT, SEEN),
        (HIDDEN, Level.HIDDEN_CLIENT, "if nobody learns who was drawn"),
        (HIDDEN | {"epsilon_budget_one_server": 50.0}, Level.CLIENT, SEEN),
        (HIDDEN | {"epsilon_budget_one_server": 50.0}, Level.HIDDEN_CLIENT, SEEN),
    ],
    ids=["seen", "hidden", "budget", "hidden with a budget"],
)
def test_a_units_epsilon_is_that_of_a_whole_client_of_such_a_task(tmp_path, changes, level, said):
    """As its ledger has it over the most draws, at the noise that the plan names."""
    run = make_run(tmp_path / "run", 1, **changes)
    flags = ["certify", "--run", run, "--plan", "--method", "published"]
    shown = precad(*flags, "--json")
    task = read_runs([run]).task
    rows = json.loads(shown.stdout)["plan"]["frontier"]
    assert sum(math.isfinite(float(row["epsilon_of_one_unit"])) for row in rows) >= 3
    for row in rows:
        sigma = row["least_sigma"] * task.client_clip / (math.sqrt(2) * task.record_clip)
        cost = task_cost(task.model_copy(update={"noise_multiplier": sigma}))
        assert float(row["epsilon_of_one_unit"]) == pytest.approx(cost.level_if_discarded(level), rel=1e-4)
    assert said in " ".join(precad(*flags).stdout.split())


def test_the_plan_of_one_run_is_about_its_estimate(run):
    """From the model's own lead, and labelled so."""
    report = json.loads(precad("certify", "--run", run, "--plan", "--method", "published", "--json").stdout)
    assert report["plan"]["label"] == "approximation"
    assert report["plan"]["lead"][0] > 0.9


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_round_that_was_given_up_after_its_charge_counts(letter, run):
    """At either server, in the privacy of the models, and not among the rounds that made them."""
    task = configuration.load(run / "config.toml").task
    shutil.copytree(run / "a", run / "b")
    with open_ledger(run / letter, task) as ledger:
        ledger.charge(4, ["a", "b"])
    found = read_runs([run]).provenance
    assert (found["privacy_of_all_models"]["rounds_of_a_client"], found["rounds_realised"]) == (4, [4])


def test_attacks_in_the_training_are_named(tmp_path):
    """Attackers are counted beside them."""
    make_run(tmp_path / "run", 1, client={"attacks": {"b": "scaled"}})
    assert "beside those in the training: b" in precad("certify", "--run", tmp_path / "run", "--method", "pld").stdout


def test_parameters_of_attacks_are_named_and_colluders_are_refused(tmp_path):
    """A backdoor of its own counts; whoever acts upon what others send does not, and says so with exit code 2."""
    backdoor = {"kind": "pixel-backdoor", "parameters": {"side": 3, "gamma": 2.0}}
    make_run(tmp_path / "run", 1, client={"attacks": {"b": backdoor, "c": "poisoned-records"}})
    found = read_runs([tmp_path / "run"]).provenance["attacks_in_the_training"]
    assert found == {"b": "pixel-backdoor (gamma = 2.0, side = 3)", "c": "poisoned-records"}
    alie = {"kind": "alie", "parameters": {"sees": "colluders"}}
    make_run(tmp_path / "alie", 2, client={"attacks": {"b": alie}})
    said = " ".join(precad("certify", "--run", tmp_path / "alie", exit_code=2).stderr.split())
    assert "expected a run without attackers who act upon what others send" in said


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.toml").unlink(), "config.toml: expected a readable file"),
        (lambda folder: (folder / "summary.json").unlink(), "expected the folder of a finished run"),
        (lambda folder: (folder / "metrics.jsonl").write_text(""), "expected a summary and metrics"),
        (lambda folder: (folder / "metrics.jsonl").write_text("{}"), "expected a summary and metrics"),
        (lambda folder: (folder / "a" / "ledger.jsonl").unlink(), "expected the folder of a finished run"),
        (lambda folder: (folder / "model.pt").write_bytes(b"no model"), "expected parameters of the model 'mlp'"),
        (
            lambda folder: torch.save({"weight": torch.zeros(3)}, folder / "model.pt"),
            "expected parameters of the model",
        ),
    ],
)
def test_a_folder_that_is_no_finished_run_is_refused(run, spoil, message):
    """Exit code 2, and what was expected."""
    spoil(run)
    assert message in " ".join(precad("certify", "--run", run, exit_code=2).stderr.split())


def test_runs_must_be_different_runs_of_one_configuration(tmp_path, run):
    """Refuse one run given twice, which is one draw, and another task, which has another expectation."""
    assert "found model 1-3 2 times" in precad("certify", "--run", run, "--run", run, exit_code=2).stderr
    other = make_run(tmp_path / "other", 2, noise_multiplier=9.0)
    assert "found another task.noise_multiplier" in precad("certify", "--run", run, "--run", other, exit_code=2).stderr
    attacked = make_run(tmp_path / "attacked", 2, client={"attacks": {"c": "wrap"}})
    assert "found another client.attacks" in precad("certify", "--run", run, "--run", attacked, exit_code=2).stderr


def test_runs_from_other_models_are_of_another_configuration(tmp_path, run):
    """Where a training starts, its expectation starts: the digest in the folder tells."""
    begun = []
    for seed in (3, 4):
        np.save(tmp_path / f"start-{seed}.npy", networks.initial_parameters("mlp", seed=seed))
        start = {"initial_model": str(tmp_path / f"start-{seed}.npy")}
        begun.append(make_run(tmp_path / f"from-{seed}", 2, localhost=start))
    for one, other in ((run, begun[0]), (begun[0], begun[1])):
        said = precad("certify", "--run", one, "--run", other, exit_code=2).stderr.replace("\n", " ")
        assert "found another localhost.initial_model_sha256 in" in said


def test_runs_on_other_classes_are_of_another_configuration(tmp_path):
    """Classes whose clients hold as many records each, so that the tasks are the same: only the section says it."""
    some = make_run(tmp_path / "some", 1, client={"classes": [0, 1]})
    others = make_run(tmp_path / "others", 2, client={"classes": [0, 3]})
    tasks = [configuration.load(RunFolder(folder).config).task for folder in (some, others)]
    assert tasks[0] == tasks[1]
    assert "found another client.classes" in precad("certify", "--run", some, "--run", others, exit_code=2).stderr


def test_every_field_of_a_client_is_known_to_change_the_law_or_not():
    """A field that comes to `[client]` must be put on one side or the other."""
    where_and_when = {"certificates", "key_passphrase_file", "authority"}
    where_and_when |= {"aggregator_a_certificate", "aggregator_b_certificate", "download", "memory_mb", "device"}
    where_and_when |= {
        "connect_timeout_s",
        "reconnect_timeout_s",
        "state_dir",
        "uploads_per_model",
        "metrics",
        "folder",
        "queries",
        "holder",
        "colluders",  # beside which nothing is certified
    }
    where_and_when |= {"adapter", "base_model"}  # files that the task names by their digests
    where_and_when |= {
        f"trainer_{name}" for name in ("python", "timeout_s", "memory_mb", "threads", "isolation", "output")
    }
    assert set(ClientConfig.model_fields) == where_and_when | set(_OF_THE_LAW)
    assert not where_and_when & set(_OF_THE_LAW)


@pytest.fixture
def beside(tmp_path):
    """Return a run whose ledger counts a query of the same clients, and that query's ledger."""
    task = configuration.load(RunFolder(make_run(tmp_path / "before", 1)).config).task
    query = task.model_copy(update={"rounds": 2, "client_rate": 1.0, "record_rate": 1.0, "noise_multiplier": 30.0})
    with open_ledger(tmp_path / "query", query) as ledger:
        ledger.charge(0, ["a", "b", "c"])
    earlier = earlier_tasks([(ledger_path(tmp_path / "query"), 5)])
    return make_run(tmp_path / "run", 1, earlier=earlier), earlier


def test_a_plan_counts_earlier_tasks_as_a_ledger_does(beside):
    """Epsilon of a whole client at each sigma, by a ledger with that sigma and the same header."""
    run, earlier = beside
    plan = json.loads(precad("certify", "--run", run, "--plan", "--json").stdout)["plan"]
    rows = [row for row in plan["frontier"] if row["least_sigma"] is not None]
    assert len(rows) > 2
    for row in rows[:3]:
        event = TwoStageSampledGaussian(0.25, 1.0, row["least_sigma"])
        with Ledger(
            None,
            events=dict.fromkeys(View),
            delta=1e-5,
            every_round={Level.CLIENT: event},
            most_rounds=4 + 3,
            earlier=earlier,
        ) as ledger:
            stated = ledger.task_statement(Level.CLIENT, Conduct.MAY_DISCARD).epsilon
        assert row["epsilon_of_one_unit"] == stated
        alone = PldAccountant().epsilon(event, 7, 1e-5)
        assert row["epsilon_of_one_unit"] > alone
    assert plan["earlier_tasks"] == 1
    assert "with 1 earlier task" in " ".join(precad("certify", "--run", run, "--plan").stdout.split())


def test_a_wish_counts_earlier_tasks_as_a_ledger_does(beside, tmp_path):
    """Both figures of the best plan, by a ledger of the planned task; and no less noise keeps the wish."""
    run, earlier = beside
    wish = ("--plan", "--attackers", 1, "--epsilon", 0.6, "--lead", 0.9, 0.1, "--most-noise", 1e6)
    found = json.loads(precad("certify", "--run", run, *wish, "--json").stdout)
    best, privacy = found["best"], found["privacy"]
    assert best["decided_by"] == "epsilon"
    assert found["task"]["earlier_tasks"] == 1

    def stated(sigma, rounds, conduct, name):
        task = configuration.load(RunFolder(run).config).task
        planned = task.model_copy(
            update={"noise_multiplier": sigma, "rounds": best["rounds"], "client_clip": best["client_clip"]}
        )
        with open_ledger(tmp_path / name, planned, earlier) as ledger:
            for t in range(rounds):
                ledger.charge(t, ["a"])
            return ledger.statement(View.ONE_SERVER, "a", conduct).epsilon

    epsilon = stated(best["sigma"], privacy["rounds"], Conduct.WATCHES, "wish")
    assert privacy["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert epsilon <= 0.6 < stated(0.99 * best["sigma"], privacy["rounds"], Conduct.WATCHES, "less")
    if_discarded = stated(best["sigma"], 1, Conduct.MAY_DISCARD, "discarded")
    assert privacy["if_discarded"]["epsilon"] == pytest.approx(if_discarded, rel=1e-9)
    safe = privacy["if_discarded"]["least_sigma"]
    assert stated(safe, 1, Conduct.MAY_DISCARD, "safe") <= 0.6 < stated(0.99 * safe, 1, Conduct.MAY_DISCARD, "unsafe")
    assert "with 1 earlier task," in " ".join(precad("certify", "--run", run, *wish).stdout.split())


def test_a_wish_that_earlier_tasks_have_spent_is_reached_by_no_noise(beside):
    run, _ = beside
    wish = ("--plan", "--attackers", 1, "--epsilon", 0.05, "--lead", 0.9, 0.1, "--most-noise", 1e6)
    assert json.loads(precad("certify", "--run", run, *wish, "--json").stdout)["best"] is None
