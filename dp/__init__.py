"""Differential privacy of a PRECAD round: noise, accounting and the record of what was spent.

    rounded_gaussian   exact round(std * Z) on the grid, the noise one server adds
    accounting         what a round costs a record, for each adversary; the labels every figure carries
    task_privacy       what a round of a deployment's task is, by its algorithm
    accountants        all accountants side by side
    calibration        smallest noise, or most rounds, for a target epsilon
    gaussian_dp        (epsilon, delta) of telling N(0, 1) from N(mu, 1)
    loss_distribution  privacy losses on a grid, rounded so that they are only ever overstated
    group_mixture      exact privacy of K sampled units
    group_privacy      privacy of k units from one (epsilon, delta) point
    precad_record      PRECAD's Theorem 1, beside what is true of it
    precad_client      the noise that one client's update sees
    loss_bounds        what an attack can do to an expected loss; PRECAD's Theorem 2
    certified_prediction   attackers that a prediction survives
    attack_inefficacy  attackers and the cost of an attack
    attack_simulation  the worst attack on a prediction, against which certificates are held
    monte_carlo        estimates from independent trainings, with their confidence
    levels             users and instances of other trainings
    planner            which noise reaches a wish
    fixed_point_sensitivity   what rounding does to sensitivities
    renyi              Renyi divergences of the basic mechanisms
    renyi_amplification   sampling of mechanisms known by their divergence alone
    renyi_conversion   from Renyi to (epsilon, delta)
    renyi_accounting   the best of many orders
    propose_test_release   little noise if that is safe
    ptr_privacy        what propose-test-release costs
    ptr_loss           the same by loss distributions, for many rounds
    trimmed_aggregation   trimmed sums as the aggregation rules of a training
    trimmed_sum        a sum without its longest vectors
    rounded_laplace    exact round(scale * Lap(1)) on the integers
    task_cost          what a task costs by its rounds, against who watches and against who may discard draws
    ledger             one server's durable record of the rounds each client took part in
    ledger_lines       the lines of its file
    errors             what may go wrong, as one tree
    checks             the argument checks the modules share

The package knows nothing of shares, rings or messages. Logarithms are natural and epsilon is in nats. A noise
multiplier is a standard deviation divided by the l2 sensitivity of what is released; a standard deviation by
itself is called `std`. Two inputs are neighbours when one has one record more than the other. Every figure is a bound,
an approximation or a published reproduction, and only a bound is a guarantee: see `accounting.Label`.
"""
