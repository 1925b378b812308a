"""Exact noise on the integers.

rounded_gaussian  exact round(std * Z) on the grid, the noise one server adds
rounded_laplace   exact round(scale * Lap(1)) on the integers
"""
