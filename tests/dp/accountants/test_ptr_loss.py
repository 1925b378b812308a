"""PTR by loss distributions: against integration of the mechanism itself on hostile neighbours, dp_accounting, Renyi
moments, simulation, and an attack on the exact mechanism."""

import itertools
import math
import warnings

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.ptr_loss import pld_eps_ptr, ptr_loss_distribution
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds, ptr_threshold
from precad.dp.accountants.renyi import log_binomial_weights, rdp_laplace
from precad.dp.published.propose_test_release import tsum_safety_margin
from precad.dp.trimmed.propose_test_release import ProposeTestRelease, release
from tests.harness.examples import examples

PAPER = (256 / 60_000, 1.1, 0.5, 1.0, 1e-8)
"""q, sigma1, tau, b, delta0 of the paper's MNIST."""
BOTH = (False, True)


def delta_of(parameters, T, epsilon, is_reversed):
    return ptr_loss_distribution(*parameters, T, is_reversed=is_reversed).delta(epsilon)


class Release:
    """Law of (noisy margin, sum) on scalars, each drawn with its probability: the mechanism, written down again."""

    def __init__(self, values, rates, F, sigma1, tau, b, delta0):
        self.subsets = []
        for drawn in itertools.product((0, 1), repeat=len(values)):
            probability = math.prod(p if d else 1 - p for d, p in zip(drawn, rates, strict=True))
            chosen = [v for d, v in zip(drawn, values, strict=True) if d]
            kept = sorted(chosen, key=lambda v: (abs(v), v))[: max(0, len(chosen) - F)]
            margin = tsum_safety_margin([abs(v) for v in chosen], F, tau, 1.0)
            if probability:
                self.subsets.append((probability, margin, sum(chosen), sum(kept)))
        self.F, self.sigma1, self.tau, self.b, self.threshold = F, sigma1, tau, b, ptr_threshold(b, delta0)

    def density(self, t):
        """Return the density of the sum at each t, times weights of pieces of the noisy margin's range. Shape (pieces,
        len(t)).

        Below 0 and above F the ratios between margins do not depend on the noisy margin: one piece each. Between them,
        and on either side of the threshold, Gauss-Legendre nodes on unit pieces, where all is smooth.
        """
        edges = sorted({float(k) for k in range(self.F + 1)} | ({self.threshold} if self.threshold < self.F else set()))
        nodes, weights = np.polynomial.legendre.leggauss(12)
        rows = [self._row(t, lambda m: math.exp(-m / self.b) / 2, has_passed=False)]
        for low, high in itertools.pairwise(edges):
            for node, weight in zip(nodes, weights, strict=True):
                s, w = (low + high + (high - low) * node) / 2, weight * (high - low) / 2
                law = lambda m, s=s, w=w: w * math.exp(-abs(s - m) / self.b) / (2 * self.b)  # noqa: E731
                rows.append(self._row(t, law, has_passed=s > self.threshold))
        far = max(self.threshold, float(self.F))
        top = lambda m: math.exp(-(far - m) / self.b) / 2  # noqa: E731
        between = lambda m: math.exp(-(self.F - m) / self.b) / 2 - top(m)  # noqa: E731
        rows += [self._row(t, between, has_passed=False), self._row(t, top, has_passed=True)]
        return np.asarray(rows)

    def _row(self, t, law, *, has_passed):
        std = self.sigma1 * (self.tau if has_passed else 1.0)
        row = np.zeros(len(t))
        for probability, margin, full, trimmed in self.subsets:
            z = (t - (trimmed if has_passed else full)) / std
            row += probability * law(margin) * np.exp(-z * z / 2) / (std * math.sqrt(2 * math.pi))
        return row


SUMS = np.linspace(-16.0, 16.0, 3201)


def hockey_stick(first, second, epsilon):
    """E_first[(1 - e^{epsilon - loss})_+] from the densities at SUMS, to about 1e-5."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * (SUMS[1] - SUMS[0]))


SCALARS = st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])


@examples(8, 30)
@given(
    others=st.lists(SCALARS, max_size=4),
    x=SCALARS,
    F=st.integers(0, 3),
    q=st.floats(0.05, 1.0),
    rate=st.sampled_from([0.5, 1.0]),
    sigma1=st.floats(0.6, 2.0),
    b=st.floats(0.4, 2.0),
    delta0=st.sampled_from([0.4, 0.1, 1e-3]),
    epsilon=st.floats(-0.5, 2.5),
)
def test_no_neighbours_lose_more(others, x, F, q, rate, sigma1, b, delta0, epsilon):
    """The mechanism's own divergence, both ways, is never above the bound."""
    mechanism = (F, sigma1, 0.5, b, delta0)
    without = Release(others, [rate] * len(others), *mechanism).density(SUMS)
    with_x = Release([*others, x], [*[rate] * len(others), q], *mechanism).density(SUMS)
    for is_reversed, pair in zip(BOTH, ((with_x, without), (without, with_x)), strict=True):
        bound = delta_of((q, sigma1, 0.5, b, delta0), 1, epsilon, is_reversed)
        assert hockey_stick(*pair, epsilon) <= bound + 1e-5


