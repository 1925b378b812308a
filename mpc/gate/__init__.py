"""From shares of words to one opened bit per client.

top_bits     words must be small: from shares of words to XOR shares of words that vanish if they are
native_gate  ours
equality     the masked-equality opening: one bit per client
"""
