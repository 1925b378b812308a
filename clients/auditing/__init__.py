"""Audit clients: members of a task whose records are canaries, by coins that the auditor keeps.

Modules:

    head         records whose gradients are known directions, and the head that a model has for them
    canary_file  coins and contributions of one audit client, in a file that only its owner reads
    conduct      what an audit client does beside the protocol: nothing but write down what it adds
"""