@pytest.mark.parametrize("is_reversed", BOTH)
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.2])
@pytest.mark.parametrize("q", [0.2, 1.0])
def test_some_neighbours_lose_as_much(q, epsilon, is_reversed):
    """Three vectors of norm tau lie along a line, always drawn, and x of norm 1 on it.

    The margin is 3 or 2, and the sums are as far apart as can be. All that the bound adds is delta0 = 1e-4, and its
    grid.
    """
    mechanism = (3, 1.0, 0.5, 1.0, 1e-4)
    without = Release([0.5] * 3, [1.0] * 3, *mechanism).density(SUMS)
    with_x = Release([0.5] * 3 + [1.0], [1.0] * 3 + [q], *mechanism).density(SUMS)
    found = hockey_stick(*((without, with_x) if is_reversed else (with_x, without)), epsilon)
    bound = delta_of((q, *mechanism[1:]), 1, epsilon, is_reversed)
    assert found - 1e-5 <= bound <= found * 1.003 + 1.1e-4


@examples(4, 12)
@given(sigma1=st.floats(0.5, 4.0), b=st.floats(0.3, 4.0), epsilon=st.floats(0.0, 3.0), T=st.integers(1, 20))
def test_without_sampling_it_is_laplace_and_gauss(sigma1, b, epsilon, T):
    """dp_accounting composes the two mechanisms; delta0 is next to nothing. Two grids."""
    gauss = privacy_loss_distribution.from_gaussian_mechanism(sigma1, value_discretization_interval=1e-3)
    laplace = privacy_loss_distribution.from_laplace_mechanism(b, value_discretization_interval=1e-3)
    theirs = gauss.compose(laplace).self_compose(T).get_delta_for_epsilon(epsilon)
    for is_reversed in BOTH:
        ours = delta_of((1.0, sigma1, 0.5, b, 1e-15), T, epsilon, is_reversed)
        assert ours == pytest.approx(theirs, rel=3e-3, abs=1e-8)


@examples(4, 10)
@given(q=st.floats(0.01, 0.9), sigma1=st.floats(0.6, 5.0), T=st.integers(1, 60), log10_delta=st.floats(-8, -3))
def test_a_test_that_says_nothing_leaves_the_sampled_gaussian(q, sigma1, T, log10_delta):
    """b = 10^5, against PldAccountant, which is dp_accounting's."""
    theirs = PldAccountant().epsilon(SampledGaussian(q, sigma1), T, 10**log10_delta)
    assert pld_eps_ptr(q, sigma1, 0.5, 1e5, 1e-15, T, 10**log10_delta) == pytest.approx(theirs, rel=2e-3, abs=2e-3)


@examples(4, 10)
@given(q=st.floats(0.05, 0.9), b=st.floats(0.4, 4.0), T=st.integers(1, 30), log10_delta=st.floats(-6, -2))
def test_sums_that_say_nothing_leave_the_sampled_laplace(q, b, T, log10_delta):
    """sigma1 = 10^4, against dp_accounting's sampled Laplace mechanism."""
    laplace = privacy_loss_distribution.from_laplace_mechanism(b, value_discretization_interval=1e-3, sampling_prob=q)
    theirs = laplace.self_compose(T).get_epsilon_for_delta(10**log10_delta)
    assert pld_eps_ptr(q, 1e4, 0.5, b, 1e-15, T, 10**log10_delta) == pytest.approx(theirs, rel=3e-3, abs=3e-3)


PARAMETERS = {
    "q": st.floats(0.002, 0.5),
    "sigma1": st.floats(0.8, 6.0),
    "tau": st.floats(0.2, 1.0),
    "b": st.floats(0.3, 3.0),
    "delta0": st.floats(1e-10, 1e-3),
}


def pair_moment(alpha, q, sigma1, tau, b, delta0):
    """ln E_Q[(dP/dQ)^alpha] in closed form, integer alpha."""
    j = np.arange(alpha + 1)
    laplace = np.array([(order - 1) * rdp_laplace(float(order), b) if order > 1 else 0.0 for order in j])
    gauss = [math.log(w) + j * (j - 1) / 2 / s**2 for w, s in ((1 - delta0, sigma1), (delta0, tau * sigma1))]
    return logsumexp(log_binomial_weights(alpha, q) + laplace + np.logaddexp(*gauss))


