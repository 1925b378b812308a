"""Sizes of a proof and the conditions of its theorems, each on both sides of its bound."""

import math
from fractions import Fraction

import pytest

from precad.mpc.errors import ParameterError
from precad.mpc.proved.field import P
from precad.mpc.proved.sizes import ProofSizes, check_round, largest_frac_bits


@pytest.mark.parametrize(
    ("dim", "wire", "wires", "domain", "elements", "opened"),
    [
        (26_010, 256, 102, 2048, 4020, 1_470),
        (10**5, 512, 196, 2048, 4720, 2_786),
        (10**6, 1024, 977, 2048, 7306, 13_720),
        (10**8, 16_384, 6104, 2048, 48_280, 85_498),
    ],
)
def test_sizes_of_the_specification(dim, wire, wires, domain, elements, opened):
    """The table of the specification, C = 1 and f = 16."""
    sizes = ProofSizes(1.0, dim, 16)
    assert (sizes.wire_length, sizes.n_wires, sizes.bit_domain) == (wire, wires, domain)
    assert (sizes.proof_elements, sizes.proof_bytes, 14 * sizes.opened_elements) == (elements, 7 * elements, opened)
    assert sizes.proof_elements == sizes.n_bits + 2 * wires + 2 * wire + domain - 57
    assert sizes.upload_bytes == 7 * dim


@pytest.mark.parametrize(("dim", "wire", "wires"), [(1, 16, 1), (16, 16, 1), (17, 16, 2), (256, 16, 16), (257, 32, 9)])
def test_wires_of_few_coordinates(dim, wire, wires):
    sizes = ProofSizes(1.0, dim, 16)
    assert (sizes.wire_length, sizes.n_wires) == (wire, wires)


def test_the_smallest_and_the_largest_bound():
    """B = 1 gives 257 bits; the largest B gives w = 25, tau = 45 and 1709 bits."""
    smallest, largest = ProofSizes(1.0, 1, 0), ProofSizes(5_876_432.0, 1, 0)
    assert (smallest.window_bits, smallest.norm_bits, smallest.n_bits, smallest.bit_domain) == (3, 1, 257, 512)
    assert (largest.window_bits, largest.norm_bits, largest.n_bits, largest.bit_domain) == (25, 45, 1709, 2048)


def test_the_threshold_is_of_the_exact_rational():
    """C is a float64: T = floor(B^2) of that number, and B itself is never rounded."""
    sizes = ProofSizes(0.1, 10, 16)
    assert sizes.encoded_clip == Fraction(0.1) * 2**16
    assert sizes.threshold == math.floor((Fraction(0.1) * 2**16) ** 2)


@pytest.mark.parametrize("window_bits", [4, 13, 20, 25])
def test_the_window_grows_where_5_71_times_the_bound_passes_it(window_bits):
    """100 2^w >= 571 B, on both sides."""
    largest = 100 * 2**window_bits // 571
    assert ProofSizes(float(largest), 1, 0).window_bits == window_bits
    if window_bits < 25:
        assert ProofSizes(float(largest + 1), 1, 0).window_bits == window_bits + 1
    assert ProofSizes(float(largest), 1, 0).log2_honest_failure < -40


@pytest.mark.parametrize(
    ("clip_norm", "dim", "frac_bits", "message"),
    [
        (1.0, 10, 41, "frac_bits: expected 0 to 40"),
        (1.0, 10, -1, "frac_bits: expected 0 to 40"),
        (0.0, 10, 16, "clip_norm: expected a finite number above 0"),
        (math.inf, 10, 16, "clip_norm: expected a finite number above 0"),
        (math.nan, 10, 16, "clip_norm: expected a finite number above 0"),
        (0.4, 10, 1, "frac_bits: expected clip_norm"),
        (1000.0, 10, 13, "frac_bits: expected at most 12 with clip_norm 1000.0 in mode 'proved', found 13: lower"),
        (5_876_433.0, 10, 0, "clip_norm: expected at most 5876432 in mode 'proved'"),
        (1.0, 0, 16, "dim: expected 1 to 1073741824"),
        (1.0, 2**30 + 1, 16, "dim: expected 1 to 1073741824"),
        (89.6, 1_073_741_776, 16, "dim: expected at most 1073741775 .* lower frac_bits"),
    ],
)
def test_a_condition_that_fails_names_its_field(clip_norm, dim, frac_bits, message):
    with pytest.raises(ParameterError, match=message):
        ProofSizes(clip_norm, dim, frac_bits)


def test_conditions_hold_up_to_their_bounds():
    assert ProofSizes(89.6, 1_073_741_775, 16).window_bits == 25
    assert ProofSizes(1.0, 2**30, 16).log2_soundness_error < -63.9
    assert ProofSizes(1000.0, 10, 12).frac_bits == 12


@pytest.mark.parametrize(("clip_norm", "frac_bits"), [(1.0, 22), (89.6, 16), (1434.0, 12), (1000.0, 12), (1e-9, 40)])
def test_the_most_fractional_bits(clip_norm, frac_bits):
    assert largest_frac_bits(clip_norm) == frac_bits


def test_every_window_leaves_room_for_the_norm():
    """449 b^2 + 10 2^tau <= 10 p and 4 b < p for all w, so no configuration is refused for it."""
    for w in range(1, 26):
        largest = Fraction(100 * 2**w, 571)
        assert 449 * 4**w + 10 * 2 ** math.floor(largest**2).bit_length() <= 10 * P


def test_a_round_that_could_overflow_is_refused():
    check_round(2**20, 2.0**40)
    check_round(0, 0.0)
    for n_clients, noise, message in (
        (2**20 + 1, 0.0, "clients: expected at most 1048576 enrolled .*: enrol fewer"),
        (1, 7.9, "noise_multiplier: expected .*: raise noise_multiplier or frac_bits"),
        (1, 2.0**40 + 1024, "noise_multiplier: expected .*: lower noise_multiplier or frac_bits"),
    ):
        with pytest.raises(ParameterError, match=message):
            check_round(n_clients, noise)
