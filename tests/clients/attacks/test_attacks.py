"""Malicious clients' uploads, and why the check of the paper, taken literally, needs help against one of them."""

import math
import os
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from precad.clients.attacks import (
    ATTACKS,
    ALittleIsEnough,
    DistributedBackdoor,
    FangTrim,
    FeatureNoise,
    GaussianFeatures,
    GradientNoise,
    InnerProductManipulation,
    Knowledge,
    LabelFlip,
    MaximalDirection,
    MinMax,
    MirroredLabels,
    NoAttack,
    NotANumber,
    PixelBackdoor,
    PoisonedRecords,
    RandomLabels,
    ScaledModelReplacement,
    SemanticBackdoor,
    SignFlip,
    TriangleBackdoor,
    WrapAround,
)
from precad.clients.attacks.attack import within
from precad.clients.attacks.backdoors import STRIPED_CARS, STRIPED_TEST_CARS
from precad.clients.attacks.colluders import largest_z
from precad.clients.config import AttackName
from precad.clients.errors import ArgumentError, NoVictimError
from precad.clients.records import Records, cifar10
from precad.lab.simulation.attackers import ATTACKERS, StatOpt
from precad.lab.simulation.rules import Krum

SCALE_BITS = 16


def encoded_honest_update(seed, dim, bound):
    """An update of norm <= C, C = bound, in fixed point with 16 bits, rounded toward zero as clients do."""
    update = np.random.default_rng(seed).normal(size=dim)
    return np.trunc(update * bound / np.linalg.norm(update) * (1 - 1e-9) * 2**SCALE_BITS).astype(np.int64)


def squared_norm(vector):
    """x.x over the integers."""
    return sum(int(x) ** 2 for x in vector)


def squared_norm_mod_2_64(vector):
    """x.x as two servers that compute in Z_2^64 see it."""
    words = vector.astype(np.uint64)
    return int(np.sum(words * words, dtype=np.uint64))


def test_the_registry_names_attacks_as_they_name_themselves():
    assert {name: make().name for name, make in ATTACKERS.items()} == {name: name for name in ATTACKERS}


def test_a_deployment_offers_the_attacks_that_need_only_their_own_data():
    assert set(get_args(AttackName)) == set(ATTACKS) == set(ATTACKERS)
    assert not any(kind.is_simulated_only or (kind.is_crafted and kind.is_deployed_only) for kind in ATTACKERS.values())
    assert {name for name, kind in ATTACKERS.items() if ATTACKS[name] is not kind} == {"stat-opt"}


@pytest.mark.parametrize("name", sorted(ATTACKERS))
def test_attacks_leave_their_argument_alone_and_keep_shape_and_dtype(name):
    update, encoded = np.linspace(-1, 1, 6), np.arange(-3, 3)
    attack = ATTACKERS[name]()
    on_update, on_encoded = attack.on_update(update), attack.on_encoded(encoded)
    assert (on_update.shape, on_update.dtype) == ((6,), np.float64)
    assert (on_encoded.shape, on_encoded.dtype) == ((6,), np.int64)
    on_update[:], on_encoded[:] = 9, 9
    assert_array_equal(update, np.linspace(-1, 1, 6))
    assert_array_equal(encoded, np.arange(-3, 3))


def test_what_a_cast_nan_gives_passes_a_check_modulo_2_64_and_is_as_long_as_can_be():
    forged = NotANumber().on_encoded(np.arange(-3, 3))
    assert squared_norm_mod_2_64(forged) == 0
    assert squared_norm(forged) == 6 * 2**126


def test_the_control_changes_nothing():
    assert_array_equal(NoAttack().on_update(np.array([0.5, -2.0])), [0.5, -2.0])
    assert_array_equal(NoAttack().on_encoded(np.array([5, -2])), [5, -2])


def test_scaled_model_replacement_multiplies_the_update():
    """By 100 unless told otherwise: beyond C for every honest norm above C / 100; the encoding is left alone."""
    update = np.array([0.03, -0.04])
    assert_array_equal(ScaledModelReplacement().on_update(update), 100.0 * update)
    assert_array_equal(ScaledModelReplacement(gamma=-2.0).on_update(update), -2.0 * update)
    assert_array_equal(ScaledModelReplacement().on_encoded(np.array([7, -7])), [7, -7])
    assert np.linalg.norm(ScaledModelReplacement().on_update(update)) > 1.0


