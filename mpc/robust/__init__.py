"""Robust sums of secret vectors behind the check of norms: the shortest after a private test, or Krum's choice.

Modules:

    proposal     the public parameters of the test, and the correlations that a round uses up
    shared_bits  from shares of words to a shared bit of each, and to its additive shares
    margin       how many norms exceed tau C, noised by both servers: the only number that is opened
    release      test and trim together: the share of the sum of the branch
    trimming     the share of the sum without the longest vectors
    keeping      ranks of secret numbers, and the share of the sum of vectors whose rank is low
    distances    shares of the squared distances between vectors, without a message
    krum         Krum's scores and choice, and the share of the sum of the vectors chosen
"""
