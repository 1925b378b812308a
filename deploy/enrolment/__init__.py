"""Certificates by one-time token: the tokens, the authority's endpoint, and whoever enrols there."""