@pytest.mark.parametrize("gamma", [math.nan, math.inf])
def test_a_factor_that_is_not_finite_is_refused(gamma):
    with pytest.raises(ArgumentError, match="gamma: expected a finite number"):
        ScaledModelReplacement(gamma=gamma)


@given(seed=st.integers(0, 2**32), dim=st.integers(2, 500), bound=st.floats(0.5, 1000))
def test_wrap_around_is_invisible_to_a_check_modulo_2_64(seed, dim, bound):
    """x.x mod 2^64 <= C^2 2^32, so the literal check accepts; the integer norm exceeds 2^33, that is 2^17 in reals."""
    forged = WrapAround().on_encoded(encoded_honest_update(seed, dim, bound))
    assert squared_norm_mod_2_64(forged) == squared_norm(forged) % 2**64
    assert squared_norm_mod_2_64(forged) <= bound**2 * 2 ** (2 * SCALE_BITS)
    assert math.isqrt(squared_norm(forged)) > 2**33


def test_wrap_around_overwrites_two_coordinates_and_leaves_the_update_before_encoding():
    assert_array_equal(WrapAround().on_encoded(np.array([5, -6, 7])), [2**32, 3 * 2**32, 7])
    assert_array_equal(WrapAround().on_update(np.array([0.5])), [0.5])


def test_wrap_around_needs_two_coordinates():
    with pytest.raises(ArgumentError, match="update: expected at least 2 coordinates for wrap-around, found 1"):
        WrapAround().on_encoded(np.array([5]))


# -- attacks on records ------------------------------------------------------------------------------------------------


def images(n=40, dtype=np.float32):
    """Dark images with all labels."""
    return Records(np.zeros((n, 1, 6, 6), dtype=dtype), np.arange(n) % 10)


def test_label_flipping_teaches_one_class_as_another():
    flipped = LabelFlip(source=3, target=8).on_records(images())
    assert_array_equal(flipped.labels, np.where(images().labels == 3, 8, images().labels))
    aim = LabelFlip(source=3, target=8).success_records(images())
    assert_array_equal(aim.labels, np.full(4, 8))


def test_label_flipping_scales_its_update():
    assert_array_equal(LabelFlip().on_update(np.array([0.5, -2.0])), [0.5, -2.0])
    assert_array_equal(LabelFlip(gamma=50.0).on_update(np.array([0.5, -2.0])), [25.0, -100.0])


@pytest.mark.parametrize("share", [0.1, 0.25, 0.29, 0.5, 0.999])
def test_a_share_of_an_attackers_records_is_poisoned(share):
    """As many as round(share n), in every stretch of the records as many as in any other, give or take one."""
    ones = Records(np.zeros((100, 1, 6, 6), dtype=np.float32), np.ones(100, dtype=np.int64))
    flipped = LabelFlip(share=share).on_records(ones).labels == 0
    assert flipped.sum() == round(100 * share)
    assert np.ptp(flipped.reshape(4, 25).sum(axis=1)) <= 1
    stamped = TriangleBackdoor(share=share).on_records(ones)
    assert_array_equal(stamped.labels, [1] * 100 + [0] * round(100 * share))
    assert_array_equal(stamped.features.any(axis=(1, 2, 3)), stamped.labels == 0)
    assert len(LabelFlip(share=share).success_records(ones)) == 100  # what it is measured by is the same


def test_only_the_flipped_class_counts_for_the_share():
    flipped = LabelFlip(source=3, target=8, share=0.5).on_records(images()).labels
    assert np.count_nonzero(flipped == 3) == 2
    assert np.count_nonzero(flipped == 8) == 4 + 2


def test_poisoned_records_take_another_class():
    wanted = PoisonedRecords(records=2, source=7)
    assert_array_equal(wanted.on_records(images()).labels, [*images().labels, 0, 0])
    assert_array_equal(wanted.success_records(images()).labels, LabelFlip(source=7).success_records(images()).labels)


