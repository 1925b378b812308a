"""The servers: two aggregators from one program, and the dealer.

Modules:

    aggregator     the process: what it holds open, and what it tells clients and operators
    supervision    work that goes on only as long as its guards do
    dealer         the dealer's process
    private_files  files and folders that are the server's user's alone
    sources        what counts as one source of connections: an address, or a network
    freed_memory   what a server frees is overwritten, and kept for what follows
    config         what one configures
    errors         everything that can go wrong, and the one table of status codes
    database/      durable tables: one door, with SQLite or PostgreSQL behind it
    door/          gRPC in, values out: who may come in, and what a call that goes wrong is told
    links/         the connections between servers: of A with B, and of both with the dealer
    operations/    the operations port of a server
    rounds/        Algorithm 1: one round from its selection to its commit
    store/         everything durable of one task at one server
    task/          one task from the servers' meeting to its end
    telemetry/     what a server reports of itself: events, status, log lines
"""
