"""Everything that imports CrypTen: its carry circuit as a gate, and functions of the shared sum in its words.

Modules:

    lookups       CrypTen's globals, which its user keeps
    answers       its communicator over our channel, and its provider of the dealer's tuples
    crypten_gate  its carry circuit as a gate
    bridge        shares as its tensors and back, and a function of the shared sum
    named         such a function by name, with the digest of its file
    examples      such functions
"""
