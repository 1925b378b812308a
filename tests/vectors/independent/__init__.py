"""The protocol a second time, from `docs/reference/protocol.md` alone: plain Python and big integers.

Standard library, and `cryptography` for the AES block cipher. Nothing of the packages that it checks is imported.
Section numbers in the docstrings are those of the document. Slow and obviously right wherever it can be: a vector is a
list of integers, a plane of bits is one big integer.
"""