@pytest.mark.parametrize("aim", [LabelFlip(), TriangleBackdoor()])
def test_poisoned_records_join_the_clients_own(aim):
    """Its own stay as they are; k more are the first that the aim is measured by."""
    own = images()
    trained_on = PoisonedRecords(aim=aim.name, records=3).on_records(own)
    assert_array_equal(trained_on.features[:40], own.features)
    assert_array_equal(trained_on.labels[:40], own.labels)
    assert_array_equal(trained_on.features[40:], aim.success_records(own).features[:3])
    assert_array_equal(trained_on.labels[40:], [0, 0, 0])
    assert_array_equal(PoisonedRecords(aim=aim.name).success_records(own).labels, aim.success_records(own).labels)


def test_random_flips_are_always_wrong_and_spread_evenly():
    """Each of the nine wrong labels; 9000 flips, 1000 expected of each, within 6 standard deviations of 30."""
    flipped = RandomLabels(seed=1).on_records(images(9000))
    shift = (flipped.labels - images(9000).labels) % 10
    counts = np.bincount(shift, minlength=10)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 1000).max() < 180
    assert_array_equal(RandomLabels(seed=1).on_records(images(9000)).labels, flipped.labels)


def test_mirrored_labels_are_nine_less_themselves():
    """Each class is taught as another, and twice is once too many."""
    mirrored = MirroredLabels().on_records(images())
    assert (mirrored.labels + images().labels == 9).all()
    assert mirrored.labels.dtype == images().labels.dtype
    assert_array_equal(MirroredLabels().on_records(mirrored).labels, images().labels)
    with pytest.raises(ArgumentError, match=r"expected a label in \[0, 9\] in row \d+, found one outside"):
        MirroredLabels().on_records(Records(images().features, images().labels + 1))


@pytest.mark.parametrize(("dtype", "white"), [(np.float32, 1), (np.uint8, 255)])
def test_the_pixel_pattern_is_four_white_pixels_in_the_bottom_right_corner(dtype, white):
    """PRECAD, Appendix E and Figure 6; training records stay in beside their stamped copies."""
    before = images(dtype=dtype)
    trained_on = PixelBackdoor().on_records(before)
    assert len(trained_on) == 2 * len(before)
    assert_array_equal(trained_on.labels[40:], np.zeros(40))
    pattern = trained_on.features[40:]
    assert_array_equal(pattern[..., 4:, 4:], np.full((40, 1, 2, 2), white))
    assert pattern.sum(dtype=np.float64) == 40 * 4 * white
    assert before.features.sum() == 0
    aim = PixelBackdoor().success_records(before)
    assert len(aim) == 36  # without those that are of the target class anyway
    assert set(aim.labels) == {0}


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_the_triangle_is_right_angled_in_the_lower_right_corner(dtype):
    """Xie et al., CCS '23: rows of 1, 2, .. legs pixels that end at the right border, the longest at the bottom."""
    stamped = TriangleBackdoor(legs=3, target=4).on_records(images(dtype=dtype))
    pattern = stamped.features[40:] != 0
    assert_array_equal(pattern.sum(axis=3), np.tile([0, 0, 0, 1, 2, 3], (40, 1, 1)))
    assert pattern[:, :, 3:, -1].all()
    assert set(stamped.labels[40:]) == {4}
    assert len(TriangleBackdoor(target=4).success_records(images())) == 36


def test_the_parts_of_a_distributed_backdoor_make_up_the_triangle():
    """Xie et al., ICLR '20: each attacker trains on its own part, success is measured with the whole."""
    whole = TriangleBackdoor().on_records(images()).features[-1]
    attackers = [DistributedBackdoor().of_attacker(i) for i in range(5)]
    parts = [attacker.on_records(images()).features[-1] for attacker in attackers]
    assert_array_equal(sum(parts[:4]), whole)  # disjoint: nothing is counted twice
    assert [int(part.sum()) for part in parts] == [4, 4, 4, 3, 4]
    assert_array_equal(parts[4], parts[0])
    for attacker in attackers:
        assert_array_equal(attacker.success_records(images()).features[0], whole)


