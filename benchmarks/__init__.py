"""Measurements, as plain functions that return rows. Nothing imports this package but its own command lines.

validation_floor   one server's check of a round, beside what the machine could do at best
"""
