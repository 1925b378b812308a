"""Differential privacy of a PRECAD round: noise, accounting and the record of what was spent.

    task_privacy   what a round of a deployment's task is, by its algorithm
    conditions     against whom its figures are, what they rest on, and when that must be said
    ptr_side_by_side
                   propose-test-release by every formula: proved bounds beside those that its paper prints
    errors         what may go wrong, as one tree
    checks         the argument checks the modules share
    accountants/   privacy accountants: the cost of a training, and how it is computed
    auditing/      what the scores of canaries prove against an epsilon that is printed
    certificates/  certificates that predictions and losses withstand attacks by clients
    ledgers/       what was spent, on disk before anything is released
    noise/         exact noise on the integers
    queries/       queries of a column: records as vectors, and estimates with error bars
    published/     formulas as printed in the papers, for comparison alone
    trimmed/       trimmed sums, and propose-test-release on them

The package knows nothing of shares, rings or messages. Logarithms are natural and epsilon is in nats. A noise
multiplier is a standard deviation divided by the l2 sensitivity of what is released; a standard deviation by
itself is called `std`. Two inputs are neighbours when one has one record more than the other. Every figure is a bound,
an approximation or a published reproduction, and only a bound is a guarantee: see `precad.dp.accountants.pld.Label`.
"""
