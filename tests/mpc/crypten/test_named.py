"""Functions of the sum by name: whose file it is, and what a declared factor needs."""

from __future__ import annotations

import hashlib
import importlib
import py_compile
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from precad.mpc.crypten import examples
from precad.mpc.crypten.bridge import FRAC_BITS
from precad.mpc.crypten.named import named_function, require_file
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


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_digest_is_that_of_the_file() -> None:
    digest = digest_of(Path(examples.__file__))
    require_file(CLIP, digest)
    with pytest.raises(FunctionRefusedError, match=f"sum_function_sha256: expected {'0' * 64}, found {digest} of the"):
        require_file(CLIP, "0" * 64)


@pytest.mark.parametrize("name", ["no_such_module:f", "precad.no_such:f", "sys:f", "precad.mpc.crypten.examples.x:f"])
def test_what_is_no_file_of_python_is_refused(name: str) -> None:
    with pytest.raises(FunctionRefusedError, match=r"expected an importable file of Python, \*\.py, found"):
        require_file(name, "0" * 64)


@pytest.mark.parametrize("module", [True], indirect=True)
def test_a_file_with_another_digest_is_not_run(module: str, tmp_path: Path) -> None:
    """It would raise at its import, which a file with the right digest does; what it says stays out of the message."""
    with pytest.raises(FunctionRefusedError, match="sum_function_sha256"):
        named_function(f"{module}:relu", "0" * 64, {}, 4)
    with pytest.raises(FunctionRefusedError, match=r"importing .* raised RuntimeError$"):
        named_function(f"{module}:relu", digest_of(tmp_path / f"{module}.py"), {}, 4)


CALLED = "def f(x):\n    return x + {}\n"


def added(name: str, sha256: str) -> int:
    """Return what the loaded function adds to zero, in words of the grid."""
    return int(named_function(name, sha256, {}, 1).in_the_clear(np.zeros(1, dtype=np.int64))[0]) >> FRAC_BITS


def test_the_bytes_that_were_hashed_run_and_no_stale_bytecode(module: str, tmp_path: Path) -> None:
    """An unchecked-hash .pyc of other code lies where Python takes it without a look at the source."""
    file, other = tmp_path / f"{module}.py", tmp_path / "other.py"
    other.write_text(CALLED.format(2))
    file.write_text(CALLED.format(1))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cache_from_source(str(file)), invalidation_mode=mode)
    assert added(f"{module}:f", digest_of(file)) == 1
    try:
        assert importlib.import_module(module).f(0) == 2  # so an import would have run the other code
    finally:
        sys.modules.pop(module, None)


def test_a_module_that_is_there_already_does_not_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged entry of that name, whose spec points at the file with the right digest; it stays as it was."""
    file = tmp_path / f"{module}.py"
    file.write_text(CALLED.format(1))
    forged = ModuleType(module)
    forged.__spec__ = find_spec(module)
    forged.f = lambda x: x + 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, forged)
    assert added(f"{module}:f", digest_of(file)) == 1
    assert sys.modules[module] is forged


def test_no_package_around_a_file_runs_before_its_digest_is_compared(module: str, tmp_path: Path) -> None:
    """Nor afterwards, unless the file imports it. Relative imports work, and so do data classes."""
    (tmp_path / f"in_{module}").mkdir()
    ran = tmp_path / "ran"
    (tmp_path / f"in_{module}" / "__init__.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    name = f"in_{module}.file"
    file = tmp_path / f"in_{module}" / "file.py"
    future = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    file.write_text(f"{future}@dataclass\nclass A:\n    a: int = 1\n{CALLED.format('A().a')}")
    with pytest.raises(FunctionRefusedError, match="sum_function_sha256"):
        require_file(f"{name}:f", "0" * 64)
    assert added(f"{name}:f", digest_of(file)) == 1
    assert name not in sys.modules
    assert not ran.exists()
    (tmp_path / f"in_{module}" / "helper.py").write_text("ONE = 1\n")
    file.write_text(f"from .helper import ONE\n{CALLED.format('ONE')}")
    assert added(f"{name}:f", digest_of(file)) == 1
    assert ran.exists()


def test_bytecode_alone_is_no_file_of_python(module: str, tmp_path: Path) -> None:
    py_compile.compile(str(tmp_path / f"{module}.py"), str(tmp_path / f"{module}.pyc"))
    (tmp_path / f"{module}.py").unlink()
    assert find_spec(module) is not None
    with pytest.raises(FunctionRefusedError, match=r"expected an importable file of Python, \*\.py, found"):
        require_file(f"{module}:relu", "0" * 64)


def test_a_factor_is_for_exact_functions_of_which_zero_is_zero(module: str, tmp_path: Path) -> None:
    """CrypTen's truncation is now and then wrong by 2^48: no factor bounds it."""

    def load(name: str, *, is_bounded: bool) -> object:
        return named_function(f"{module}:{name}", digest_of(tmp_path / f"{module}.py"), {}, 4, is_bounded=is_bounded)

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
        named_function(CLIP, digest_of(Path(examples.__file__)), {"limit": 1.0}, 4)
