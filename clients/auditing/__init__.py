"""Audit clients: members of a task whose records are canaries, by coins that the auditor keeps.

Modules:

    head          records whose gradients are known directions, and the head that a model has for them
    kinks         records at kinks of the model, for a clip that fails in floating point
    canary_file   coins and contributions of one audit client, in a file that only its owner reads
    real_file     likewise of one that audits with records of its own
    conduct       what an audit client does beside the protocol: nothing but write down what it adds
    real_conduct  likewise with records of its own
"""
