"""`precad status`, `precad watch` and `precad audit`: servers seen from outside.

Modules:

    status_sources    `precad status` and `precad watch`, from operations ports
    run_status        the same of a run on this machine, from its folder
    status_shown      statuses for people
    state_dirs        a server's folder, read on its machine
    log_audit         a server's log, ledger and releases against one another; its ledger as events
    validation_audit  the real two-party check on vectors of your own
    proved_audit      the same of mode `proved`, and a simulation's servers
"""
