"""Experiments of PRECAD's paper.

Modules:

    backdoor  `precad experiment precad-backdoor`: PRECAD's Figures 4 and 5, what K attackers of 100 do under
              which defence
    clients   `precad experiment precad-clients`: PRECAD's Figure 3, accuracy and running time by the number of
              clients
    mnist     `precad experiment precad-mnist`: PRECAD's Figure 2, privacy and accuracy by epoch on MNIST, on
              real data
    theorem_1 `precad experiment precad-theorem-1`: PRECAD's Figure 2, left, epsilon by epoch
    theorem_2 `precad experiment precad-theorem-2`: PRECAD's Theorem 2 as printed
    noise     `precad experiment precad-noise`: the noise column of PRECAD's Table 1, measured
"""
