"""Imports of `mpc`: the dealer and the servers' start need neither PyTorch nor CrypTen."""

import subprocess
import sys

import pytest

MODULES = (
    *("ring", "fixed_point", "prg", "sharing", "norm_bound", "tuples.held", "tuples.dealt", "channel", "joint_coin"),
    *("local.rows", "tuples.correlations", "gate_names", "crypten.crypten_gate", "gate.native_gate", "gate.top_bits"),
    *("gate.equality", "validation", "kernels.loading"),
)


def python(program):
    """Standard output of a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("modules", [("tuples.dealt",), MODULES])
def test_importing_loads_neither_torch_nor_crypten(modules):
    """Also not at one remove: sys.modules of a fresh interpreter that dealt a batch holds neither."""
    imports = "; ".join(f"import precad.mpc.{module}" for module in modules)
    use = """
from precad.mpc.tuples.correlations import AndBlock, BitBlock, CarryBlock
from precad.mpc.tuples.held import BatchShape
precad.mpc.tuples.dealt.deal(BatchShape('t', 0, ('c',), 9, (AndBlock(5), BitBlock(5), CarryBlock(5, 5, 6))))
"""
    shown = "print(*sorted(m.partition('.')[0] for m in sys.modules))"
    loaded = python(f"import sys; {imports}\n{use}\n{shown}").split()
    assert "precad" in loaded
    assert not {"torch", "crypten"} & set(loaded)


def test_a_gate_without_crypten_says_what_to_install():
    """Where CrypTen is missing, make_gate raises GateUnavailableError with its name and the command."""
    program = """
import sys
sys.modules["crypten"] = None  # Python's own way to make an import fail
from precad.mpc.errors import GateUnavailableError
from precad.mpc.gate_names import make_gate
try:
    make_gate("crypten")
except GateUnavailableError as error:
    print(error)
"""
    message = python(program)
    assert "cannot load crypten" in message
    assert "pip install --no-deps crypten==0.4.1" in message


CHECK = """
import numpy as np
from precad.mpc.channel import run_pair
from precad.mpc.tuples.dealt import deal
from precad.mpc.gate_names import make_gate
from precad.mpc.gate.top_bits import blocks, shares_of_zero
from precad.mpc.tuples.held import BatchShape, ServerTuples
gate = make_gate({name!r})
loaded = set(sys.modules)
low_bits = (30, 42)
shape = BatchShape("t", 0, (), 1, blocks(gate, 2, low_bits))
sides = [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape))]
words = np.array([[[2**30 - 1, -5], [1 - 2**40, 2**41]], [[1, 6], [2**40, 2**41]]])
a, b = run_pair(lambda ch: shares_of_zero(words[ch.party], low_bits, gate, sides[ch.party], ch))
print((a == b).tolist())
"""
"""Words of which the lowest bits vanish or not: 2^30 and 2^42 do not, 1 does."""


def test_the_native_gate_needs_neither_torch_nor_crypten():
    """Where both are missing, it tells words whose top bits vanish."""
    without = 'import sys; sys.modules["crypten"] = sys.modules["torch"] = None'
    assert python(without + CHECK.format(name="native")) == "[[False, True], [True, False]]\n"


def test_a_check_by_crypten_imports_nothing_more():
    """No round waits for it. (`torch.broadcast_shapes` would import SymPy: half a second at each server.)"""
    more = 'print(*(name for name in sorted(set(sys.modules) - loaded) if name.startswith(("torch.", "sympy"))))'
    assert python("import sys" + CHECK.format(name="crypten") + more) == "[[False, True], [True, False]]\n\n"


def test_a_missing_crypten_is_noticed_before_anything_is_loaded():
    """require_gate names what is missing and the command; the native gate needs none of it, and takes its place."""
    program = """
import sys
from precad.mpc.crypten import lookups as comparison
from precad.mpc import gate_names
from precad.mpc.errors import GateUnavailableError
found = comparison.find_spec
print(gate_names.usual_gate() == ("crypten" if found("crypten") and found("onnx") else "native"))
comparison.find_spec = lambda name: None if name == "crypten" else found(name)
print(gate_names.usual_gate())
gate_names.require_gate("native")
try:
    gate_names.require_gate("crypten")
except GateUnavailableError as error:
    print(error)
print("torch" in sys.modules)
"""
    is_there, instead, message, is_loaded = python(program).splitlines()
    assert (is_there, instead) == ("True", "native")
    assert message.startswith("gate 'crypten' needs crypten: install 'precad[crypten-runtime]'")
    assert is_loaded == "False"
