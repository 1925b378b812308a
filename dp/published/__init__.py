"""Formulas as printed in the papers, for comparison alone.

precad_record  PRECAD's Theorem 1, beside what is true of it
"""
