"""Attackers that change their update.

Modules:

    gradient_noise            Gradient noise: the honest update under Gaussian noise of the attacker's choice
    no_attack                 No attack: the control of an experiment, a malicious client that changes nothing
    not_a_number              NaN: what a program uploads that encodes an update without looking at it
    scaled_model_replacement  Model replacement: one client outvotes all others by scaling its update
    sign_flip                 Sign flip: the honest update, backwards
    wrap_around               Wrap-around
"""
