"""Section 13: the rate by round and the servers' optimiser, number by number."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.vectors.independent import ring


def updated(
    parameters: bytes,
    noisy_sum: Sequence[int],
    task: Mapping[str, Any],
    divisor: float,
    n_steps: int,
    moments: Sequence[bytes],
) -> tuple[bytes, list[bytes]]:
    """The next model's bytes, and those of the next moments."""
    n = len(noisy_sum)
    theta, old = numbers(parameters, n), [numbers(moment, n) for moment in moments]
    eta, kind = rate(task, n_steps), task.get("server_optimizer", "sgd")
    totals = [math.ldexp(float(ring.centred(word)), -task["frac_bits"]) for word in noisy_sum]
    if kind == "sgd":
        return packed([x + total * (eta / divisor) for x, total in zip(theta, totals, strict=True)]), []
    g = [total * (1.0 / divisor) for total in totals]
    beta1, beta2 = task.get("server_momentum", 0.9), task.get("server_beta2", 0.99)
    if kind == "momentum":
        m = single([before * beta1 + x for before, x in zip(old[0], g, strict=True)])
        return packed([x + y * eta for x, y in zip(theta, m, strict=True)]), [packed(m)]
    m = single([before * beta1 + x * (1.0 - beta1) for before, x in zip(old[0], g, strict=True)])
    v = single([before * beta2 + (x * x) * (1.0 - beta2) for before, x in zip(old[1], g, strict=True)])
    left = [1.0 - product(beta, n_steps + 1) for beta in (beta1, beta2)]
    tau = task.get("server_adaptivity", 1e-3)
    steps = [((a / left[0]) / (math.sqrt(b / left[1]) + tau)) * eta for a, b in zip(m, v, strict=True)]
    return packed([x + step for x, step in zip(theta, steps, strict=True)]), [packed(m), packed(v)]


def rate(task: Mapping[str, Any], n_steps: int) -> float:
    """eta_t."""
    eta, warm = task["learning_rate"], task.get("warmup_rounds", 0)
    if n_steps < warm:
        return float(eta * (n_steps + 1) / warm)
    k, kind, least = n_steps - warm, task.get("learning_rate_schedule", "constant"), task.get("decay_factor", 0.1)
    if kind == "constant":
        return float(eta)
    n = task["decay_rounds"]
    if kind == "step":
        return float(eta * product(least, k // n))
    k = min(k, n)
    share = 1.0 - (1.0 - least) * k / n if kind == "linear" else least + (1.0 - least) * half_cosine(k, n)
    return float(eta * share)


def product(x: float, n: int) -> float:
    """x^n, with the half of n first."""
    if n == 0:
        return 1.0
    half = product(x, n // 2)
    return half * half * x if n % 2 else half * half


def half_cosine(k: int, n: int) -> float:
    """The float64 nearest to (1 + cos(pi k / n)) / 2: Machin's pi and the series, on integers of 300 bits."""
    one = 1 << 300
    pi = 4 * (4 * arctan_of_inverse(5, one) - arctan_of_inverse(239, one))
    x = pi * k // n
    term, total = one, one
    for i in range(1, 120):
        term = -(term * x // one) * x // one // ((2 * i - 1) * (2 * i))
        total += term
    return 0.0 if k == n else (one + total) / (2 * one)


def arctan_of_inverse(x: int, one: int) -> int:
    """Arctan(1 / x), times `one`."""
    term, total, k = one // x, 0, 1
    while term:
        total += term // k if k % 4 == 1 else -(term // k)
        term //= x * x
        k += 2
    return total


def numbers(data: bytes, n: int) -> tuple[float, ...]:
    """Float32 as they are sent."""
    return struct.unpack(f"<{n}f", data)


def packed(values: Sequence[float]) -> bytes:
    """Each rounded to float32, once."""
    return struct.pack(f"<{len(values)}f", *values)


def single(values: Sequence[float]) -> tuple[float, ...]:
    """Each as float32 holds it."""
    return numbers(packed(values), len(values))
