"""The compiled loops: the only folder that imports Numba.

A loop is here, whichever folder calls it: `local/`, `gate/` or `proved/`.

Modules:

    local          the inner loops of the local step
    lanes          sizes of its buckets, without Numba
    machine_code   how such loops are compiled, and where that is kept
    private_cache  the folder that keeps it where the source's own cannot be written
    gate           the loops of the native gate and of the top bits, in Numba
    field          arithmetic of F_p for the equality opening, in Numba
    prime_field    arithmetic of F_p for mode `proved`, in Numba
    packing        elements of 7 bytes, in words, in Numba
    proofs         the servers' pass in mode `proved`, in Numba
    wires          the client's wires in mode `proved`, eight side by side, in Numba
    vectors        steps on eight words at once
    wide           operations that Numba has no name for
    loading        loads them when they are first needed
"""
