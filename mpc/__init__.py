"""Two-party computation over Z_2^64: everything that happens to a share, and nothing about the wire.

In reading order:

    ring         integers modulo 2^64 on int64 arrays
    fixed_point  reals to ring elements and back
    prg          16-byte seeds, domain-separated, expanded by AES-128-CTR
    sharing      additive shares, and the two forms of a submission
    norm_bound   the public parameters of the norm check and the conditions its soundness rests on
    burning      the seam to the record of tuples that are used up
    tuples       correlated randomness as a server holds it
    correlations the binary part of it, block by block
    dealer       correlated randomness as the dealer makes it (pure; no CrypTen, no torch)
    channel      the seam between a protocol and its transport, with its in-process twin
    opening      a vector of two shares, opened piece by piece
    joint_coin   a coin that neither server chose (commit, then reveal), and the random selection of clients
    projection   64 ternary rows against modular wrap-around
    local_step   what a server computes from vectors of length d, in one pass over the uploads
    encrypted_region   bytes on disk that only this process can read
    spool        a vector on disk, read and written tile by tile
    engines      where the local step runs
    cpu_engine   on the processor
    kernels      its inner loops, in Numba
    machine_code how such loops are compiled, and where that is kept
    threads      several cores for one step
    torch_engine on a GPU
    top_bits     words must be small: from shares of words to XOR shares of words that vanish if they are
    gates        the comparison gates, which give the carries that this takes
    comparison   CrypTen's carry circuit as a gate (the only module that imports CrypTen)
    carry_gate   ours
    equality     the masked-equality opening: one bit per client
    gate_kernels, field_kernels   the loops of both, in Numba
    compiled     loads them when they are first needed
    validation   the whole check, in the order of the paper
    errors       what may go wrong, as one tree
"""
