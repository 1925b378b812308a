"""Certificates: closed forms, order of the methods, and attacks in simulation that must not beat them."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.group_privacy import group_dp
from precad.dp.accountants.pld import Label, SampledGaussian
from precad.dp.accountants.privacy_loss import DeltaCurve
from precad.dp.certificates import prediction
from precad.dp.certificates.attack_inefficacy import (
    attackers_needed,
    inefficacy_bounds_over_curve,
    xie_attack_inefficacy_bounds,
    xie_corollary_k,
)
from precad.dp.certificates.expected_loss import robust_bounds
from precad.dp.certificates.monte_carlo import (
    certified_accuracy,
    hoeffding_class_bounds,
    hoeffding_radius,
    monte_carlo_privacy,
)
from precad.dp.certificates.prediction import (
    ENROLLED,
    LOSSES,
    Certificate,
    Method,
    Threat,
    Training,
    attacked_bounds,
    best_certified_k,
    certified_integer,
    certify,
    certify_all,
    is_certified,
    published_epsilon,
    rests_on,
    xie_certified_k,
)
from precad.dp.published.precad import gdp_robust_bounds, precad_theorem2_bounds
from precad.dp.published.xie import xie_condition_one

TRAINING = Training(SampledGaussian(0.1, 1.8), 3)
UNIT = st.floats(0, 1)


def test_who_looks_at_a_curve_cannot_change_certificates():
    """Curves are cached: what is written into one would be in each certificate that follows."""
    for direction in Direction:
        curve = TRAINING.curve(2, direction)
        for values in (curve.epsilons, curve.deltas, TRAINING.one_unit_curve().deltas):
            with pytest.raises(ValueError, match="read-only"):
                values[:] = 0.0
        with pytest.raises(ValueError, match="read-only"):
            loss_distribution(1, 0.1, 1.8, 1, direction).mass[:] = 0.0


def test_the_tightness_table():
    """F_A = .95, F_B = .05, q = .1, sigma = 1.8, T = 3, delta = .0029: 2 published, 11 by the curve, 16 exact."""
    found = {method: certify(0.95, 0.05, TRAINING, method=method, delta=0.0029).tolerated for method in Method}
    assert found == {Method.PUBLISHED: 2, Method.PLD: 11, Method.EXACT: 16}
    assert published_epsilon(TRAINING, 0.0029) == pytest.approx(0.6298, abs=6e-5)
    assert best_certified_k(0.95, 0.05, TRAINING.one_unit_curve()) == pytest.approx(11.4, abs=0.1)


@pytest.mark.parametrize("threat", Threat)
@settings(max_examples=15, deadline=None)
@given(FA=st.floats(0.5, 0.999), q=st.floats(0.01, 0.5), sigma=st.floats(1.0, 6.0), T=st.integers(1, 20))
def test_methods_in_order_of_strength(threat, FA, q, sigma, T):
    """published <= pld <= exact, and replacing is never easier to survive than adding."""
    training = Training(SampledGaussian(q, sigma), T)
    tolerated = [
        certify(FA, 1 - FA, training, method=method, threat=threat, delta=1e-3, at_most=20).tolerated
        for method in Method
    ]
    assert tolerated == sorted(tolerated)
    assert certify(FA, 1 - FA, training, method=Method.EXACT, at_most=20).tolerated >= tolerated[-1]


@settings(max_examples=15, deadline=None)
@given(F=UNIT, k=st.integers(0, 5), threat=st.sampled_from(Threat))
def test_bounds_contain_the_benign_value_and_widen(F, k, threat):
    low, high = attacked_bounds(F, k, TRAINING, threat)
    lower, higher = attacked_bounds(F, k + 1, TRAINING, threat)
    assert 0 <= lower <= low + 1e-5
    assert low <= F <= high
    assert high - 1e-5 <= higher <= 1


def test_nobody_changes_nothing():
    for threat in Threat:
        assert attacked_bounds(0.3, 0, TRAINING, threat) == (0.3, 0.3)
    assert is_certified(0.6, 0.4, 0, TRAINING, Threat.ADD)
    assert not is_certified(0.5, 0.5, 0, TRAINING, Threat.ADD)


def simulated_rates(k_good: int, k_bad: int, training: Training, threshold: float, n: int, seed: int) -> float:
    """How often a model that looks at sum over rounds of the released value says "attacked", in n trainings."""
    rng = np.random.default_rng(seed)
    q, sigma = training.event.sampling_rate, training.event.noise_multiplier
    total = np.zeros(n)
    for _ in range(training.rounds):
        total += rng.binomial(k_bad, q, size=n) - rng.binomial(k_good, q, size=n) + sigma * rng.standard_normal(n)
    return float(np.mean(total > threshold))


@pytest.mark.parametrize("threat", Threat)
@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize(
    "threshold", [pytest.param(-4.0, marks=pytest.mark.slow), 2.0, pytest.param(6.0, marks=pytest.mark.slow)]
)
def test_no_simulated_attack_beats_the_certificate(threat, k, threshold):
    """The worst update in one dimension, 10^6 trainings each way; both rates to 3e-3, false-alarm rate 6e-8.

    Attackers push by +1 whenever drawn; those they replace pushed by -1. The prediction is whether the sum of all
    releases exceeds a threshold, near the best of tests. The attacked rate must lie in the certified interval.
    """
    n, slack = 10**6, 3e-3
    benign = simulated_rates(k if threat is Threat.REPLACE else 0, 0, TRAINING, threshold, n, seed=1)
    attacked = simulated_rates(0, k, TRAINING, threshold, n, seed=2)
    low, _ = attacked_bounds(max(0.0, benign - slack), k, TRAINING, threat)
    _, high = attacked_bounds(min(1.0, benign + slack), k, TRAINING, threat)
    assert low - slack <= attacked <= high + slack


def test_the_simulated_attack_is_not_far_from_the_certificate():
    """With four added attackers the attack reaches three quarters of what is certified: the bound is no accident."""
    n = 10**6
    benign = simulated_rates(0, 0, TRAINING, 4.0, n, seed=3)
    attacked = simulated_rates(0, 4, TRAINING, 4.0, n, seed=4)
    assert attacked - benign > 0.75 * (attacked_bounds(benign, 4, TRAINING, Threat.ADD)[1] - benign)


def test_whoever_keeps_the_rounds_with_attackers_is_beyond_a_certificate():
    """One round of at most four, given up unless attackers are drawn, by optimal stopping over exact Gaussian tails.

    Failure means that a condition is printed which nobody needs, or that the certificate counts what it did not.
    """
    k, q, sigma, FA, draws = 2, 0.1, 1.0, 0.7, 4
    odds, drawn = binom.pmf(np.arange(k + 1), k, q), np.arange(k + 1)
    predicted = norm.cdf((norm.ppf(FA) * sigma - drawn) / sigma)
    value = float(odds @ predicted)
    for _ in range(draws - 1):
        value = float(odds @ np.minimum(predicted, value))
    training = Training(SampledGaussian(q, sigma), draws)

    assert value < 0.5 < attacked_bounds(FA, k, training, Threat.ADD)[0]
    assert rests_on(training, Threat.ADD) == [LOSSES, ENROLLED]
    assert rests_on(Training(SampledGaussian(1.0, sigma), draws), Threat.REPLACE) == []


def test_replacing_is_not_adding_twice_as_many_in_one_direction():
    """2k added units cannot make an event rarer than (1-q)^{2kT} of what it was; k replaced ones can.

    Take one round, nearly without noise. Then "the sum is negative" has probability q with one good unit at -1, and
    none once the unit is at +1. The 2-unit mixture would certify (1-q)^2 q of it.
    """
    training = Training(SampledGaussian(0.3, 0.05), 1)
    assert attacked_bounds(0.3, 1, training, Threat.REPLACE)[0] == pytest.approx(0.0, abs=1e-6)
    assert attacked_bounds(0.3, 2, training, Threat.ADD)[0] > 0.7**2 * 0.3 - 0.01


@given(FA=UNIT, FB=UNIT, epsilon=st.floats(0, 3), delta=st.floats(1e-9, 0.1))
def test_condition_of_one_unit_is_certified_k_above_one(FA, FB, epsilon, delta):
    """Condition for one unit and K > 1 are the same statement, up to rounding at the boundary."""
    K = xie_certified_k(FA, FB, epsilon, delta)
    if abs(K - 1) > 1e-6:
        assert xie_condition_one(FA, FB, epsilon, delta) == (K > 1)


@given(FA=UNIT, FB=UNIT, epsilon=st.floats(0.001, 3), delta=st.floats(1e-6, 0.1), more=st.floats(1.01, 2))
def test_certified_k_is_monotone(FA, FB, epsilon, delta, more):
    """A larger delta, a smaller lead: never more attackers; and it is continuous in epsilon at 0.

    In epsilon at fixed delta the formula is not monotone below one attacker, where nothing depends on it.
    """
    K = xie_certified_k(FA, FB, epsilon, delta) + 1e-9
    assert xie_certified_k(FA, FB, epsilon, delta * more) <= K
    assert xie_certified_k(FA / more, FB, epsilon, delta) <= K
    assert xie_certified_k(FA, FB, 1e-15, delta) == pytest.approx(xie_certified_k(FA, FB, 0.0, delta), rel=1e-4)


def test_certified_integers():
    """Strictly below K; 2 k below K to replace."""
    assert [certified_integer(K) for K in (0.0, 0.5, 1.0, 2.29, 3.0, math.inf)] == [0, 0, 0, 2, 2, math.inf]
    assert [certified_integer(K, "replace") for K in (0.5, 2.0, 2.1, 4.0, 4.5)] == [0, 0, 1, 1, 2]
    assert xie_certified_k(1.0, 0.0, 0.5, 0.0) == xie_certified_k(0.9, 0.1, 0.0, 0.0) == math.inf
    assert xie_certified_k(0.9, 0.0, 800.0, 1e-5) == pytest.approx((800 + math.log(0.9e5)) / 1600)
    assert xie_condition_one(0.9, 0.0, 800.0, 0.0)
    assert not xie_condition_one(0.9, 0.0, 800.0, 1e-5)


@pytest.mark.parametrize("delta", [0.4, 1e-5, 1e-18, 1e-300])
@pytest.mark.parametrize("epsilon", [1e-8, 0.3, 30.0, 700.0, 735.0, 744.0, 2000.0, 1e5])
@pytest.mark.parametrize("FB", [0.0, 1e-320, 1e-45, 0.05, 0.94])
def test_the_number_in_multiprecision(FB, epsilon, delta):
    """Where delta e^-eps vanishes in float64 the number is no infinity, for a point alone and for a curve."""
    with mpmath.workdps(60):
        grow, fa, fb, d = mpmath.expm1(mpmath.mpf(epsilon)), mpmath.mpf(0.95), mpmath.mpf(FB), mpmath.mpf(delta)
        exact = float(mpmath.log((fa * grow + d) / (fb * grow + d)) / (2 * mpmath.mpf(epsilon)))
    assert xie_certified_k(0.95, FB, epsilon, delta) == pytest.approx(exact, rel=1e-9)
    curve = DeltaCurve(np.asarray([0.0, epsilon]), np.asarray([1.0, delta]))
    assert best_certified_k(0.95, FB, curve) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.02, 1e-160])
@pytest.mark.parametrize("method", [Method.PUBLISHED, Method.PLD])
def test_hardly_any_noise_tolerates_nobody(method, sigma):
    """A lead of everything: group privacy proves nothing, whatever underflows, or is infinite."""
    training = Training(SampledGaussian(0.5, sigma), 1)
    for FB in (0.0, 1e-320, 1e-30):
        assert certify(0.95, FB, training, method=method, delta=1e-5).tolerated == 0


def test_a_certificate_prints_what_it_is():
    """A reproduction is called one; nothing certified is called vacuous."""
    assert "published_reproduction" in str(Certificate(2, Threat.ADD, Method.PUBLISHED))
    assert str(Certificate(0, Threat.REPLACE, Method.EXACT)).startswith("VACUOUS")
    assert Certificate(3, Threat.ADD, Method.EXACT).label is Label.BOUND
    with pytest.raises(ValueError, match="delta: expected a value for the published method, found none"):
        certify(0.9, 0.1, TRAINING, method=Method.PUBLISHED)


@given(L=st.floats(0.001, 0.999), mu=st.floats(0, 4), K=st.integers(0, 4))
def test_theorem_2_is_its_scan_over_epsilon(L, mu, K):
    """The closed form against the two inequalities on a grid; and inside it what Gaussian DP says exactly."""
    low, high = precad_theorem2_bounds(L, 1.0, mu, K)
    m = K * mu
    grid = np.linspace(0, m * (m / 2 + 8), 400) if m > 0 else [0.0]
    scanned_high = min(1.0, *(math.exp(min(e, 700)) * L + delta_from_mu(float(e), m) for e in grid))
    scanned_low = max(0.0, *(math.exp(-e) * (L - delta_from_mu(float(e), m)) for e in grid))
    assert low >= scanned_low - 1e-9
    assert high <= scanned_high + 1e-9
    assert low == pytest.approx(scanned_low, abs=2e-2)
    assert high == pytest.approx(scanned_high, abs=2e-2)
    inner_low, inner_high = gdp_robust_bounds(L, 1.0, m)
    assert low - 1e-12 <= inner_low <= L + 1e-12
    assert L - 1e-12 <= inner_high <= high + 1e-12


@given(L=UNIT, mu=st.floats(0.05, 3))
def test_four_inequalities_are_the_gaussian_closed_form(L, mu):
    """robust_bounds on the curve of mu-GDP, to what 2000 epsilons resolve, and never inside the truth."""
    epsilons = np.linspace(0, mu * (mu / 2 + 9), 2000)
    curve = DeltaCurve(epsilons, np.asarray([delta_from_mu(float(e), mu) for e in epsilons]))
    low, high = robust_bounds(L, 1.0, curve, curve)
    exact_low, exact_high = gdp_robust_bounds(L, 1.0, mu)
    assert low <= exact_low + 1e-9
    assert high >= exact_high - 1e-9
    assert (low, high) == pytest.approx((exact_low, exact_high), abs=2e-3)


@pytest.mark.parametrize("B", [0.0, -1.0, math.inf])
def test_a_loss_without_a_bound_is_refused(B):
    nothing = DeltaCurve(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="B: expected a finite number above 0"):
        robust_bounds(0.0, B, nothing, nothing)


def test_theorem_2_edges():
    assert precad_theorem2_bounds(0.0, 1.0, 0.5, 2) == (0.0, 0.0)
    assert precad_theorem2_bounds(2.0, 2.0, 0.5, 2) == (pytest.approx(2 * 0.6170750774519738), 2.0)
    assert precad_theorem2_bounds(0.2, 1.0, math.inf, 1) == (0.0, 1.0)
    assert precad_theorem2_bounds(0.2, 1.0, math.inf, 0) == (0.2, 0.2)
    assert gdp_robust_bounds(0.2, 1.0, math.inf) == (0.0, 1.0)


@given(J=UNIT, k=st.integers(0, 6), epsilon=st.floats(0, 3), delta=st.floats(0, 0.1))
def test_inefficacy_bounds_are_symmetric_and_contain_j(J, k, epsilon, delta):
    low, high = xie_attack_inefficacy_bounds(J, k, epsilon, delta, 1.0, "nonneg")
    assert 0 <= low <= J * (1 + 1e-12)
    assert J * (1 - 1e-12) <= high <= 1
    assert xie_attack_inefficacy_bounds(-J, k, epsilon, delta, 1.0, "nonpos") == (-high, -low)
    wide = xie_attack_inefficacy_bounds(2 * J - 1, k, epsilon, delta, 1.0, "mixed")
    rounding = 1e-15 * math.exp(k * epsilon)  # of J + Cbar, which differs in the last place, then multiplied
    assert wide == pytest.approx((2 * low - 1, 2 * high - 1), abs=1e-9 + rounding)


@pytest.mark.parametrize("sign", ["nonneg", "nonpos", "mixed"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_inefficacy_bounds_are_reached_by_the_worst_pair(k, sign):
    """Each of k steps multiplies chances by e^epsilon and adds delta, as the worst laws of three outcomes do.

    The cost is the highest on what an attack makes likelier, else the lowest; then the other way round.
    """
    epsilon, delta, Cbar = 0.3, 0.01, 2.0
    least, most = {"nonneg": (0.0, Cbar), "nonpos": (-Cbar, 0.0), "mixed": (-Cbar, Cbar)}[sign]
    before = after = 0.05
    for _ in range(k):
        after = math.exp(epsilon) * after + delta
    J, attacked = (least + chance * (most - least) for chance in (before, after))
    bounds = xie_attack_inefficacy_bounds(J, k, epsilon, delta, Cbar, sign)
    back = xie_attack_inefficacy_bounds(attacked, k, epsilon, delta, Cbar, sign)
    if sign == "nonpos":  # bounds are of the cost's distance from 0
        mirrored = xie_attack_inefficacy_bounds(-before * Cbar, k, epsilon, delta, Cbar, sign)
        assert mirrored[0] == pytest.approx(-after * Cbar, rel=1e-12)
    else:
        assert bounds[1] == pytest.approx(attacked, rel=1e-12)
        assert back[0] == pytest.approx(J, rel=1e-12)
    curve = DeltaCurve(np.array([epsilon, 50.0]), np.array([delta, 0.9]))
    low, high = inefficacy_bounds_over_curve(before * Cbar, k, curve, Cbar)
    assert high == pytest.approx(after * Cbar, rel=1e-12)
    assert inefficacy_bounds_over_curve((1 - before) * Cbar, k, curve, Cbar)[0] == pytest.approx(
        Cbar - after * Cbar, rel=1e-12
    )
    assert inefficacy_bounds_over_curve(after * Cbar, k, curve, Cbar)[0] == pytest.approx(before * Cbar, rel=1e-12)
    assert low < before * Cbar


def test_no_attackers_are_needed_to_lower_nothing():
    assert xie_corollary_k(0.0, 2.0, 0.4, 0.0, 0.5, "nonneg") == 0
    assert xie_corollary_k(0.0, 2.0, 0.4, 0.01, 0.5, "nonneg") == 0


@settings(max_examples=25, deadline=None)
@given(J=UNIT, k=st.integers(0, 8), point=st.integers(0, 100), Cbar=st.floats(0.5, 3))
def test_inefficacy_over_the_curve_is_between_one_point_and_the_exact_law(J, k, point, Cbar):
    """As narrow as Xie et al.'s bound at any one point of the curve; never inside the exact interval; twice for 2 k."""
    curve = TRAINING.one_unit_curve()
    low, high = inefficacy_bounds_over_curve(J * Cbar, k, curve, Cbar)
    i = point * (len(curve.epsilons) - 1) // 100
    epsilon, delta = float(curve.epsilons[i]), float(curve.deltas[i])
    lowest, highest = xie_attack_inefficacy_bounds(J * Cbar, k, epsilon, delta, Cbar, "nonneg")
    assert lowest <= low + 1e-9
    assert high <= highest + 1e-9
    exact_low, exact_high = attacked_bounds(J, k, TRAINING, Threat.ADD)
    assert low <= Cbar * exact_low + 1e-4
    assert Cbar * exact_high <= high + 1e-4
    wider = inefficacy_bounds_over_curve(J * Cbar, 2 * k, curve, Cbar)
    assert wider[0] <= low + 1e-9
    assert high <= wider[1] + 1e-9


