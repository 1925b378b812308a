"""Functions of the sum by name: whose file it is, and what a declared factor needs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from precad.mpc.crypten import examples
from precad.mpc.crypten.named import file_digest, named_function, require_file
from precad.mpc.errors import FunctionRefusedError
from tests.mpc.crypten.test_bridge import MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "CrypTen is there")
CLIP = "precad.mpc.crypten.examples:clip"
OWN = """
raise_at_import = {raises}
if raise_at_import:
    raise RuntimeError("secret")

def relu(x):
    return x.relu()

def mean_is_zero(x):
    return x - x.sum() / 4

def shifted(x):
    return x + 1

some_list = []
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A user's module of a name of its own, which can be imported."""
    name = f"functions_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    (tmp_path / f"{name}.py").write_text(OWN.format(raises=getattr(request, "param", False)))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_digest_is_that_of_the_file() -> None:
    digest = hashlib.sha256(Path(examples.__file__).read_bytes()).hexdigest()
    assert file_digest(CLIP) == digest
    require_file(CLIP, digest)
    with pytest.raises(FunctionRefusedError, match=f"sum_function_sha256: expected {'0' * 64}, found {digest} of the"):
        require_file(CLIP, "0" * 64)


@pytest.mark.parametrize("name", ["no_such_module:f", "precad.no_such:f", "sys:f", "precad.mpc.crypten.examples.x:f"])
def test_what_is_no_file_of_python_is_refused(name: str) -> None:
    with pytest.raises(FunctionRefusedError, match="sum_function: expected an importable file of Python, found"):
        file_digest(name)


@pytest.mark.parametrize("module", [True], indirect=True)
def test_a_file_with_another_digest_is_not_run(module: str) -> None:
    """It would raise at its import, which a file with the right digest does; what it says stays out of the message."""
    with pytest.raises(FunctionRefusedError, match="sum_function_sha256"):
        named_function(f"{module}:relu", "0" * 64, {}, 4)
    with pytest.raises(FunctionRefusedError, match=r"importing .* raised RuntimeError$"):
        named_function(f"{module}:relu", file_digest(f"{module}:relu"), {}, 4)


def test_a_factor_is_for_exact_functions_of_which_zero_is_zero(module: str) -> None:
    """CrypTen's truncation is now and then wrong by 2^48: no factor bounds it."""

    def load(name: str, *, is_bounded: bool) -> object:
        return named_function(f"{module}:{name}", file_digest(f"{module}:{name}"), {}, 4, is_bounded=is_bounded)

    for name in ("relu", "mean_is_zero", "shifted"):
        load(name, is_bounded=False)
    load("relu", is_bounded=True)
    with pytest.raises(FunctionRefusedError, match=r"sum_function_factor: expected none, as .* truncates"):
        load("mean_is_zero", is_bounded=True)
    with pytest.raises(FunctionRefusedError, match="does not take zero to zero"):
        load("shifted", is_bounded=True)
    with pytest.raises(FunctionRefusedError, match="raised AttributeError"):
        load("no_such", is_bounded=True)
    with pytest.raises(FunctionRefusedError, match="some_list raised TypeError"):
        load("some_list", is_bounded=False)


def test_arguments_that_a_function_does_not_have_are_refused() -> None:
    with pytest.raises(FunctionRefusedError, match="raised TypeError"):
        named_function(CLIP, file_digest(CLIP), {"limit": 1.0}, 4)
