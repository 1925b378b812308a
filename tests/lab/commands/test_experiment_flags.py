"""Flags of `precad experiment` become an experiment: the given value, then that of --quick, then the paper's."""

from dataclasses import fields
from pathlib import Path

import pytest

from precad.deploy.cli.common import ImagesName, PicturesName
from precad.lab.commands import experiments, xie_experiments
from precad.lab.commands.xie_experiments import AttackLevel, PairsName
from precad.lab.papers import correlated_noise, runner
from precad.lab.papers.naseri import central_local_backdoor
from precad.lab.papers.precad import backdoor, clients, mnist
from precad.lab.papers.ptr import mnist as ptr_mnist
from precad.lab.papers.xie import attack_cost, defences, insdp_certified, userdp_certified

DECLARED = {
    experiments.PrecadMnistFlags: mnist,
    experiments.PrecadClientsFlags: clients,
    experiments.PrecadBackdoorFlags: backdoor,
    experiments.CentralLocalBackdoorFlags: central_local_backdoor,
    experiments.CorrelatedNoiseFlags: correlated_noise,
    experiments.PtrMnistFlags: ptr_mnist,
    xie_experiments.UserDpCertifiedFlags: userdp_certified,
    xie_experiments.InsDpCertifiedFlags: insdp_certified,
    xie_experiments.XieAttackCostFlags: attack_cost,
    xie_experiments.XieDefencesFlags: defences,
}
OF_THE_RUN = {"quick", "threads", "workers", "ray", "output", "as_json", "undivided"}
"""Flags that are about how it is run, and the one that says the contrary of its field."""


def asked_for(flags):
    """Return the experiment that the command runs."""
    return runner.asked_for(DECLARED[type(flags)], flags.given(), quick=flags.quick)


def level_of(kind):
    """Return the one flag that has no default."""
    return {"level": AttackLevel.USER} if kind is xie_experiments.XieAttackCostFlags else {}


@pytest.fixture
def cheap_prices(monkeypatch):
    """Rounds of PTR cost what takes no time to compute: proved bounds of its experiment's range take seconds."""
    monkeypatch.setattr(ptr_mnist, "proved_epsilon", lambda method, n, rate, rounds: rounds / 1000)


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("cheap_prices")
def test_every_flag_says_something_of_the_experiment_or_of_its_run(kind):
    """No flag is dropped on the way, and every field can be asked for; without flags it is the paper's experiment."""
    flags, module = kind(**level_of(kind)), DECLARED[kind]
    of_experiment = {field.name for field in fields(module.Experiment)}

    assert set(flags.given()) - OF_THE_RUN == of_experiment
    assert asked_for(flags) == module.Experiment(**level_of(kind))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (experiments.PrecadMnistFlags(quick=True), {"seeds": 1, "rounds": 1000}),
        (
            experiments.PrecadMnistFlags(quick=True, seeds=2, sigmas=[2.0, 1.0, 2.0], dataset=ImagesName.DIGITS),
            {"seeds": 2, "rounds": 1000, "sigmas": (2.0, 1.0), "dataset": "digits"},
        ),
        (
            experiments.PrecadClientsFlags(quick=True, methods=["local-dp"], numbers=[5]),
            {"seeds": 1, "rounds": 200, "methods": ("local-dp",), "numbers": (5,)},
        ),
        (
            experiments.PrecadBackdoorFlags(quick=True, undivided=True, dataset=PicturesName.CIFAR10),
            {"attackers": (3,), "seeds": 1, "rounds": 600, "divides": False, "dataset": "cifar10"},
        ),
        (
            experiments.PrecadBackdoorFlags(quick=True, dataset=PicturesName.DIGITS, attackers=[7]),
            {"attackers": (7,), "seeds": 1, "rounds": 600, "dataset": "digits"},
        ),
        (
            experiments.CentralLocalBackdoorFlags(quick=True, budget=1.5),
            {"seeds": 1, "rounds": 40, "budget": 1.5},
        ),
        (
            experiments.PtrMnistFlags(quick=True, with_dpsgd=True),
            {
                "corruptions": ("label-0", "gradient-0.2"),
                "epsilons": (1.2,),
                "seeds": 1,
                "model": "cnn-half",
                "with_dpsgd": True,
            },
        ),
        (
            xie_experiments.UserDpCertifiedFlags(quick=True, public_start=Path("start.npy")),
            {"seeds": 5, "public_start": Path("start.npy")},
        ),
        (
            xie_experiments.InsDpCertifiedFlags(quick=True, dataset=PicturesName.CIFAR10),
            {"sigmas": (4.0,), "seeds": 2, "dataset": "cifar10"},
        ),
        (
            xie_experiments.XieAttackCostFlags(level=AttackLevel.USER, quick=True, dataset=PairsName.SENTIMENT140),
            {
                "attackers": (10,),
                "attacks": ("label-flip",),
                "seeds": 2,
                "clean_seeds": 4,
                "dataset": "sentiment140-50k",
            },
        ),
        (
            xie_experiments.XieDefencesFlags(quick=True, rule_seeds=3),
            {"attackers": (10,), "seeds": 3, "rule_seeds": 3},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.usefixtures("cheap_prices")
def test_what_is_given_goes_before_quick_and_quick_before_the_paper(flags, expected):
    assert asked_for(flags) == DECLARED[type(flags)].Experiment(**expected)


def test_a_level_has_a_folder_of_its_own():
    """Two levels of one command do not share a folder."""
    flags = xie_experiments.XieAttackCostFlags(level=AttackLevel.INSTANCE)
    assert flags.folder_name("xie-attack-cost") == "xie-attack-cost-instance"