@given(J=st.floats(0.01, 1), tau=st.floats(1, 5), epsilon=st.floats(0.01, 2), delta=st.floats(0, 0.01))
def test_the_corollary_inverts_the_bound(J, tau, epsilon, delta):
    """With fewer attackers than its value the cost cannot fall to J / tau; with its ceiling, the bound allows it."""
    k = attackers_needed(xie_corollary_k(J, tau, epsilon, delta, 1.0, "nonneg"))
    reached = xie_attack_inefficacy_bounds(J, k, epsilon, delta, 1.0, "nonneg")[0]
    assert reached <= J / tau * (1 + 1e-9)
    if k > 0:
        before = xie_attack_inefficacy_bounds(J, k - 1, epsilon, delta, 1.0, "nonneg")[0]
        assert before >= J / tau * (1 - 1e-9)


@given(epsilon=st.floats(0, 5), delta=st.floats(0, 0.1), k=st.integers(0, 8))
def test_group_privacy_is_its_sum(epsilon, delta, k):
    k_epsilon, k_delta = group_dp(epsilon, delta, k)
    assert k_epsilon == k * epsilon
    assert k_delta == pytest.approx(delta * sum(math.exp(j * epsilon) for j in range(k)), rel=1e-9, abs=1e-300)


def test_group_privacy_overflows_to_a_true_statement():
    assert group_dp(10.0, 1e-5, 100) == (1000.0, math.inf)
    assert group_dp(10.0, 0.0, 100) == (1000.0, 0.0)
    assert xie_attack_inefficacy_bounds(0.3, 100, 10.0, 1e-5, 0.5, "nonneg") == (0.0, 0.5)


