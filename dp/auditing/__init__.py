"""Audits of privacy: what the scores of canaries prove against an epsilon that is printed.

Modules:

    guesses       guesses of coins, from scores
    plans         how many coins to guess, before any score is seen
    strict        epsilon that guesses in one run refute, with no assumption but the coins
    f_dp          largest epsilon of the accountant's own curves that guesses in one run refute
    observed      canaries' scores, round by round, as one view sees them
    per_round     limits of noise, rate and clip from single rounds, and the epsilon at these limits
    beside_others limits where updates of other members are in the sum, too
    shares        parts of one chance of a false alarm for all that an audit judges
    arrival       tests that uploads enter the sum as they are
    independence  tests that no noise is used twice
    common        tests that noise has no part in common
    coincidences  tests that no values of the noise come again
    evenness      tests that noise is as printed in every part of it
    parts         parts of all observations, for tests that look everywhere
    draws         tests that records are drawn afresh, each by itself

A canary is a record whose gradient is a known direction. It is in its client's data or not, by a fair coin that the
auditor keeps. Figures are lower limits on the true epsilon, each at a stated confidence. None guarantees privacy.
"""
