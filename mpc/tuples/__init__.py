"""Correlated randomness: dealt, held, and burnt before use.

Modules:

    burning       the seam to the record of tuples that are used up
    held          correlated randomness as a server holds it
    correlations  the binary part of it, block by block
    dealt         correlated randomness as the dealer makes it (pure; no CrypTen, no torch)
"""
