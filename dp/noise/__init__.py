"""Exact noise on the integers, and what the grid does to sensitivities.

rounded_gaussian  exact round(std * Z) on the grid, the noise one server adds
grid_sensitivity  what rounding does to sensitivities
rounded_laplace   exact round(scale * Lap(1)) on the integers
"""
