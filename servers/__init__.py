"""The servers: two aggregators from one program, and the dealer.

In reading order:

    round         Algorithm 1 at one aggregator: the state machine of one round, and the heart of the project
    states        what each state of a round knows
    equipment     its links, and what computes: handed down from the process to the round
    intake        one round's uploads: what is accepted, what is refused and why
    spool         where uploads lie: in memory while there is room, else in a file
    memory        what a budget of memory leaves for uploads
    sessions      the clients that are registered and connected
    peer          the link between A and B: hello, relays, goodbye
    lane          the connection beside it on which MPC's steps go back and forth
    lane_opening, lane_listener, waiting_room   how it opens, at A and at B, where strangers connect as well
    step_limits   how long a step may take, and how much of it a peer may send
    tuple_source  the link from an aggregator to the dealer
    aggregator    the process: what it holds open, and what it tells clients and operators
    task_run      the task in it: meeting, registration, rounds, end; again after every loss
    meeting       both servers meet, at first and after every loss, and bring one another to the same standing
    resumption    what that standing is
    supervision   work that goes on only as long as its guards do
    drain         how a server leaves when it is asked to
    servicers     gRPC in, values out: the services for clients and for the other aggregator
    control       the one for the operator
    admission     what a server takes on at once, and from whom
    connections   how many of each caller
    transfers     uploads and downloads under way: who gets a place, and who makes room
    calls         what every service does with a call that goes wrong
    credentials   what an aggregator shows and trusts, renewed while it runs
    revocation    clients' certificates that are no longer worth anything
    dealer        the dealer's process

What is on disk:

    task_state    everything durable of one task at one aggregator
    task_store    who it is, how far it came, which round numbers are used up
    round_record  a committed round as operators get it: a message, a line of rounds.jsonl
    audit_log     what it did, in a chain
    checkpoints   the last models, and the noisy sums that made them
    tuple_ledger  which tuples are used up, on disk before they are
    deal_ledger   which parts of which batches have left the dealer
    state_dir     the folder of it all
    rehearsal     what opening it would refuse, on a copy
    private_files files and folders that are the server's user's alone
    database      the one door to durable tables, with a versioned schema
    sqlite_file   behind it, a file
    postgres      behind it, PostgreSQL: a lock and an epoch per leader
    dialects      words in which the two differ
    replicas      several processes of one server take turns
    database_copy what PostgreSQL holds, as files for auditors

For operators:

    config        what one configures
    operations/   the operations port: status, metrics, health, the dashboard
    errors        everything that can go wrong, and the one table of status codes
"""
