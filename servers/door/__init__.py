"""gRPC in, values out: who may come in, and what a call that goes wrong is told.

Modules:

    servicers    gRPC in, values out: the services for clients and for the other aggregator
    operator     those for the operator and for probes: state, rounds, gRPC's health protocol
    admission    what a server takes on at once, and from whom
    connections  how many of each caller
    serving      work that ends with the main port
    calls        what every service does with a call that goes wrong
    revocation   clients' certificates that are no longer worth anything
"""
