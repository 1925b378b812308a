"""Privacy accountants: the cost of a training, and how it is computed.

Modules:

    pld                  what a round costs a record, for each adversary; the labels every figure carries
    earlier_rounds       rounds of finished tasks, as a later task counts them
    composed             rounds of several tasks together
    side_by_side         all accountants side by side
    calibration          smallest noise, or most rounds, for a target epsilon
    gaussian             what a Gaussian release costs, without sampling
    gaussian_dp          (epsilon, delta) of telling N(0, 1) from N(mu, 1)
    masses               masses of sums on a grid, with a bound on what rounding to float64 moves
    privacy_loss         privacy losses on a grid, rounded so that they are only ever overstated
    one_round            one round's loss on a grid that memory holds
    self_composed        one round with itself, as dp-accounting composes it
    group_mixture        exact privacy of K sampled units
    balls_in_bins        epochs that put each record into exactly one participation of its client
    bins_event           a round of a client whose records are in bins, as ledgers hold it
    group_privacy        privacy of k units from one (epsilon, delta) point
    precad_client        the noise that one client's update sees
    levels               users and instances of other trainings
    renyi                Renyi divergences of the basic mechanisms
    renyi_filter         a limit on rounds that are chosen one after the other
    renyi_accounting     from Renyi to (epsilon, delta): one order, and the best of many
    dp_events            a client's rounds as an event of dp-accounting
    ptr_event            a round of propose-test-release
    ptr_privacy          what propose-test-release costs, by Renyi divergences
    ptr_loss             the same by loss distributions, for many rounds
    slack                what a protocol that can be simulated only nearly takes from delta
    task_cost            what a task costs by its rounds, against who watches and against who may discard draws
"""