@examples(8, 30)
@given(alpha=st.integers(2, 6), **PARAMETERS)
def test_moments_are_those_of_the_pair(alpha, q, sigma1, tau, b, delta0):
    """Compare moments of one round: the grid has those of the pair, a little raised.

    The exception is a moment of infinite losses.
    """
    dots = ptr_loss_distribution(q, sigma1, tau, b, delta0, 1, is_reversed=False)
    losses = dots.step * (dots.lowest + np.arange(len(dots.mass)))
    exact = pair_moment(alpha, q, sigma1, tau, b, delta0)
    on_grid = math.log(float(dots.mass @ np.exp((alpha - 1) * losses)))
    assert on_grid <= exact + 2e-3 * (1 + exact)
    if delta0 * math.exp(min(alpha * (alpha - 1) / 2 / (tau * sigma1) ** 2, 99)) < 1e-9:
        assert on_grid == pytest.approx(exact, rel=5e-3, abs=1e-9)


@examples(4, 10)
@given(T=st.integers(1, 500), log10_delta=st.floats(-7, -3), **(PARAMETERS | {"delta0": st.just(1e-12)}))
def test_it_is_below_the_renyi_form(T, log10_delta, q, sigma1, tau, b, delta0):
    """For a delta0 that neither notices much: both are bounds of the same losses, and this one has no conversion."""
    delta = 10**log10_delta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        renyi = eps_ptr_rounds(q, sigma1, tau, b, delta0, T, delta)
    assert pld_eps_ptr(q, sigma1, tau, b, delta0, T, delta) <= renyi * (1 + 1e-3) + 1e-3


@examples(2, 6)
@given(more=st.floats(1.05, 1.5), T=st.integers(1, 20), **PARAMETERS)
def test_monotone_in_every_parameter(more, T, q, sigma1, tau, b, delta0):
    """More sampling, less noise, a likelier wrong test, more rounds, a smaller delta: never less, but for two grids."""
    epsilon = pld_eps_ptr(q, sigma1, tau, b, delta0, T, 1e-5)
    least = epsilon * (1 - 2e-3) - 1e-6
    assert pld_eps_ptr(q * more, sigma1, tau, b, delta0, T, 1e-5) >= least
    assert pld_eps_ptr(q, sigma1 / more, tau, b, delta0, T, 1e-5) >= least
    assert pld_eps_ptr(q, sigma1, tau / more, b, delta0, T, 1e-5) >= least
    assert pld_eps_ptr(q, sigma1, tau, b / more, delta0, T, 1e-5) >= least
    assert pld_eps_ptr(q, sigma1, tau, b, delta0 * more, T, 1e-5) >= least
    assert pld_eps_ptr(q, sigma1, tau, b, delta0, math.ceil(T * more), 1e-5) >= least
    assert pld_eps_ptr(q, sigma1, tau, b, delta0, T, 1e-5 / more) >= least
    assert epsilon >= PldAccountant().epsilon(SampledGaussian(q, sigma1), T, 1e-5) * (1 - 2e-3) - 1e-6


@pytest.mark.parametrize("is_reversed", BOTH)
def test_composition_is_above_a_simulated_likelihood_ratio(is_reversed):
    """10^6 draws of five rounds of (c, s, g) itself; radius 3e-3, false-alarm rate 3e-8 for each of the six."""
    rng, n, T = np.random.default_rng(6), 10**6, 5
    q, sigma1, tau, b, delta0 = parameters = (0.2, 1.5, 0.4, 1.5, 0.02)
    loss = np.zeros(n)
    for _ in range(T):
        i = np.zeros(n) if is_reversed else rng.random(n) < q
        sigma = np.where(rng.random(n) < delta0, tau * sigma1, sigma1)
        s, g = i + rng.laplace(0.0, b, n), i + sigma * rng.standard_normal(n)
        loss += np.log1p(q * np.expm1((np.abs(s) - np.abs(s - 1)) / b + (g - 0.5) / sigma**2))
    loss = -loss if is_reversed else loss
    for epsilon in (0.1, 0.5, 1.0):
        simulated = float(np.mean(np.maximum(0.0, -np.expm1(epsilon - loss))))
        assert simulated - 3e-3 <= delta_of(parameters, T, epsilon, is_reversed) <= simulated * 1.005 + 3e-3


