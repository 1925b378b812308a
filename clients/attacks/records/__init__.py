"""Attackers that change the records that they train on.

Modules:

    feature_noise      Feature noise: what the client trains on is hardly to be seen
    gaussian_features  Gaussian feature noise: images far outside what images are
    label_flip         Targeted label flipping: one class is taught to be another
    mirrored_labels    Targeted label flipping of every class
    poisoned_share     How many of an attacker's records are poisoned, and which
    random_labels      Random label flipping: noise in place of knowledge
"""
