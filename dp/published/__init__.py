"""Formulas as printed in the papers, for comparison alone.

Modules:

    precad                PRECAD's Theorem 1, beside what is true of it, and Theorem 2, beside what is exact for a
                          Gaussian influence
    gaussian              the Gaussian mechanism, the trade-off of a test, and sampled rounds by one call
    renyi_amplification   Renyi amplification by sampling, for mechanisms known by their divergence alone
    grid_sensitivity      what rules of rounding do to sensitivities
    levels                whole users, and instances within them
    xie                   Xie et al.'s Condition 1
    propose_test_release  propose-test-release as its paper states it, and the safety margin of a trimmed sum
"""
