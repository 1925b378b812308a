"""Exact noise on the integers.

Modules:

    correlated        recursion by which a server takes back a part of its earlier noise, and what that costs
    rounded_gaussian  exact round(std * Z) on the grid, the noise one server adds
    rounded_laplace   exact round(scale * Lap(1)) on the integers
"""
