"""The operations port of a server: what an operator may look at, and nothing that changes anything.

Modules:

    metrics   the counters and the status, for Prometheus
    access    who may look: a token, sessions of browsers, a limit on failed attempts
    doorway   connections of an HTTP server: so many, handshakes included, and none that says nothing
    opening   open the port, where a server has one
    port      the operations port and how it listens: HTTP on an address of its own, for people and programs
    snapshot  the status of an aggregator and of a dealer, made from what they hold at this moment
"""