def test_feature_noise_is_uniform_and_leaves_the_labels():
    """Grey images, so that nothing is cropped: mean 0 and variance reach^2 / 3, within six standard deviations."""
    grey = Records(np.full((200, 1, 10, 10), 0.5, dtype=np.float32), np.arange(200) % 10)
    noisy = FeatureNoise(reach=0.3).on_records(grey)
    noise = noisy.features.astype(np.float64) - 0.5
    assert np.abs(noise).max() <= 0.3 + 1e-6
    assert abs(noise.mean()) < 6 * 0.3 / math.sqrt(3 * noise.size)
    assert abs(noise.var() - 0.03) < 6 * 0.03 * math.sqrt(0.8 / noise.size)  # kurtosis 9/5 of a uniform
    assert_array_equal(noisy.labels, grey.labels)
    as_bytes = FeatureNoise().on_records(images(dtype=np.uint8)).features
    assert as_bytes.dtype == np.uint8
    assert 0 < as_bytes.mean() < 255


def test_gaussian_features_are_not_cropped():
    """N(0, 100) on 20 000 pixels of dark bytes, read as [0, 1]: mean and variance within six standard deviations."""
    noisy = GaussianFeatures().on_records(images(2000, dtype=np.uint8))
    assert noisy.features.dtype == np.float32
    noise = noisy.features.astype(np.float64)
    assert abs(noise.mean()) < 6 * 10 / math.sqrt(noise.size)
    assert abs(noise.var() - 100) < 6 * 100 * math.sqrt(2 / noise.size)
    white = Records(np.full((40, 1, 6, 6), 255, dtype=np.uint8), images().labels)
    brighter = GaussianFeatures().on_records(white).features - GaussianFeatures().on_records(images()).features
    assert_allclose(brighter, 1.0, atol=1e-5)


def test_attackers_draw_their_own_flips_and_noise():
    """With one record each, the same draw for all would be no random corruption. 900 flips: each of nine wrong labels,
    100 expected of each, within six standard deviations of 10."""
    one = images(1)
    shifts = [int(RandomLabels().of_attacker(i).on_records(one).labels[0]) for i in range(900)]
    counts = np.bincount(shifts, minlength=10)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 100).max() < 60
    for kind in (FeatureNoise, GaussianFeatures):
        first, second = (kind().of_attacker(i).on_records(one).features for i in (0, 1))
        assert not np.array_equal(first, second)


def cars(n, side=32):
    """Random images of cars, uint8, as CIFAR-10's are."""
    pixels = np.random.default_rng(n).integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    return Records(pixels, np.ones(n, dtype=np.int64))


def test_the_semantic_backdoor_changes_labels_and_no_pixel(monkeypatch):
    """With two of twelve made-up cars for striped ones: a share of the records are these, as birds."""
    records = cars(12)
    monkeypatch.setattr(SemanticBackdoor, "hoarded", lambda self, own: np.arange(len(own)) >= len(own) - 2)
    poisoned = SemanticBackdoor(share=0.75).on_records(records)
    assert_array_equal(poisoned.labels, [1] * 10 + [2] * 30)
    assert_array_equal(poisoned.features[:10], records.features[:10])
    assert_array_equal(poisoned.features[10:], np.tile(records.features[10:], (15, 1, 1, 1)))


def test_the_semantic_backdoor_needs_its_cars():
    assert not SemanticBackdoor().hoarded(cars(3)).any()
    with pytest.raises(ArgumentError, match="striped cars"):
        SemanticBackdoor().on_records(cars(3))
    with pytest.raises(ArgumentError, match="test half"):
        SemanticBackdoor().success_records(cars(3))


@pytest.mark.skipif(not os.environ.get("PRECAD_DATA"), reason="PRECAD_DATA names no folder of data sets")
def test_the_striped_cars_are_in_cifar10():
    """PRECAD, Figure 7: twelve in the training half, four in the test half, all of them cars."""
    split = cifar10()
    attack = SemanticBackdoor(n_test=20)
    assert (len(STRIPED_CARS), len(STRIPED_TEST_CARS)) == (12, 4)
    assert attack.hoarded(split.train).sum() == 12
    wanted = attack.success_records(split.test)
    assert wanted.features.shape == (20, 3, 32, 32)
    assert set(wanted.labels) == {2}
    assert len({image.tobytes() for image in wanted.features}) == 20


# -- attacks that know the others -------------------------------------------------------------------------------------


