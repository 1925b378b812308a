"""Ledgers: what was spent, on disk before anything is released.

Contents:

    ledger       of one server: which clients took part in which round
    lines        the lines of a ledger's file
    sealed_file  a file of sealed lines, to which one process adds durably
    events       what a ledger holds, as events of dp-accounting
    earlier      ledgers of finished tasks, whose spending a later task counts
    spending     what one client has answered, with a limit of its own
    holder       what a data holder's records paid over all tasks, with a limit
"""
