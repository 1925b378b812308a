"""Messages to values and back.

Modules:

    convert    messages to values of `mpc` and back; chunking
    proved     messages of mode `proved` to values and back
    phases     phases of a round, by which its record has seconds
    spoken     text of other processes, for errors, logs and terminals
    undecoded  calls of which we decode the replies ourselves
"""