def test_an_attack_on_the_exact_mechanism():
    """1000 runs of `release` with the record and as many without; the event is what a likelihood ratio above 1 says.

    Hoeffding: the true delta(0) is at least the estimate less 0.17, but for a probability of 2e-6. That proves more
    than the sums alone can lose, so that an account that forgot the test would be caught. It proves no more than the
    bound.
    """
    n, one, b = 1000, 1 << 16, 0.4
    rule = ProposeTestRelease(
        clip=1.0, frac_bits=16, tau=0.5, trim_count=3, laplace_scale=b, test_failure=0.001, noise_multiplier=1.1
    )
    stream = np.random.default_rng(9).bytes
    without = np.array([[one // 2]] * 3, dtype=np.int64)  # margin 3; with a vector of norm 1 it is 2

    def share(vectors):
        found = [release(vectors, rule, stream) for _ in range(n)]
        margin, total = (np.array([f.noisy_margin for f in found]), np.array([f.total[0] / one for f in found]))
        has_passed = np.array([f.has_passed for f in found])
        assert 0.1 < has_passed.mean() < 0.9
        z = np.where(has_passed, total / 0.5, total - 1.5)  # trimmed: 0 or 0.5; full: 1.5 or 2.5
        return float(np.mean((np.abs(margin - 3) - np.abs(margin - 2)) / b + (z - 0.5) / 1.1**2 > 0))

    proved = share(np.vstack([without, [[one]]])) - share(without) - 2 * math.sqrt(math.log(1e6) / (2 * n))
    assert proved > delta_from_mu(0.0, 1 / 1.1)
    assert proved <= delta_of((1.0, 1.1, 0.5, b, 0.001), 1, 0.0, is_reversed=False)


def test_the_papers_parameters():
    """At delta = 1e-5, beside the Renyi form; docs/explanation/privacy.md has them."""
    for rounds, epsilon, renyi in ((243, 0.575, 2.291), (941, 1.014, 2.400), (4775, 2.270, 3.000)):
        assert pld_eps_ptr(*PAPER, rounds, 1e-5) == pytest.approx(epsilon, abs=6e-4)
        assert eps_ptr_rounds(*PAPER, rounds, 1e-5) == pytest.approx(renyi, abs=6e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("sigma1", "tau"), [(1e-200, 1.0), (0.05, 0.5), (1.0, 1e-200), (1.0, 1.0), (1e200, 0.1)])
@pytest.mark.parametrize("b", [1e-200, 0.02, 1.0, 1e200])
def test_extremes_are_bounds_too(sigma1, tau, b):
    """Expect infinity where 3 rounds show the record for sure with probability 3 q delta0 or more, which is over delta.

    Elsewhere expect no less than the sampled Gaussian alone. Never a warning or NaN.
    """
    for q in (0.3, 1.0):
        epsilon = pld_eps_ptr(q, sigma1, tau, b, 1e-3, 3, 1e-5)
        if tau * sigma1 < 0.04 or b < 0.01:
            assert epsilon == math.inf
        else:
            assert epsilon >= PldAccountant().epsilon(SampledGaussian(q, min(sigma1, 1e4)), 3, 1e-5) * (1 - 2e-3) - 1e-6


def test_edges():
    """Nothing is released, nobody is drawn, or hardly ever; a delta that float64 does not resolve, or that is below the
    mass of infinite losses."""
    assert pld_eps_ptr(0.0, 1.0, 0.5, 1.0, 1e-8, 9, 1e-5) == 0
    assert pld_eps_ptr(0.1, 1.0, 0.5, 1.0, 1e-8, 0, 1e-5) == 0
    assert pld_eps_ptr(1e-12, 4.0, 1.0, 1.0, 1e-3, 3, 1e-5) < 1e-6
    assert pld_eps_ptr(0.1, 1.0, 0.5, 1.0, 1e-8, 1000, 1e-11) == math.inf
    assert pld_eps_ptr(0.1, 1.0, 1e-4, 1.0, 1e-3, 1, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": 1.5}, "q: expected a number in"),
        ({"sigma1": 0.0}, "sigma1: expected a finite number above 0"),
        ({"tau": 1.5}, "tau: expected a number in"),
        ({"b": math.nan}, "b: expected a finite number above 0"),
        ({"delta0": 0.5}, "delta0: expected a number in"),
        ({"T": 2.5}, "T: expected an integer of at least"),
        ({"delta": 0.0}, "delta: expected a number in"),
    ],
)
def test_arguments_are_checked(wrong, message):
    arguments = {"q": 0.1, "sigma1": 1.0, "tau": 0.5, "b": 1.0, "delta0": 1e-8, "T": 3, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        pld_eps_ptr(**(arguments | wrong))
