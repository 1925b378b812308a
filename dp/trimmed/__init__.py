"""Trimmed sums, and propose-test-release on them.

Modules:

    propose_test_release  little noise if that is safe
    aggregation           trimmed sums as the aggregation rules of a training
    two_servers           propose-test-release where each of two servers adds a whole server's noise
    trimmed_sum           a sum without its longest vectors
"""
