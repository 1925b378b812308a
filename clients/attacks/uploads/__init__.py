"""Attackers whose update is honest and whose upload is not.

Modules:

    forger               Forgers
    inconsistent_shares  Inconsistent shares
    late                 Late: an upload that comes when its round is over
    replay               Replay: the upload of a round before, once more
    wrong_length         Wrong length: an upload of another number of words than the model has parameters
"""
