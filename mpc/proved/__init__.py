"""Mode `proved`: each client proves to both servers, in one message after the lock, that its update is short.

Modules:

    sizes         the public parameters of a proof, and the conditions that its theorems need
    field         F_p on arrays: words, bytes and transforms
    streams       field streams: uniform elements under a seed, readable from any element on
    shares        shares of an upload and of a proof, and the client's payloads
    submission    uploads and proofs as values: bindings, digests, salts and statements
    prover        the client's proof
    client        what a client accepts, sends, and never sends twice
    query         the two points of a round, and what is computed from them once
    accumulators  where the pass adds up its tiles: on the processor or on a GPU
    sums          the pass over the uploads: rows, weighted sums of wires, and the sum of all shares
    verifier      what each server opens of its shares, and the verdict
    opening       the noisy sum, from both servers' shares to integers
    check         one round's proofs at one server, from the lock to the accepted sum
    validation    the check of a round's proofs over the channel, from the end of the intake to the sum
"""
