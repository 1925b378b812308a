"""`precad status`, `precad watch` and `precad audit`: servers seen from outside.

Modules:

    operations        `precad status` and `precad watch`
    state_dirs        a server's folder, read on its machine
    log_audit         a server's log, ledger and releases against one another; its ledger as events
    validation_audit  the real two-party check on vectors of your own
    proved_audit      the same of mode `proved`, and a simulation's servers
"""
