"""Two-party computation over Z_2^64: everything that happens to a share, and nothing about the wire.

Modules:

    parameters   the protocol's public constants and choices, without NumPy
    ring         integers modulo 2^64 on int64 arrays
    fixed_point  reals to ring elements and back
    prg          16-byte seeds, domain-separated, expanded by AES-128-CTR
    upload_binding  what an upload is bound to: its digests, and its client's word
    sharing      additive shares, and the two forms of a submission
    norm_bound   the public parameters of the norm check and the conditions its soundness rests on
    convex_set   the ball of the norm check, cut by balls of layers and by half-spaces
    channel      the seam between a protocol and its transport, with its in-process twin
    opening      a vector of two shares, opened piece by piece
    joint_coin   a coin that neither server chose (commit, then reveal), and the random selection of clients
    locking      both servers fix the same set of uploads, and commit to a coin
    gate_names   the comparison gates, which give the carries that this takes
    validation   the whole check, in the order of the paper
    errors       what may go wrong, as one tree
    crypten/     everything that imports CrypTen: a comparison gate, and functions of the shared sum
    gate/        from shares of words to one opened bit per client
    kernels/     the compiled loops: the only folder that imports Numba
    local/       everything that one server computes from vectors of length d
    proved/      mode `proved`: the client proves its norm, and no vector is multiplied
    robust/      propose-test-release on the trimmed sum, of secret vectors
    tuples/      correlated randomness: dealt, held, and burnt before use
"""
