"""What each gate sends and uses up, by hand: the steps in order with their bytes per word and direction."""

STEPS = {
    "crypten": [("gate/1", 16), *((f"gate/{step}", 32) for step in range(2, 8))],
    "native": [("gate/inputs", 8), *((f"gate/{shift}", 24) for shift in (1, 2, 4, 8, 16)), ("gate/32", 16)],
}
"""CrypTen opens both operands of one AND, then those of one twice as wide in each of six levels. The native gate opens
one operand of its first AND, then one left and two right operands in five levels, and one of each in the last."""

BYTES_PER_WORD = {"crypten": 208, "native": 144}
PRODUCTS_PER_WORD = {"crypten": 13, "native": 12}
N_ROUNDS = 7
