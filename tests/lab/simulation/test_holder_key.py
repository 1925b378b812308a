"""Draws of simulations that a holder's ledger pays for: of a secret key, by AES, as another implementation makes them.

Failure means noise that somebody can tell: who knows the configuration, who breaks NumPy's generator, or who has
another training on the same noise.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from precad.clients.errors import ArgumentError
from precad.clients.training.record_draws import BinKey
from precad.deploy.cli.main import app
from precad.deploy.configuration.sections import read_toml
from precad.dp.noise import rounded_gaussian
from precad.lab.simulation import Simulation
from precad.lab.simulation.randomness import KeyedRandomness
from precad.lab.simulation.simulate import resolve
from precad.mpc import joint_coin
from precad.mpc.prg import Label, Seed
from tests.harness.command_line import CliRunner
from tests.harness.hospital import hospital

LIMIT = """
[simulation]
first_seed = 3

[client.holder]
ledger = "paid/{client}"
limit_epsilon = 50.0
"""
DIGITS = """
[task]
name = "digits"
clients = 4
rounds = 3
model = "mlp"
delta = 1e-5
client_rate = 0.5
record_rate = 0.1
record_clip = 1.0
client_clip = 8.0
noise_multiplier = 4.0
learning_rate = 1.0

[client]
dataset = "digits"
"""
KEY = bytes(range(32))


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = hospital(tmp_path, request.node.name, rounds=5, n=80)  # a name of its own: it stays imported
    path.write_text(path.read_text().replace("client_rate = 1.0", "client_rate = 0.5") + LIMIT)
    return path


def simulate(config: Path, folder: str, *flags: object, exit_code: int = 0) -> str:
    arguments = ["simulate", config, "--output", config.parent / folder, "--threads", 1, *flags]
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == exit_code, done.stderr
    return str(done.output)


def model(config: Path, folder: str, seed: int = 0) -> NDArray[np.float32]:
    with np.load(config.parent / folder / f"seed-{seed}.npz") as saved:
        return np.array(saved["parameters"])


def stream(secret: bytes, number: int, use: str, t: int, who: str = "") -> Callable[[int], bytes]:
    """Return bytes by HKDF of RFC 5869 in two lines, and blocks of AES one by one, without a mode of the library."""
    info = b"precad/simulation" + json.dumps([number, use, t, who]).encode()
    extracted = hmac.digest(bytes(32), secret, "sha256")
    cipher = Cipher(algorithms.AES256(hmac.digest(extracted, info + b"\x01", "sha256")), modes.ECB()).encryptor()
    left, block = bytearray(), 0

    def some(n: int) -> bytes:
        nonlocal block
        blocks = range(block, block + max(0, -(-(n - len(left)) // 16)))
        left.extend(cipher.update(b"".join(i.to_bytes(16, "big") for i in blocks)))
        block = blocks.stop
        taken = bytes(left[:n])
        del left[:n]
        return taken

    return some


class Counted:
    """Draw all from a folder's key, and count the bytes that each use takes."""

    def __init__(self, secret: bytes, number: int) -> None:
        self._of, self.taken = (secret, number), Counter[str]()

    def _bytes(self, use: str, t: int, who: str = "") -> Callable[[int], bytes]:
        read = stream(*self._of, use, t, who)

        def counted(n: int) -> bytes:
            self.taken[use] += n
            return read(n)

        return counted

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        coin = Seed(self._bytes("coin", t)(16))
        return joint_coin.select_poisson(coin, Label("simulation", t), clients, client_rate)

    def turns(self, clients: Sequence[str], n_turns: int) -> Mapping[str, int]:
        raise AssertionError("expected no turns")

    def records(self, t: int, client: str) -> Callable[[int], bytes]:
        return self._bytes("records", t, client)

    def bins(self, client: str) -> BinKey:
        raise AssertionError("expected no bins")

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> NDArray[np.int64]:
        return rounded_gaussian.sample(std_on_grid, dim, self._bytes("noise", t, source))

    def rule(self, t: int) -> Callable[[int], bytes]:
        return self._bytes("rule", t)

    def attack(self, t: int, client: str) -> Any:
        raise AssertionError("expected no attackers")


