"""The servers: two aggregators from one program, and the dealer.

In reading order:

    round         Algorithm 1 at one aggregator: the state machine of one round, and the heart of the project
    states        what each state of a round knows
    intake        one round's uploads: what is accepted, what is refused and why
    spool         where uploads lie: in memory while there is room, else in a file
    memory        what a budget of memory leaves for uploads
    sessions      the clients that are registered and connected
    peer          the link between A and B, and the channel that MPC runs on
    tuple_source  the link from an aggregator to the dealer
    tuple_ledger  which tuples are used up, on disk before they are
    database      the one door to durable tables, with a versioned schema
    sqlite_file   behind it, a file
    postgres      behind it, PostgreSQL: a lock and an epoch per leader
    dialects      words in which the two differ
    replicas      several processes of one server take turns
    database_copy what PostgreSQL holds, as files for auditors
    private_files files and folders that are the server's user's alone
    aggregator    the process: start, hello, registration, rounds, end
    servicers     gRPC in, values out: the client-facing, peer and control services
    dealer        the dealer's process
    deal_ledger   which parts of which batches have left the dealer
    drain         how a server leaves when it is asked to
    operations/   the operations port: status, metrics, health, the dashboard
    config        what an operator configures
    errors        everything that can go wrong, and the one table of status codes
"""