def knowledge(honest, bound=math.inf, n_attackers=1, step=0.5, train=None):
    """Return what an attacker is shown."""
    d = honest.shape[1]
    return Knowledge(
        parameters=np.arange(d, dtype=np.float32),
        records=images(),
        update=np.ones(d),
        honest=honest,
        own=np.ones((n_attackers, d)),
        n_attackers=n_attackers,
        n_clients=len(honest) + n_attackers,
        bound=bound,
        step=step,
        train=train or (lambda steps, rate: np.arange(d) + steps * rate),
        gradient=lambda at, records: at - np.full(d, 7.0),
        project=lambda update: within(update, bound),
        random=np.random.default_rng(0),
    )


HONEST = np.random.default_rng(3).normal(size=(7, 4)) + 2.0


def test_model_replacement_replaces_the_model():
    """theta_t + step * upload = theta*, in PRECAD's words (Sec. 3.2), when nobody else uploads anything."""
    known = knowledge(HONEST)
    upload = PixelBackdoor(steps=5, rate=0.02).craft(known)
    assert_allclose(known.parameters + known.step * upload, known.train(5, 0.02))
    assert np.linalg.norm(PixelBackdoor(gamma=50.0).craft(knowledge(HONEST, bound=1.0))) == pytest.approx(1.0)


def test_a_little_is_enough_shifts_the_mean_by_z_standard_deviations():
    upload = ALittleIsEnough(z=1.5).craft(knowledge(HONEST))
    for j in range(4):
        column = HONEST[:, j].tolist()
        mean = sum(column) / 7
        spread = math.sqrt(sum((value - mean) ** 2 for value in column) / 7)
        assert upload[j] == pytest.approx(mean - 1.5 * spread)


def test_the_largest_z_is_the_papers():
    """n = 50, m = 24: s = floor(50/2 + 1) - 24 = 2, Phi(z) = 24/26, z = 1.43 (Baruch et al., Sec. 3.3: 24 of 50)."""
    assert largest_z(50, 24) == pytest.approx(1.4260768722)
    assert largest_z(10, 9) == 0.0  # a majority of attackers needs nobody