def trained(config: Path, folder: str, draws: Any) -> NDArray[np.float32]:
    """Return the model of the same training on the draws that are given."""
    plan = resolve(read_toml(config.parent / folder / "config.toml"))
    simulation = Simulation(
        task=plan.task, settings=plan.settings, records=plan.records, test=plan.split.test, randomness=draws
    )
    assert len(list(simulation.run())) == 5
    return simulation.progress.parameters


def test_every_draw_is_of_the_folder_s_key(config: Path) -> None:
    """The second implementation trains to the same bits; all noise is its bytes, eight a coordinate and server."""
    simulate(config, "out", "--seeds", 2)
    secret = bytes.fromhex((config.parent / "out" / "holder.key").read_text())
    for seed in range(2):
        draws = Counted(secret, 3 + seed)
        assert trained(config, "out", draws).tobytes() == model(config, "out", seed).tobytes()
        dim = len(model(config, "out", seed))
        assert 5 * 2 * 8 * dim <= draws.taken["noise"] <= 5 * 2 * 8 * (dim + 1)
        assert draws.taken["records"] > 0
        assert draws.taken["coin"] == 5 * 16
    other = Counted(hashlib.sha256(secret).digest(), 3)
    assert trained(config, "out", other).tobytes() != model(config, "out").tobytes()


def test_the_same_file_draws_other_noise_in_another_folder(config: Path) -> None:
    """And also where it names a seed. Two trainings with the same noise would show what their records differ by."""
    simulate(config, "one")
    simulate(config, "two")
    keys = [(config.parent / folder / "holder.key") for folder in ("one", "two")]
    assert keys[0].read_text() != keys[1].read_text()
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]
    assert np.all(model(config, "one") != model(config, "two"))
    for folder in ("one", "two"):
        assert "holder.key" not in (config.parent / folder / "config.toml").read_text()
        assert "from a secret key of the operating system" in simulate(config, folder)


def test_a_folder_goes_on_with_its_key_and_not_without(config: Path) -> None:
    """Rounds that were paid are those of its draws: with others they would be others, and unpaid."""
    simulate(config, "halted", "--rounds", 3)
    key = config.parent / "halted" / "holder.key"
    simulate(config, "halted")
    secret = bytes.fromhex(key.read_text())
    assert trained(config, "halted", Counted(secret, 3)).tobytes() == model(config, "halted").tobytes()

    written, ledgers = key.read_text(), [path.read_bytes() for path in sorted((config.parent / "paid").iterdir())]
    key.unlink()
    assert "expected the key that its trainings draw from in" in simulate(config, "halted", "--seeds", 2, exit_code=2)
    key.write_text(written[:-2])
    assert "expected 64 hexadecimal digits in" in simulate(config, "halted", "--seeds", 2, exit_code=2)
    assert [path.read_bytes() for path in sorted((config.parent / "paid").iterdir())] == ledgers


def test_a_folder_whose_payment_is_lost_draws_and_pays_anew(config: Path) -> None:
    """Whoever deletes the record of the payment may train other records: never on noise that a model shows already."""
    simulate(config, "out")
    key, paid = config.parent / "out" / "holder.key", config.parent / "paid"
    before, first = key.read_text(), model(config, "out")
    spent = {path.name: path.read_bytes() for path in paid.iterdir()}
    for name in ("holder.json", "seed-0.npz", "seed-0.jsonl"):
        (config.parent / "out" / name).unlink()
    simulate(config, "out")
    assert key.read_text() != before
    assert key.stat().st_mode & 0o777 == 0o600
    assert np.all(model(config, "out") != first)
    again = {path.name: path.read_bytes() for path in paid.iterdir()}  # of those who were drawn; the others pay nothing
    assert all(again[name].startswith(lines) for name, lines in spent.items())
    assert again != spent


