"""CrypTen's carry circuit as a comparison gate: the only folder that imports CrypTen.

crypten_gate  CrypTen's carry circuit as a gate (the only module that imports CrypTen)
"""
