"""Mutual TLS: who is at the other end, and with which files.

Modules:

    address      HOST:PORT, and whether it is free to listen on
    identity     who a certificate says that its holder is
    files        the files of TLS: what a process shows and whom it trusts
    private_key  keys in PEM, in the clear or encrypted
    renewable    files that may be replaced while a process runs
    grpc_server  gRPC's server on asyncio, which no name of a method ends
    key_exchange whether a connection's keys are out of reach of who records it and breaks X25519 later
    transport    gRPC channels and servers with mutual TLS
    validity     dates of our own certificate while a process runs
"""
