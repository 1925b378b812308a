"""Runs as they lie on disk: what each leaves behind, whether it goes on, and what its files say.

Contents:

    folder              the files that a run leaves behind
    state               whether a run goes on, has ended or was killed
    own_task            whether its configuration is what its servers ran
    spent               the epsilons of a run, each with its adversary
    public_quality      what aggregators' operators measured of a run's models
    answers             answers of queries, with error bars, from the model that servers keep
    client_evaluations  what a run's clients found on records that they hold out
"""
