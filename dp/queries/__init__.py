"""Queries of a column: records as vectors of norm at most one, and estimates with error bars from their noisy sum.

Modules:

    kinds        kinds of queries, without NumPy
    encodings    the vector of a record, by the kind of query
    estimates    estimates and error bars, from the sum that both servers open
    evaluations  vectors of held-out records, and a model's figures from their noisy sum
"""
