"""Certificates by one-time token: the tokens, the authority's endpoint, and whoever enrols there.

Modules:

    endpoint  `precad pki serve`: the authority answers requests that come with a one-time token
    enrol     `precad enrol`: whoever will hold a certificate makes the key, and shows a one-time token for the
              rest
    tokens    one-time tokens of an authority: each is worth one certificate, for one identity, until it expires
"""