def test_monte_carlo():
    """Radii, both schemes, the strict and the published metric, and both coordinates of the joint cost."""
    assert hoeffding_radius(1000, 0.01, width=2.0) == 2 * hoeffding_radius(1000, 0.01)
    assert 0 < hoeffding_radius(1e308, 0.01) < 1e-153  # twice as many are beyond float64
    assert hoeffding_class_bounds([0.5, 0.5], 100, 0.05)[0] == 0
    union = hoeffding_class_bounds([0.05, 0.9, 0.05], 1000, 0.01, n_tests=2115)
    paper = hoeffding_class_bounds([0.05, 0.9, 0.05], 1000, 0.01, "paper")
    assert union[1] < paper[1]
    assert union[2] > paper[2]
    assert hoeffding_class_bounds([0.5, 0.4, 0.1], 3, 0.01)[1:] == (0.0, 1.0)
    assert certified_accuracy([1.0, math.inf], [True, True], 1) == 0.5
    assert certified_accuracy([1.0, 2.0], [True, False], 1, strict=False) == 0.5
    assert monte_carlo_privacy(0.1451, 0.0029, 1000)[1] == pytest.approx(2.9)


def test_hoeffding_covers():
    """2000 experiments of 200 trainings: the interval misses the truth in fewer than psi of them."""
    rng, psi, truth = np.random.default_rng(11), 0.05, 0.7
    means = rng.binomial(200, truth, size=2000) / 200
    bounds = [hoeffding_class_bounds([m, 1 - m], 200, psi) for m in means]
    assert np.mean([low <= truth for winner, low, _ in bounds if winner == 0]) > 1 - psi


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize("method", list(Method))
def test_many_predictions_are_certified_like_each_alone(method, threat, monkeypatch):
    """Certify two classes, in any order and with equal ones among them, in fewer calls than there are predictions.
    Leads that have no order are certified as well.
    """
    training = Training(SampledGaussian(0.1, 2.0), 1)
    highest = np.random.default_rng(1).uniform(0.45, 1.0, 40).round(2).tolist()
    ordered = [(FA, 1 - FA) for FA in highest]
    unordered = [(0.6, 0.1), (0.5, 0.0), (0.9, 0.1), (0.6, 0.3)]
    alone = prediction.certify
    options = {"method": method, "threat": threat, "delta": 0.0029, "at_most": 4}
    expected = [[alone(*lead, training, **options) for lead in leads] for leads in (ordered, unordered)]
    calls = []
    monkeypatch.setattr(prediction, "certify", lambda *a, **k: calls.append(a) or alone(*a, **k))
    assert certify_all(ordered, training, **options) == expected[0]
    assert len(calls) < 30
    assert certify_all(unordered, training, **options) == expected[1]
    assert certify_all([], training, **options) == []
    assert certify_all(ordered[:1], training, **options) == expected[0][:1]


@pytest.mark.parametrize("threat", list(Threat))
def test_predictions_of_many_classes_are_certified_in_few_calls(threat, monkeypatch):
    """Certify leads of ten classes, which have no order, as each alone; most follow from one above and one below."""
    training = Training(SampledGaussian(0.1, 2.0), 1)
    confidences = np.sort(np.random.default_rng(2).dirichlet(np.full(10, 0.3), size=300), axis=1)
    leads = [(float(row[-1]), float(row[-2])) for row in confidences]
    alone, calls = prediction.certify, []
    options = {"method": Method.EXACT, "threat": threat, "at_most": 2}
    expected = [alone(*lead, training, **options) for lead in leads]
    assert len({certificate.tolerated for certificate in expected}) > 2
    monkeypatch.setattr(prediction, "certify", lambda *a, **k: calls.append(a) or alone(*a, **k))
    assert certify_all(leads, training, **options) == expected
    assert len(calls) < 150
    with pytest.raises(ValueError, match="FB"):
        certify_all([*leads, (0.5, math.nan)], training, **options)
