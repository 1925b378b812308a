"""Sizes of the buckets that the loops of the local step add into, for whoever allocates them. Imports no Numba."""

LANES = 4
"""Clients whose rows are added up side by side: their buckets, 64 KiB, stay in the first two levels of cache."""
BYTES, BYTE_VALUES = 8, 256
