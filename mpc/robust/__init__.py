"""Robust sums of secret vectors: propose-test-release on the trimmed sum, behind the check of norms.

Modules:

    proposal     the public parameters, and the correlations that a round uses up
    shared_bits  from shares of words to a shared bit of each, and to its additive shares
    margin       how many norms exceed tau C, noised by both servers: the only number that is opened
    release      both together: the test, and the share of the sum of its branch
    trimming     ranks of secret norms, and the share of the sum without the longest vectors
"""
