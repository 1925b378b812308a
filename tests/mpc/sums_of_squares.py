"""n as a sum of two, three or four squares: how an attacker moves a squared norm to any value modulo 2^64.

Lagrange: four squares always suffice; three do unless n = 4^a (8b + 7). The method draws all but two squares until what
is left is 2^k p with a prime p = 1 mod 4. Hermite and Serret's algorithm writes that as two.
"""

import math
import random
from itertools import count

WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # decide primality below 3.3e24


def squares(n: int, n_terms: int) -> list[int]:
    """Integers x_1..x_k, k = 3 or 4, with sum x_i^2 = n, the same ones each time. Three need `is_three_squares(n)`."""
    assert n_terms == 4 or is_three_squares(n)
    if n and n % 4 == 0:  # twice a solution for n / 4; for powers of two there are hardly any others to draw
        return [2 * x for x in squares(n // 4, n_terms)]
    rng = random.Random(n)
    while True:
        drawn = []
        rest = n
        for _ in range(n_terms - 2):
            drawn.append(rng.randint(0, math.isqrt(rest)))
            rest -= drawn[-1] ** 2
        pair = two_squares(rest)
        if pair is not None:
            found = [*drawn, *pair]
            assert sum(x * x for x in found) == n
            return found


def is_three_squares(n: int) -> bool:
    """Legendre: n is a sum of three squares unless it is 4^a (8b + 7)."""
    while n and n % 4 == 0:
        n //= 4
    return n % 8 != 7


def two_squares(n: int) -> tuple[int, int] | None:
    """Return (x, y) with x^2 + y^2 = n where n is 0 or 2^k times 1 or a prime that is 1 mod 4.

    Return None for every other n.
    """
    if n == 0:
        return 0, 0
    n_twos = (n & -n).bit_length() - 1
    odd = n >> n_twos
    if odd == 1:
        x, y = 1, 0
    elif odd % 4 == 1 and is_prime(odd):
        x, y = _prime_as_two_squares(odd)
    else:
        return None
    for _ in range(n_twos):  # (x + iy)(1 + i)
        x, y = x + y, abs(x - y)
    return x, y


def _prime_as_two_squares(p: int) -> tuple[int, int]:
    root = next(r for r in (pow(z, (p - 1) // 4, p) for z in count(2)) if r * r % p == p - 1)
    larger, smaller = p, root
    while smaller * smaller > p:
        larger, smaller = smaller, larger % smaller
    return smaller, math.isqrt(p - smaller * smaller)


def is_prime(n: int) -> bool:
    """Miller and Rabin's test with witnesses that make it exact for the sizes here."""
    if n < 2 or any(n % p == 0 for p in WITNESSES):
        return n in WITNESSES
    n_twos = ((n - 1) & (1 - n)).bit_length() - 1
    return all(_passes(n, pow(witness, (n - 1) >> n_twos, n), n_twos) for witness in WITNESSES)


def _passes(n: int, power: int, n_twos: int) -> bool:
    if power in (1, n - 1):
        return True
    return any((power := power * power % n) == n - 1 for _ in range(n_twos - 1))
