"""Simulations on records whose holder has a limit: paid before they begin, as the uploads of a task are.

Failure means a training that chose a setting and is in no statement, or one that a limit has no room for.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.records import Records
from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.ledgers.holder import read
from precad.lab.simulation.holder_charge import sealed
from precad.lab.simulation.simulate import _train_seed
from tests.harness.command_line import CliRunner
from tests.harness.hospital import hospital, patients, write_csv

LIMIT = """
[simulation]
first_seed = 3

[client.holder]
ledger = "paid/{client}"
limit_epsilon = 12.0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return four clients with a limit each, half of whom are in a round."""
    path = hospital(tmp_path, "tuned_model", rounds=6, n=80)
    path.write_text(path.read_text().replace("client_rate = 1.0", "client_rate = 0.5") + LIMIT)
    return path


def changed(config: Path, old: str, new: str) -> Path:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return config


def simulate(config: Path, *flags: object, exit_code: int = 0) -> str:
    """Simulate into the folder `out` beside the file, and return what is said."""
    arguments = ["simulate", config, "--output", config.parent / "out", "--threads", 1, *flags]
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == exit_code, done.stderr
    return str(done.output)


def paid(config: Path, why: str = "simulation") -> Counter[str]:
    """Return the uploads that each client's ledger holds."""
    found = Counter[str]()
    for path in (config.parent / "paid").glob("*"):
        for line in read(path)[0].lines:
            assert (line.payment.client, line.payment.why) == (path.name, why)
            found[path.name] += line.payment.times
    return found


def taken_part(config: Path, seeds: int, folder: str = "out") -> Counter[str]:
    """Return how often each client was in a round, as the finished trainings have it."""
    found = Counter[str]()
    for seed in range(seeds):
        with np.load(config.parent / folder / f"seed-{seed}.npz") as saved:
            found.update(dict(zip(saved["clients"].tolist(), saved["participation"].tolist(), strict=True)))
    return found


def test_trainings_pay_for_every_round_that_a_client_was_in(config: Path) -> None:
    """And once: who goes on with a folder pays the rounds that are new. The figure is the composition of all."""
    said = simulate(config, "--seeds", 2)
    assert paid(config) == taken_part(config, 2)
    assert 0 < min(paid(config).values()) < 12
    assert f"{paid(config).total()} uploads of 4 clients (client.holder)" in said

    before = paid(config)
    assert "nothing: all of it was paid before (client.holder)" in simulate(config, "--seeds", 2)
    assert paid(config) == before
    simulate(config, "--seeds", 3, "--rounds", 9)
    assert paid(config) == taken_part(config, 3)
    for client, n in paid(config).items():
        account, _ = read(config.parent / "paid" / client)
        assert account.epsilon == pytest.approx(PldAccountant().epsilon(SampledGaussian(0.5, 2.0), n, 1e-5), rel=1e-3)
    told = CliRunner().invoke(app, ["holder", "statement", str(config.parent / "paid" / "a")]).stdout
    assert "nobody else knows the key of a simulation: holder.key of its run folder" in told
    assert "seed" not in told


def test_a_folder_trains_no_other_records_than_were_paid_for(config: Path) -> None:
    """They would meet the same draws and noise for nothing: two models would show the record that was changed.

    As where a copy of the folder from before its end is put back. Another folder draws and pays anew.
    """
    simulate(config)
    before, out = paid(config), config.parent / "out"
    for name in ("seed-0.npz", "seed-0.jsonl"):
        (out / name).unlink()
    rows = patients(80)
    write_csv(config.parent / "patients.csv", [*rows[:7], "99,250.0,f,ill", *rows[8:]])
    said = simulate(config, exit_code=2)
    assert "expected the records that were paid for" in said
    with pytest.raises(ConfigError, match="expected the records that were paid for"):  # as a worker, which reads anew
        _train_seed(tomllib.loads((out / "config.toml").read_text()), out, 0)
    assert (paid(config), (out / "seed-0.npz").exists()) == (before, False)
    write_csv(config.parent / "patients.csv", rows)
    assert "nothing: all of it was paid before" in simulate(config)


def test_a_seal_is_of_all_records_and_of_the_folder() -> None:
    one, other = (
        {"alice": Records(np.full((2, 3), value, dtype=np.float32), np.zeros(2, dtype=np.int64))} for value in (1, 2)
    )
    seals = {
        sealed(key, *of) for key in (b"k", b"l") for of in ((one, one), (one, other), (other, one), (other, other))
    }
    assert len(seals) == 8


