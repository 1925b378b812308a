"""The projection onto a convex set: nearest points by SciPy's solver, non-expansiveness, and grid points inside.

Failure means an honest client whose upload is rejected, or a record that moves an update by more than its own bound.
"""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from precad.clients.encoding import encode_update
from precad.clients.errors import ArgumentError
from precad.clients.gradients.record_clipping import ROUNDING_SLACK
from precad.clients.training.convex_projection import ball_factors, project_onto
from precad.clients.training.projection import project
from precad.mpc import fixed_point
from precad.mpc.convex_set import ConvexSet, HalfSpace, LayerBall
from precad.mpc.errors import ParameterError
from precad.mpc.parameters import MAX_HALF_SPACES
from tests.harness.examples import examples
from tests.harness.harness import small_task
from tests.mpc.ring_strategies import generator


def random_set(random, *, n_layers, n_half_spaces=0):
    """A set of small layers. Directions are not negative, each on one layer: no angle is obtuse."""
    sizes = random.integers(1, 6, n_layers)
    clip = float(random.uniform(0.5, 3))
    clips = np.minimum(random.uniform(0.1, 3, n_layers), clip)
    layers = tuple(LayerBall(int(size), float(one)) for size, one in zip(sizes, clips, strict=True))
    dim, half_spaces = int(sum(sizes)), []
    for _ in range(n_half_spaces):
        layer = random.integers(n_layers)
        start, g = int(sum(sizes[:layer])), np.zeros(int(sum(sizes)), dtype=np.int64)
        g[start : start + sizes[layer]] = random.integers(0, 200, sizes[layer])
        g[start] += 1
        half_spaces.append(HalfSpace(g, -float(random.uniform(0.05, 60))))
    return ConvexSet(clip_norm=clip, dim=dim, frac_bits=16, layers=layers, half_spaces=tuple(half_spaces))


def honest_constraints(it):
    """The set that honest clients project onto, as SciPy has constraints: every function at least 0."""
    functions, start = [lambda x: it.clip_norm**2 - x @ x], 0
    for layer in it.layers:
        own = slice(start, start := start + layer.size)
        functions.append(lambda x, own=own, clip=layer.clip: clip**2 - x[own] @ x[own])
    for half in it.half_spaces:
        least = math.ldexp(it.honest_threshold_of(half), -it.frac_bits)
        functions.append(lambda x, g=half.direction, least=least: (x @ g - least) / math.sqrt(g @ g))
    return [{"type": "ineq", "fun": function} for function in functions]


