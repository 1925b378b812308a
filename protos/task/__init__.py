"""A task's public parameters, and the one step that an opened sum takes.

Modules:

    task            a task's public parameters and their digest: what does not fit together is refused
    core_fields     the parameters of PRECAD's algorithms, and of every deployment
    derived         what follows from a task's fields: noise, bounds, counts of rounds
    algorithms      one row per algorithm: whose noise, what is clipped, whom it protects
    refusals        parameters that do not fit together
    parameters      what the conditions of a task read of it
    target          noise that meets a target, in place of noise that is given
    learning        what a task trains: loss, arguments and digest of the model
    proved_fields   what a task of mode `proved` has, and must fulfil
    grid            the fractional bits of a task that asks for the most
    record_fields   what a record is, for clients with records of their own
    bin_fields      records that are each in one round of an epoch
    task_fields     what two tasks differ in, for people
    validation_fields  whether the servers of a task check norms
    carried_fields  what a hello has for that
    server_step     the rate by round, and the servers' optimiser
    model_update    what an opened sum does to the model
    quantile        a bound of updates that is learnt with noise
    convex_fields     what bounds layers of an update beside C
    trim_fields     sums without the longest updates, behind a noisy test
    krum_fields     sums of the updates that are closest to their neighbours
    function_fields a CrypTen function of the shared sum, before noise
    turns           clients that take turns, and noise that is correlated between two turns
    query           a question about a column, in the place of a training
    audit_fields    members that audit the task, whose records are canaries
    evaluation      rounds in which clients evaluate the model, and when they are due
    evaluation_figures  figures and error bars, from the sum that they open
"""
