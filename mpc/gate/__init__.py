"""From shares of words to one opened bit per client.

Modules:

    top_bits     words must be small: from shares of words to XOR shares of words that vanish if they are
    native_gate  our comparison gate: the carry of an addition in two rounds
    equality     the masked-equality opening: one bit per client
"""
