"""Formulas as printed in the papers, for comparison alone.

Modules:

    precad_record         PRECAD's Theorem 1, beside what is true of it
    precad_client         PRECAD's Theorem 2, beside what is exact for a Gaussian influence
    gaussian              the Gaussian mechanism, and the trade-off of a test
    sampled_gaussian      rounds of the sampled Gaussian by one call
    renyi_amplification   Renyi amplification by sampling, for mechanisms known by their divergence alone
    grid_sensitivity      what rules of rounding do to sensitivities
    levels                whole users, and instances within them
    xie                   Xie et al.'s Condition 1
    propose_test_release  propose-test-release as its paper states it
    trimmed_sum           the safety margin and the local sensitivity of a trimmed sum
"""
