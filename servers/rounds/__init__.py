"""Algorithm 1: one round from its selection to its commit.

Modules:

    round      Algorithm 1 at one aggregator: the state machine of one round, and the heart of the project
    states     what each state of a round knows
    equipment  its links, what computes, and its randomness: handed down from the process to the round
    intake     one round's uploads: what is accepted, what is refused and why
    relayed    what server A passes on of them, put together at B
    transfers  uploads and downloads under way: who gets a place, and who makes room
    uploads    where uploads lie: in memory while there is room, else in a file
    memory     what a budget of memory leaves for uploads
    sessions   the clients that are registered and connected
"""
