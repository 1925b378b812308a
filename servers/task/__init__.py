"""One task from the servers' meeting to its end.

Modules:

    run       the task in it: meeting, registration, rounds, end; again after every loss
    meeting   both servers meet, at first and after every loss, and bring one another to the same standing
    patience  how long a server waits for another one that is away
    drain     how a server leaves when it is asked to
"""
