"""Everything durable of one task at one server.

Modules:

    standing      how far both servers are, and how they go on together
    state         everything durable of one task at one aggregator
    rounds        who it is, how far it came, which round numbers are used up
    record        a committed round as operators get it: a message, a line of rounds.jsonl
    audit_log     what it did, in a chain
    checkpoints   the last models, and the noisy sums that made them
    canary_noise  own noise where an audit reads it
    burnt_tuples  which tuples are used up, on disk before they are
    dealt_parts   which parts of which batches have left the dealer
    folder        the folder of it all
    counted       a mark beside a ledger that a later task counts
    rehearsal     what opening it would refuse, on a copy
    copy          what PostgreSQL holds, as files for auditors
"""
