"""Queries about a column: the values that a client holds, and its answers within its own limit.

Modules:

    columns   the values of one column, from the client's own records or a data set
    answers   one client's answer to a query: charged to its own limit, encoded, within C
"""
