"""Algorithm 1: one round from its selection to its commit.

Modules:

    round      Algorithm 1 at one aggregator: the state machine of one round, and the heart of the project
    form       the seam between Algorithm 1 and a mode
    dealt_form  the modes with a dealer: tuples, gates, equality
    dealt_blocks  the correlations that a round of theirs uses up
    proved_form  mode `proved`: clients prove, nobody deals
    trimmed_sum  a test behind the check, and the sum that it decides on
    krum_sum   the updates closest to their neighbours, and the sum of those alone
    sum_function  a CrypTen function of the shared sum, by both operators' consent
    states     what each state of a round knows
    equipment  its links, what computes, and its randomness: handed down from the process to the round
    fixed_times  fixed times of challenges and rounds, in a task that hides draws
    own_noise  noise that this server adds, and its last outputs where it is correlated over rounds
    receiving  clients' bytes of one phase: who has a place, who is awaited, when it is over
    intake     one round's uploads with a dealer: what is accepted, what is refused and why
    proved_intake  uploads and proofs of mode `proved`, likewise
    relayed_uploads  what server A passes on of them, put together at B
    transfers  uploads and downloads under way: who gets a place, and who makes room
    uploads    where uploads lie: in memory while there is room, else in a file
    pages      the room of long uploads in memory, which is kept for the next ones
    memory     what a budget of memory leaves for uploads
    sessions   the clients that are registered and connected
"""