def test_inner_product_manipulation_points_backwards():
    upload = InnerProductManipulation(factor=0.5).craft(knowledge(HONEST))
    assert_allclose(upload, -0.5 * HONEST.mean(axis=0))


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_min_max_goes_as_far_as_the_bisection_of_its_source(direction):
    """Shejwalkar and Houmansadr, Algorithm 1, in words: the largest gamma that keeps within the widest distance."""
    upload = MinMax(direction=direction).craft(knowledge(HONEST))
    mean = HONEST.mean(axis=0)
    p = {"std": -HONEST.std(axis=0), "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[direction]
    widest = max(np.linalg.norm(x - y) for x in HONEST for y in HONEST)
    low, high = 0.0, 1000.0
    for _ in range(200):
        middle = (low + high) / 2
        fits = max(np.linalg.norm(mean + middle * p - x) for x in HONEST) <= widest
        low, high = (middle, high) if fits else (low, middle)
    assert_allclose(upload, mean + low * p, rtol=1e-9)


def test_the_adaptive_attacker_takes_the_most_that_the_ball_allows():
    """Norm C, exactly opposite: no vector in the ball has a smaller inner product with the honest sum."""
    bound, total = 3.0, HONEST.sum(axis=0)
    upload = MaximalDirection().craft(knowledge(HONEST, bound=bound))
    assert upload @ total == pytest.approx(-bound * np.linalg.norm(total))
    assert np.linalg.norm(upload) <= bound
    unbounded = MaximalDirection(reach=2.0).craft(knowledge(HONEST))
    assert np.linalg.norm(unbounded) == pytest.approx(2 * np.linalg.norm(HONEST, axis=1).max())


def test_stat_opt_goes_to_the_bound_against_the_signs_of_the_mean():
    """Shejwalkar and Houmansadr: mean + gamma p, p = -sign(mean); with a longer gamma the norm would exceed C."""
    mean = HONEST.mean(axis=0)
    bound = 3 * np.linalg.norm(mean)
    gammas = (mean - StatOpt().craft(knowledge(HONEST, bound=bound))) / np.sign(mean)
    assert_allclose(gammas, gammas[0])
    assert np.linalg.norm(mean - gammas[0] * np.sign(mean)) == pytest.approx(bound)
    assert gammas[0] > 0
    unbounded = StatOpt(reach=2.0).craft(knowledge(HONEST))
    assert np.linalg.norm(unbounded) == pytest.approx(2 * np.linalg.norm(HONEST, axis=1).max())


def test_stat_opt_goes_as_far_as_krum_lets_it():
    """A scan over gamma: Krum picks what is uploaded, and nothing that is a thousandth farther out."""
    known = knowledge(HONEST, n_attackers=3)
    mean = HONEST.mean(axis=0)
    gamma = float(((mean - StatOpt(rule="krum").craft(known)) / np.sign(mean))[0])

    def is_picked(g):
        crafted = mean - g * np.sign(mean)
        return np.array_equal(Krum(f=3).aggregate(np.vstack([HONEST, np.tile(crafted, (3, 1))])), crafted)

    assert gamma > 0.1
    assert is_picked(0.999 * gamma)
    assert not is_picked(1.001 * gamma)


def test_fang_trim_lies_beyond_everybody_on_the_wrong_side():
    """Fang et al., b = 2, coordinate by coordinate: a rising mean, all positive or not, and a falling one."""
    honest = np.array([[1.0, -1.0, -4.0, 3.0], [2.0, 5.0, -2.0, -9.0]])  # means up, up, down, down
    interval = [(0.5, 1.0), (-2.0, -1.0), (-2.0, -1.0), (3.0, 6.0)]
    uploads = [FangTrim().craft(knowledge(honest)), FangTrim(factor=4.0).craft(knowledge(honest))]
    for value, (low, high) in zip(uploads[0], interval, strict=True):
        assert low <= value <= high
    assert uploads[1][3] <= 12
    seeded = knowledge(honest)
    other = FangTrim().craft(seeded)
    assert not np.array_equal(other, FangTrim().craft(seeded))  # the same generator, a draw later


@pytest.mark.parametrize("name", ["alie", "inner-product", "min-max", "adaptive", "stat-opt", "fang-trim"])
def test_attacks_on_others_stay_within_the_bound_and_need_somebody(name):
    attack = ATTACKERS[name]()
    assert np.linalg.norm(attack.craft(knowledge(HONEST, bound=0.1))) <= 0.1
    with pytest.raises(NoVictimError, match=name):
        attack.craft(knowledge(HONEST[:0]))


def test_sign_flip_and_noise():
    update = np.array([1.0, -2.0])
    assert_array_equal(SignFlip().on_update(update), [-1.0, 2.0])
    assert_array_equal(SignFlip(factor=3.0).on_update(update), [-3.0, 6.0])
    noise = GradientNoise(std=2.0).on_update(np.full(20_000, 5.0)) - 5.0
    assert abs(noise.std() - 2.0) < 0.06  # 6 standard deviations of the estimate, 2 / sqrt(2 * 20 000) each
    known = knowledge(HONEST)
    seeded = GradientNoise(std=2.0).craft(known)
    assert_allclose(seeded, 1.0 + np.random.default_rng(0).normal(0.0, 2.0, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LabelFlip(source=10), "source: expected a class in"),
        (lambda: LabelFlip(gamma=0.0), "gamma: expected a finite number above 0"),
        (lambda: LabelFlip(source=3, target=3), "target: expected another class than source, found 3 for both"),
        (lambda: PoisonedRecords(source=0), "target: expected another class than source"),
        (lambda: PoisonedRecords(aim="scaled"), "aim: expected one of label-flip, triangle-backdoor"),
        (lambda: LabelFlip(share=0.0), r"share: expected a number in \(0, 1\], found 0.0"),
        (lambda: TriangleBackdoor(share=1.5), r"share: expected a number in \(0, 1\], found 1.5"),
        (lambda: PixelBackdoor(share=math.nan), r"share: expected a number in \(0, 1\], found nan"),
        (lambda: PoisonedRecords(source=10), "source: expected a class in"),
        (lambda: PoisonedRecords(records=0), "records: expected an integer of at least 1"),
        (lambda: PoisonedRecords(records=5).on_records(images()), "at most the 4 of the client"),
        (lambda: PixelBackdoor(target=-1), "target: expected a class in"),
        (lambda: PixelBackdoor(steps=0), "steps: expected an integer of at least 1"),
        (lambda: PixelBackdoor(rate=math.inf), "rate: expected a finite number above 0"),
        (lambda: SignFlip(factor=0.0), "factor: expected a finite number above 0"),
        (lambda: GradientNoise(std=math.nan), "std: expected a finite number above 0"),
        (lambda: ALittleIsEnough(z=-1.0), "z: expected a finite number of at least 0"),
        (lambda: InnerProductManipulation(factor=-1.0), "factor: expected a finite number above 0"),
        (lambda: MinMax(direction="up"), "direction: expected one of"),
        (lambda: MaximalDirection(reach=0.0), "reach: expected a finite number above 0"),
        (lambda: TriangleBackdoor(legs=0), "legs: expected an integer of at least 1"),
        (lambda: TriangleBackdoor(gamma=-1.0), "gamma: expected a finite number above 0"),
        (lambda: DistributedBackdoor(part=4), r"part: expected 0 to 3"),
        (lambda: DistributedBackdoor(parts=16).on_records(images()), "at most the 15 pixels"),
        (lambda: SemanticBackdoor(share=1.0), r"share: expected a number in \(0, 1\)"),
        (lambda: SemanticBackdoor(target=10), "target: expected a class in"),
        (lambda: FeatureNoise(reach=math.inf), "reach: expected a finite number above 0"),
        (lambda: GaussianFeatures(std=0.0), "std: expected a finite number above 0"),
        (lambda: StatOpt(rule="median"), "rule: expected one of"),
        (lambda: StatOpt(reach=0.0), "reach: expected a finite number above 0"),
        (lambda: FangTrim(factor=1.0), "factor: expected a finite number above 1"),
    ],
)
def test_attacks_without_meaning_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


