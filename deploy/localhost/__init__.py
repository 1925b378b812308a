"""A whole deployment on one machine, as processes.

Modules:

    deployment   dealer, aggregators and clients as processes
    needs        what this machine must have, before anything is written
    grouping     which clients share a process
    observing    what both aggregators report of a task
    guarding     who has ended, and whether a run can go on without them
    processes    processes that cannot outlive their parent
    forks        processes that are forked: the runner's side
    fork_server  the process that loads every role's code once and forks the others
    whole        from a configuration to the summary, below a running event loop too
    several      several trainings of one configuration, one after the other
    resuming     what a run that ended early needs and knows, for the processes that continue it
    dashboards   dashboards of the servers, and links that open each once
    watch        what the runner shows while the processes work
    summary      the summary of a run, for people
    query        a query, and its answer with error bars
"""
