"""The compiled loops: the only folder that imports Numba.

local         its inner loops, in Numba
machine_code  how such loops are compiled, and where that is kept
gate          the loops of both, in Numba
field         the loops of both, in Numba
loading       loads them when they are first needed
"""
