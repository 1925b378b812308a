"""`precad audit validation` as its user runs it: its standard output and its exit code, also as a process."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precad.deploy.cli.main import main
from precad.deploy.localhost.processes import SAFE_PATH
from tests.mpc.gate_costs import ROUNDS

PAIR = [2**32, 3 * 2**32, 0]
"""X^T X = 10 * 2^64, which is 0 modulo 2^64: the printed protocol's check accepts it."""
ON_THE_SPHERE = [2**16, 0, 0]
ONE_TOO_LONG = [2**16, 1, 0]
HONEST = [30_000, -40_000, 1]
SUBMISSIONS = {"accept": [HONEST, ON_THE_SPHERE, [0, 0, 0]], "reject": [PAIR, ONE_TOO_LONG, [-(2**63), 0, 0]]}


OTHERS = 64 + 6 * 64 + (48 + 1) + 32
"""Commitment and coin; six bindings and two field elements of each; a bit of carry for 384 rows and for six norms."""
CRYPTEN = 208 * (192 + 6)
"""Two rows of 31 bits to a word, and a norm of 34."""
NATIVE = 48 * (6 * 31 + 6 * 2) + 1 * (7 * 31 + 7 * 2)
"""Six blocks of five bits for the rows, seven for the norms: 31 products and two bits of each."""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with these arguments; its output as text."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "audit", "validation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process, from its arguments to its exit code: an interpreter's start is saved."""
    monkeypatch.setenv(*next(iter(SAFE_PATH.items())))  # `main` sets it, and it goes again with the test

    def end(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["precad", "audit", "validation", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(sys.argv, ended.value.code or 0, *capfd.readouterr())  # type: ignore[arg-type]

    return end


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Three vectors that are within the bound C = 1 and three that are not."""
    np.savez(tmp_path / "x.npz", x=np.array([*SUBMISSIONS["accept"], *SUBMISSIONS["reject"]], dtype=np.int64))
    return tmp_path / "x.npz"


@pytest.mark.parametrize(
    ("mode", "gate", "n_bytes"),
    [
        ("masked", "crypten", OTHERS + CRYPTEN),
        pytest.param("shares", "crypten", OTHERS + CRYPTEN + 6 * 24, marks=pytest.mark.slow),
        pytest.param("masked", "native", OTHERS + NATIVE, marks=pytest.mark.slow),
        ("shares", "native", OTHERS + NATIVE + 6 * 24),
    ],
)
def test_json_holds_the_verdicts_and_what_they_rest_on(
    run_here: Run, vectors: Path, mode: str, gate: str, n_bytes: int
) -> None:
    """One JSON object on standard output: honest vectors accepted, the wrapped pair and its like rejected.

    Without --mode and --gate, what runs is the masked form with CrypTen's gate.
    """
    options = [*(() if mode == "masked" else ("--mode", mode)), *(() if gate == "crypten" else ("--gate", gate))]
    done = run_here("--vectors", vectors, "--clip", 1, *options, "--seed-count", 2, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.pop("log2_honest_failure") == pytest.approx(7 - (2**29 / 2**16) ** 2 / math.log(2))
    assert report == {
        "verdicts": ["accept"] * 3 + ["reject"] * 3,
        "accept_counts": [2, 2, 2, 0, 0, 0],
        "seed_count": 2,
        "n": 6,
        "dim": 3,
        "clip": 1.0,
        "frac_bits": 16,
        "threshold": 2**32,
        "rows": 64,
        "log2_soundness_error": -64,
        "gate": gate,
        "mode": mode,
        "rounds": ROUNDS[gate],
        "bytes_per_direction": n_bytes,
    }


def test_mode_proved_gives_the_same_verdicts(run_here: Run, vectors: Path) -> None:
    """Words stand for their residues modulo p. Five messages: lock, coin, proofs, 14 (c + 3) bytes each, verdicts."""
    done = run_here("--vectors", vectors, "--clip", 1, "--mode", "proved", "--seed-count", 3, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdicts"] == ["accept"] * 3 + ["reject"] * 3
    assert report["accept_counts"] == [3, 3, 3, 0, 0, 0]
    assert (report["gate"], report["mode"], report["rows"], report["threshold"]) == (None, "proved", 64, 2**32)
    assert report["log2_soundness_error"] == pytest.approx(-64, abs=0.01)
    assert report["log2_honest_failure"] < -40
    assert report["rounds"] == 5
    assert report["bytes_per_direction"] == (32 + 6 * 32) + 32 + (32 + 6 * 32) + 6 * 14 * (1 + 3) + 32


def test_mode_proved_has_64_rows_and_bounds_of_its_own(refused: Callable[..., str], vectors: Path) -> None:
    message = refused("--vectors", vectors, "--clip", 1, "--mode", "proved", "--rows", 8)
    assert "--rows: expected 64 with --mode proved, whose proofs have no other, found 8" in message
    assert "frac_bits: expected at most 22" in refused(
        "--vectors", vectors, "--clip", 1, "--mode", "proved", "--frac-bits", 23
    )


def test_lines_for_people_number_the_vectors(run_here: Run, vectors: Path) -> None:
    """Without --json one line per vector; bound and fractional bits given together move the threshold."""
    done = run_here("--vectors", vectors, "--clip", "0.5", "--frac-bits", 17)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\taccept\n1\taccept\n2\taccept\n3\treject\n4\treject\n5\treject\n"


def test_a_vector_that_any_run_accepts_counts_as_accepted(run_here: Run, tmp_path: Path) -> None:
    """With one row 2^63 e_1 passes half of the time: 60 runs accept it neither never nor always (2^-59)."""
    np.savez(tmp_path / "x.npz", x=np.array([[-(2**63)]]))
    done = run_here("--vectors", tmp_path / "x.npz", "--clip", 1, "--rows", 1, "--seed-count", 60, "--json")
    report = json.loads(done.stdout)
    assert report["verdicts"] == ["accept"]
    assert 0 < report["accept_counts"][0] < 60
    assert (report["rows"], report["log2_soundness_error"]) == (1, -1)


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that ends with exit code 2, says nothing on standard output and shows no traceback."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def refused(run_here: Run) -> Callable[..., str]:
    """`message_of` a command in this process."""
    return lambda *arguments: message_of(run_here(*arguments))


def test_a_missing_file_is_invalid_input(tmp_path: Path) -> None:
    """Exit code 2, and the message names flag and path."""
    message = message_of(run("--vectors", tmp_path / "none.npz", "--clip", 1))
    assert message.startswith("precad: --vectors: expected a .npz file, found ")
    assert message.endswith("none.npz: No such file or directory\n")
    assert str(tmp_path / "none.npz") in message


ARCHIVES = {
    "no array x": ({"y": np.zeros((2, 3), dtype=np.int64)}, "expected an array named x"),
    "float": ({"x": np.zeros((2, 3))}, "expected x of int64 and shape (n, d), found float64 and shape (2, 3)"),
    "int32": ({"x": np.zeros((2, 3), dtype=np.int32)}, "found int32 and shape (2, 3)"),
    "uint64": ({"x": np.zeros((2, 3), dtype=np.uint64)}, "found uint64 and shape (2, 3)"),
    "one vector": ({"x": np.zeros(3, dtype=np.int64)}, "found int64 and shape (3,)"),
    "no vectors": ({"x": np.zeros((0, 3), dtype=np.int64)}, "found int64 and shape (0, 3)"),
    "pickled": ({"x": np.array([[None]])}, "expected a .npz file"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_without_int64_vectors_is_invalid_input(
    refused: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    """Exit code 2, and the message says what was expected and what was found; nothing is unpickled."""
    arrays, expected = ARCHIVES[kind]
    np.savez(tmp_path / "x.npz", **arrays)
    message = refused("--vectors", tmp_path / "x.npz", "--clip", 1)
    assert message.startswith("precad: --vectors: ")
    assert expected in message


def archive_of(data: bytes, *, method: int = zipfile.ZIP_STORED) -> bytes:
    """A .npz file whose array x is these bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x.npy", data)
    return buffer.getvalue()


def array_file(shape: str = "(20, 3)") -> bytes:
    """20 vectors as a .npy file that claims this shape."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(20 * 3 * 8)


def replaced(data: bytes, offset: int, byte: int) -> bytes:
    """Return the bytes with one replaced by a different one."""
    assert data[offset] != byte
    return data[:offset] + bytes([byte]) + data[offset + 1 :]


def in_directory(data: bytes, offset: int, byte: int) -> bytes:
    """The archive with one byte of its directory's only entry changed."""
    return replaced(data, data.index(b"PK\x01\x02") + offset, byte)


INTACT, DEFLATED = archive_of(array_file()), archive_of(array_file(), method=zipfile.ZIP_DEFLATED)
DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"0 1 2\n",
    "cut in the middle": lambda: INTACT[: len(INTACT) // 2],
    "last byte missing": lambda: INTACT[:-1],
    "a byte of the array changed": lambda: replaced(INTACT, 300, 1),
    "no array inside": lambda: archive_of(b""),
    "half of an array inside": lambda: archive_of(array_file()[:300]),
    "not an array inside": lambda: archive_of(b"0 1 2\n"),
    "more vectors claimed than there are": lambda: archive_of(array_file("(1000, 3)")),
    "more vectors claimed than fit in memory": lambda: archive_of(array_file("(1000000000000, 3)")),
    "more vectors claimed than can be counted": lambda: archive_of(array_file("(100000000000000000000, 3)")),
    "a compressed byte changed": lambda: replaced(DEFLATED, DEFLATED.index(b"x.npy") + 5, 0xFF),
    "an unknown compression": lambda: in_directory(INTACT, 10, 77),
    "marked as encrypted": lambda: in_directory(INTACT, 8, 1),
}


def test_the_archive_that_the_damaged_ones_are_made_from_is_read(run_here: Run, tmp_path: Path) -> None:
    """So that what is refused of those is their damage."""
    for data in (INTACT, DEFLATED):
        (tmp_path / "x.npz").write_bytes(data)
        done = run_here("--vectors", tmp_path / "x.npz", "--clip", 1, "--gate", "native")
        assert done.stdout == "".join(f"{i}\taccept\n" for i in range(20)), done.stderr


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_archive_is_invalid_input(refused: Callable[..., str], tmp_path: Path, damage: str) -> None:
    """Exit code 2 and one line that names the flag and what was expected, whatever is wrong with the file."""
    path = tmp_path / "x.npz"
    path.write_bytes(DAMAGED[damage]())
    message = refused("--vectors", path, "--clip", 1)
    assert message.startswith("precad: --vectors: expected ")
    assert message.count("\n") == 1


def test_a_directory_is_invalid_input(refused: Callable[..., str], tmp_path: Path) -> None:
    """Exit code 2, as for a missing file."""
    assert "expected a .npz file" in refused("--vectors", tmp_path, "--clip", 1)


def test_a_file_that_is_no_archive_is_invalid_input(refused: Callable[..., str], tmp_path: Path) -> None:
    """A bare .npy array is refused as well."""
    np.save(tmp_path / "x.npy", np.zeros((2, 3), dtype=np.int64))
    assert "expected a .npz file" in refused("--vectors", tmp_path / "x.npy", "--clip", 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--clip", "0"), "clip_norm: expected a finite number above 0, found 0.0"),
        (("--clip", "-1"), "clip_norm: expected a finite number above 0, found -1.0"),
        (("--clip", "nan"), "clip_norm: expected a finite number above 0, found nan"),
        (("--clip", "inf"), "clip_norm: expected a finite number above 0, found inf"),
        (
            ("--clip", "1435"),
            "clip_norm * 2^frac_bits: expected at most 94000000, found 1435.0 * 2^16: lower one of them",
        ),
        (
            ("--clip", "1.7e308", "--frac-bits", "40"),
            "clip_norm * 2^frac_bits: expected at most 94000000, found 1.7e+308 * 2^40: lower one of them",
        ),
        (("--clip", "1e-5"), "clip_norm * 2^frac_bits: expected at least 1, found 1e-05 * 2^16"),
        (("--clip", "1", "--frac-bits", "41"), "frac_bits: expected 0 to 40, found 41"),
        (("--clip", "1", "--rows", "65"), "n_rows: expected 1 to 64, found 65"),
        (("--clip", "1", "--mode", "plain"), "'plain' is not one of 'masked', 'shares'"),
        (("--clip", "1", "--gate", "spdz"), "'spdz' is not one of 'crypten', 'native'"),
        ((), "Missing option '--clip'"),
    ],
)
def test_parameters_outside_the_proof_are_invalid_input(
    refused: Callable[..., str], vectors: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """Exit code 2 and the condition that the parameter breaks, before any work."""
    assert expected in refused("--vectors", vectors, *arguments)
