"""Differential privacy of a PRECAD round: noise, accounting and the record of what was spent.

    rounded_gaussian   exact round(std * Z) on the grid, the noise one server adds
    accounting         what a round costs a record, for each adversary
    ledger             one server's durable record of the rounds each client took part in
    errors             what may go wrong, as one tree
    checks             the argument checks the modules share

The package knows nothing of shares, rings or messages. Logarithms are natural and epsilon is in nats. A noise
multiplier is a standard deviation divided by the l2 sensitivity of what is released; a standard deviation by
itself is called `std`. Two inputs are neighbours when one has one record more than the other.
"""