def test_the_folder_s_own_file_pays_from_the_same_ledgers(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is read, and into another folder: which is another training to whoever looks at the ledger."""
    simulate(config)
    before = paid(config)
    monkeypatch.chdir("/")
    again = ["simulate", str(config.parent / "out" / "config.toml"), "--output", str(config.parent / "again")]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert paid(config) == before + taken_part(config, 1, "again")


def test_trainings_that_a_limit_has_no_room_for_do_not_begin(config: Path) -> None:
    """Code 2; no folder, and no ledger is begun, also where one client alone has too little room."""
    changed(config, "client_rate = 0.5", "client_rate = 1.0")
    said = simulate(config, "--rounds", 4000, exit_code=2)
    assert "client.holder: expected room for " in said
    assert "lose in all tasks must stay <= 12 at delta = 1e-05" in said
    assert not (config.parent / "out").exists()
    assert not (config.parent / "paid").exists()

    spend = ["holder", "charge", str(config.parent / "paid" / "c"), "--client", "c", "--task", "other"]
    spend += ["--noise-multiplier", "2", "--rounds", "1", "--limit-epsilon", "12"]
    (config.parent / "paid").mkdir()
    while CliRunner().invoke(app, spend).exit_code == 0:
        spend = [word for word in spend if word not in {"--limit-epsilon", "12"}]
    assert "uploads of 'c' by these trainings, found room for " in simulate(config, exit_code=2)
    assert [path.name for path in (config.parent / "paid").iterdir()] == ["c"]
    assert not (config.parent / "out").exists()


def test_trainings_need_room_for_all_of_them(config: Path) -> None:
    """One seed too many for the limit, and none is paid; as many as there is room for are."""
    simulate(changed(config, "client_rate = 0.5", "client_rate = 1.0"))
    room = int(1 / read(config.parent / "paid" / "a")[0].share_spent)
    assert 2 <= room < 20
    assert f"room for {6 * room} uploads of 'a' by these" in simulate(config, "--seeds", room + 1, exit_code=2)
    assert paid(config) == taken_part(config, 1)
    simulate(config, "--seeds", room)
    assert paid(config) == taken_part(config, room)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("first_seed = 3", 'algorithm = "non-private"', "expected simulation.algorithm precad or deployed"),
        ("[client]\n", '[client]\nattacks = { a = "scaled" }\n', "client.holder: expected no attacks in a simulation"),
        ('"paid/{client}"', '"paid"', "client.holder.ledger: expected {client} in the name, as 4 clients are here"),
    ],
)
def test_what_has_no_price_is_refused(config: Path, old: str, new: str, message: str) -> None:
    assert message in simulate(changed(config, old, new), exit_code=2)
    assert not (config.parent / "paid").exists()
    assert not (config.parent / "out").exists()


def test_rounds_behind_a_budget_are_not_paid(config: Path) -> None:
    """The budget ends the training, for draws that the key knows before."""
    changed(config, "rounds = 6", "rounds = 60\nepsilon_budget_one_server = 3.0")
    simulate(config)
    assert paid(config) == taken_part(config, 1)
    assert json.loads((config.parent / "out" / "summary.json").read_text())["seeds"][0]["rounds"] < 60


def test_records_in_bins_pay_by_epochs(config: Path) -> None:
    """Seven rounds of two are four epochs, each of which every client pays at the price of one release."""
    changed(config, "client_rate = 0.5", "client_rate = 1.0")
    simulate(changed(config, "rounds = 6", "rounds = 5\nrecord_bins = 2"))
    assert paid(config) == dict.fromkeys("abcd", 3)
    simulate(config, "--rounds", 7)
    assert paid(config) == dict.fromkeys("abcd", 4)
    for line in read(config.parent / "paid" / "a")[0].lines:
        assert line.payment.event is not None
        assert line.payment.event.sampling_rate == 1.0
        assert line.payment.event.noise_multiplier == pytest.approx(2.0, rel=1e-3)  # less what the grid adds to R


def test_evaluations_by_clients_are_paid_too(config: Path) -> None:
    """One after every second round: three, of a client that is drawn in each."""
    changed(config, "client_rate = 0.5", "client_rate = 1.0")
    changed(config, "rounds = 6", 'rounds = 6\nevaluation = "clients"\nevaluation_every = 2\nevaluation_noise = 4.0')
    simulate(changed(config, "[client]\n", "[client]\nholdout = 0.25\n"))
    lines = read(config.parent / "paid" / "a")[0].lines
    rates = {line.payment.event.sampling_rate: line.payment.times for line in lines if line.payment.event is not None}
    assert rates == {0.5: 6, 1.0: 3}
    simulate(config, "--rounds", 8)
    assert paid(config)["a"] == 8 + 4


def test_an_audit_that_trains_anew_pays_all_rounds(config: Path) -> None:
    """Its draws come from the operating system, so that each client pays as if it was in every round."""
    changed(config, "client_rate = 0.5", "client_rate = 1.0")
    arguments: list[Any] = ["audit", "privacy", config, "--rounds", 2, "--canaries", 64, "--threads", 1]
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code in (0, 1), done.stderr  # chance accuses one sound system of twenty
    assert paid(config) == dict.fromkeys("abcd", 2)
    arguments[4] = 4000
    refused = CliRunner().invoke(app, [str(one) for one in arguments])
    assert refused.exit_code == 2
    assert "client.holder: expected room for 4000 uploads of 'a' by these trainings, found room for " in refused.stderr
    seeded = CliRunner().invoke(app, [str(one) for one in [*arguments, "--seed", 1]])
    assert (seeded.exit_code, "--seed: expected none with client.holder" in seeded.stderr) == (2, True)
    assert paid(config) == dict.fromkeys("abcd", 2)