def test_a_folder_trains_nothing_else_under_its_key(config: Path) -> None:
    """Nor where its models are gone and its file was edited: two trainings under one noise show more than either."""
    simulate(config, "out", "--rounds", 3)
    spent = {path.name: path.read_bytes() for path in (config.parent / "paid").iterdir()}
    for name in ("seed-0.npz", "seed-0.jsonl"):
        (config.parent / "out" / name).unlink()
    for path in (config, config.parent / "out" / "config.toml"):
        text = path.read_text()
        assert "\nrecord_clip = 1.0\n" in text
        path.write_text(text.replace("\nrecord_clip = 1.0\n", "\nrecord_clip = 0.5\n"))
    assert "expected the configuration that was paid for in" in simulate(config, "out", exit_code=2)
    assert {path.name: path.read_bytes() for path in (config.parent / "paid").iterdir()} == spent
    assert not (config.parent / "out" / "seed-0.npz").exists()


def test_workers_draw_from_the_folder_s_key(config: Path) -> None:
    simulate(config, "out", "--seeds", 2, "--workers", 2)
    secret = bytes.fromhex((config.parent / "out" / "holder.key").read_text())
    assert trained(config, "out", Counted(secret, 4)).tobytes() == model(config, "out", 1).tobytes()


def test_a_report_without_the_key_says_so(tmp_path: Path) -> None:
    """And with it has epsilon by round, whose last is what the summary says."""
    config = tmp_path / "task.toml"
    config.write_text(DIGITS + LIMIT)
    simulate(config, "out")
    made = ["report", str(tmp_path / "out"), "--output", str(tmp_path / "page.html")]
    told = "the key that its draws follow from, holder.key, is not here"
    assert CliRunner().invoke(app, made).exit_code == 0
    assert "Epsilon by round is not drawn" not in (tmp_path / "page.html").read_text()
    (tmp_path / "out" / "holder.key").unlink()
    assert CliRunner().invoke(app, made).exit_code == 0
    assert told in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("std", [0.4, 1.7])
def test_noise_has_the_discrete_law_of_the_accounting(std: float) -> None:
    """round(std Z), against the normal distribution function, over many streams; streams of two sources are apart."""
    draws = KeyedRandomness(KEY, 0)
    found = np.concatenate([draws.noise(t, f"server-{party}", std, 500) for t in range(200) for party in (0, 1)])
    edge = int(3.5 * std) + 1
    values = np.arange(-edge, edge + 1)
    share = norm.cdf((values + 0.5) / std) - norm.cdf((values - 0.5) / std)
    share[[0, -1]] = norm.cdf((-edge + 0.5) / std)
    expected = share * len(found)
    observed = np.array([np.sum(np.clip(found, -edge, edge) == value) for value in values])
    assert np.sum((observed - expected) ** 2 / expected) < chi2.isf(1e-4, len(values) - 1)
    a, b = found.reshape(200, 2, 500).transpose(1, 0, 2).reshape(2, -1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(a.size)


def test_draws_are_apart_by_number_use_round_and_client() -> None:
    """No two labels share a stream, however names are written."""
    one, other = KeyedRandomness(KEY, 1), KeyedRandomness(KEY, 2)
    streams = [
        draws.records(t, client)(16)
        for draws in (one, other)
        for t in (1, 11)
        for client in ("a", "1", '1", "a', "a/1", "")
    ]
    streams += [draws.rule(t)(16) for draws in (one, other) for t in (1, 11)]
    assert len(set(streams)) == len(streams)
    with pytest.raises(ArgumentError, match="secret: expected 32 bytes, found 16"):
        KeyedRandomness(KEY[:16], 0)
    assert KEY.hex() not in repr(one)
