"""Experiments of the propose-test-release paper.

Modules:

    accounting  `precad experiment ptr-accounting`: how long each mechanism of the PTR paper's Tables 1 to 4 may
                train
    clients     `precad experiment ptr-clients`: TSGD + PTR by PRECAD's two servers, one record a client
    figures     `precad experiment ptr-figures`: the curves of Figures 1 to 5, and what the paper says of them
    mnist       `precad experiment ptr-mnist`: TSGD + PTR beside TSGD + Gaussian on MNIST with corrupted
                records, at equal epsilon
    settings    the mechanisms and corruptions of the PTR paper's Tables 1, 3 and 4
"""