def nearest(v, it):
    """The point of the set that is nearest to v, by sequential quadratic programming from the centre."""
    found = minimize(
        lambda x: ((x - v) ** 2).sum() / 2,
        np.zeros_like(v),
        jac=lambda x: x - v,
        constraints=honest_constraints(it),
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x


@pytest.mark.parametrize("case", range(60))
def test_balls_of_layers_within_a_ball_give_the_nearest_point(case):
    random = generator(f"nearest {case}")
    it = random_set(random, n_layers=int(random.integers(1, 5)))
    v = random.standard_normal(it.dim) * random.choice([0.1, 1, 10, 1000])
    ours, solvers = project_onto(v, it), nearest(v, it)
    assert_allclose(ours, solvers, atol=1e-3)
    assert np.linalg.norm(ours - v) <= np.linalg.norm(solvers - v) * (1 + 1e-7)  # ours is the better one, and inside
    assert all(one["fun"](ours) >= 0 for one in honest_constraints(it))


@pytest.mark.parametrize("case", range(30))
def test_one_half_space_within_a_short_ball_gives_the_nearest_point_of_the_half_space(case):
    """Where the ball leaves v alone, the second map is the projection onto all half-spaces that one of them binds."""
    random = generator(f"half-space {case}")
    it = dataclasses.replace(random_set(random, n_layers=2, n_half_spaces=1), layers=(), clip_norm=1000.0)
    v = random.standard_normal(it.dim)
    assert_allclose(project_onto(v, it), nearest(v, it), atol=1e-6)


def pairs(random, it):
    """Two vectors at any distance, of any length, near the edges of constraints too."""
    v = random.standard_normal(it.dim) * random.choice([0.1, 1, 10, 1e6])
    if random.random() < 0.5:
        v = project_onto(v, it) * random.choice([1, 1 - 2.0**-50, 1 + 2.0**-40, 1.1])
    return v, v + random.standard_normal(it.dim) * random.choice([1e-12, 1e-6, 0.1, 10])


@given(seed=st.integers(0, 2**32))
@examples(150, 2000)
def test_two_vectors_do_not_move_apart(seed):
    """Non-expansive up to 2^-44 C, and 2^-45 C more per half-space, in float64."""
    random = np.random.default_rng(seed)
    it = random_set(random, n_layers=int(random.integers(1, 6)), n_half_spaces=int(random.integers(0, 6)))
    v, w = pairs(random, it)
    room = it.clip_norm * (2.0**-44 + len(it.half_spaces) * 2.0**-45)
    moved = [float(value) for value in project_onto(v, it) - project_onto(w, it)]
    assert math.hypot(*moved) <= math.hypot(*(v - w)) * (1 + 2.0**-50) + room


@pytest.mark.parametrize("n_half_spaces", range(MAX_HALF_SPACES + 1))
def test_r_bounds_a_record_up_to_the_c_that_the_page_says(n_half_spaces):
    """Steps 2 to 5 of the projection over the rationals: what all roundings add is what R' leaves, and no less."""
    page = " ".join((Path(__file__).parents[3] / "docs/explanation/privacy.md").read_text().split())
    assert "<= R as long as C (1 + J/2) <= 256 R and m n <= 2^17" in page
    clipped = (1 - Fraction(ROUNDING_SLACK)) * (1 + Fraction(1, 2**36)) + Fraction(2**17, 2**52)
    apart = Fraction(1, 2**44) + n_half_spaces * Fraction(1, 2**45)  # as above, of C
    most = 256 / (1 + Fraction(n_half_spaces, 2))
    assert clipped + most * apart <= 1
    assert clipped + most * apart * (1 + Fraction(1, 2**20)) > 1


@given(seed=st.integers(0, 2**32), scale=st.sampled_from([0.01, 1.0, 10.0, 1e6, 1e200]))
@examples(150, 2000)
def test_honest_integers_are_inside(seed, scale):
    """Over the rationals balls hold before rounding; over the integers everything holds after it."""
    random = np.random.default_rng(seed)
    it = random_set(random, n_layers=int(random.integers(1, 6)), n_half_spaces=int(random.integers(0, 6)))
    x = project_onto(random.standard_normal(it.dim) * scale, it)
    exact = [Fraction(value) for value in x.tolist()]
    assert sum(value**2 for value in exact) <= Fraction(it.clip_norm) ** 2
    start = 0
    for layer in it.layers:
        assert sum(value**2 for value in exact[start : start + layer.size]) <= Fraction(layer.clip) ** 2
        start += layer.size
    assert it.holds(fixed_point.encode(x, it.frac_bits))


def test_what_is_inside_stays_as_it_is():
    random = generator("inside")
    it = random_set(random, n_layers=4, n_half_spaces=2)
    v = random.standard_normal(it.dim) * 1e-6
    assert_array_equal(project_onto(v, it), v)
    assert_array_equal(project_onto(np.zeros(it.dim), it), np.zeros(it.dim))


def test_one_layer_of_radius_c_is_the_ball():
    v = generator("ball").standard_normal(50) * 7
    it = ConvexSet(clip_norm=1.5, dim=50, frac_bits=16, layers=(LayerBall(50, 1.5),))
    assert_allclose(project_onto(v, it), project(v, 1.5), rtol=2.0**-50)


def test_layers_that_fill_the_ball_leave_the_rest_of_it_to_the_others():
    """C^2 - C_1^2 is 2^-51 of C^2, which float64 would round to a third of itself or worse: rationals do not."""
    clip = 1.0 - 2.0**-52
    _, factor = ball_factors([1e9, 10.0], [clip, 1.0], 1.0)
    lower = (1 - Fraction(1, 2**44)) ** 2
    exact = math.sqrt(lower * (1 - Fraction(clip) ** 2)) / 10
    assert factor == pytest.approx(exact, rel=1e-14, abs=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_vectors_without_a_finite_norm_are_refused(value):
    it = random_set(generator("refused"), n_layers=3, n_half_spaces=1)
    v = np.zeros(it.dim)
    v[-1] = value
    with pytest.raises(ArgumentError, match="finite norm"):
        project_onto(v, it)


def test_a_vector_of_the_ball_that_is_outside_the_set_is_not_encoded():
    """Servers would reject it, whose word on a client tells of its records. Without the set it is encoded."""
    bounds = {"layer_clips": [0.25, 1.0], "layer_sizes": [10, 20], "accept_weak_wire_form": True}
    task, ball = small_task(dim=30, client_clip=1.0, **bounds), small_task(dim=30, client_clip=1.0)
    vector = np.repeat([0.1, 0.0], [10, 20])  # of norm 0.32 in its first layer
    assert encode_update(vector, ball).any()
    assert encode_update(project_onto(vector, task.convex_set), task).any()
    with pytest.raises(ParameterError, match="the vector is outside the task's set by more than rounding"):
        encode_update(vector, task)