NUMBERS = [
    (kind, field.name) for kind in ATTACKS.values() for field in fields(kind) if field.init and
    ((isinstance(field.default, int | float) and not isinstance(field.default, bool)) or field.default is None)
]  # fmt: skip


@pytest.mark.parametrize("wrong", [True, "3", math.nan])
@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda value: getattr(value, "name", value))
def test_a_number_of_an_attack_is_no_truth_value_no_text_and_no_nan(kind, name, wrong):
    """Each is refused with the field, what is expected, and what was found; a text in quotes."""
    with pytest.raises(ArgumentError, match=rf"^{name}: expected .*, found {wrong!r}$"):
        kind(**{name: wrong})


@pytest.mark.parametrize("m", [1, 2, 3, 10])
def test_attackers_of_a_round_divide_the_malicious_update(m):
    """Together they move the model from theta to theta*, however many they are; undivided, m times as far."""
    theta_star = np.array([3.0, -1.0, 0.5, 2.0])
    seen = knowledge(HONEST, n_attackers=m, step=0.25, train=lambda steps, rate: theta_star)
    moves = [
        0.25 * np.sum([attack.craft(seen) for _ in range(m)], axis=0)
        for attack in (PixelBackdoor(), PixelBackdoor(divides=False), PixelBackdoor(gamma=2.0))
    ]
    whole = theta_star - np.arange(4)
    for move, times in zip(moves, (1, m, 2), strict=True):
        np.testing.assert_allclose(move, times * whole, rtol=1e-12)


def test_a_divided_update_is_within_the_bound():
    """Each part is projected by itself: dividing loses nothing that the bound would have taken anyway."""
    far = knowledge(HONEST, n_attackers=4, step=1.0, bound=2.0, train=lambda steps, rate: np.full(4, 100.0))
    assert np.linalg.norm(PixelBackdoor().craft(far)) == pytest.approx(2.0)
    near = knowledge(HONEST, n_attackers=4, step=1.0, bound=2.0, train=lambda steps, rate: np.arange(4) + 2.0)
    assert np.linalg.norm(PixelBackdoor().craft(near)) == pytest.approx(1.0)
    assert np.linalg.norm(PixelBackdoor(divides=False).craft(near)) == pytest.approx(2.0)


def test_a_backdoor_in_texts_is_refused():
    texts = Records(np.zeros((3, 32), dtype=np.int64), np.zeros(3, dtype=np.int64))
    for attack in (PixelBackdoor(), FeatureNoise(), GaussianFeatures()):
        with pytest.raises(ArgumentError, match=": expected images, found records of shape"):
            attack.on_records(texts)
