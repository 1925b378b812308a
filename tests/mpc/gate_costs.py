"""Costs of each gate, by hand: what it sends and uses up, with the steps in order, their bytes per direction, and the
rounds.

A group is (words, n_bits). Both gates are followed by the step that makes their carries additive, a bit per word.
"""

SPLITS = {1: (1, 1), 8: (2, 4), 30: (5, 6), 31: (4, 8), 33: (5, 7), 42: (6, 7), 52: (6, 9), 53: (6, 9), 63: (7, 9)}
"""(bits of a block, blocks) of the native gate, by n_bits."""

GATE_ROUNDS = {"crypten": 7, "native": 2}
ROUNDS = {"crypten": 13, "native": 8}
"""Lock, coin, the gate's, the additive carries, and three for the verdicts. In the `shares` form b is in the coin's."""
MAX_ROUNDS = 13
"""For either gate, in either form."""


def lanes(n_words):
    """Bytes of a bit of so many words."""
    return (n_words + 7) // 8


def native_steps(groups):
    """Every product of a block's bits, then g and p of every block."""
    splits = [(lanes(n_words), *SPLITS[n_bits]) for n_words, n_bits in groups]
    return [
        ("gate/blocks", sum((2**k - 1) * s * n_bytes for n_bytes, k, s in splits)),
        ("gate/join", sum(2 * s * n_bytes for n_bytes, _, s in splits)),
    ]


def crypten_words(groups):
    """Words that hold as many summands as fit, each with a bit above it for its carry."""
    return sum(-(-n_words // (64 // (n_bits + 1))) for n_words, n_bits in groups)


def crypten_steps(groups):
    """Both operands of one AND, then those of one twice as wide in each of six levels."""
    return [(f"gate/{step}", (16 if step == 1 else 32) * crypten_words(groups)) for step in range(1, 8)]


GATE_STEPS = {"crypten": crypten_steps, "native": native_steps}


def steps(name, groups):
    """(label, bytes) of all that one server sends from words to additive carries."""
    return [*GATE_STEPS[name](groups), ("gate/carries", sum(lanes(n_words) for n_words, _ in groups))]


def groups_of(n_clients, n_rows, norm_bits):
    """The groups of a validation: the rows' 30 low bits and the norm's, in one group where they are as many."""
    if norm_bits == 30:
        return [(n_clients * (n_rows + 1), 30)]
    return [(n_clients * n_rows, 30), (n_clients, norm_bits)]


def product_words(name, groups):
    """Words of the dealer's corrections that the gate itself uses up."""
    if name == "crypten":
        return 13 * crypten_words(groups)
    return sum(-(-products_per_word(*SPLITS[n_bits]) * lanes(n_words) // 8) for n_words, n_bits in groups)


def products_per_word(k, s):
    """Count a word's products: 2^k - 1 pairs for each block's g, 2^k - 2 for its p, and then sets of the blocks' g and
    p.

    A set has two members or more: one g or p, and p of blocks above it. p_0 is in none.
    """
    pairs = (2**k - 1) + (2**k - 2)
    sets = sum(2**above - 1 for above in range(s)) + sum(2**above - 1 for above in range(s - 1))
    return s * pairs + sets
