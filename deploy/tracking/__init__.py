"""`precad track`: rounds as an operator sees them, in trackers and as spans. No server imports any of it.

Modules:

    destinations  what `--to` names
    follow        from a status that changes to sinks, until the task ends
    earlier       rounds that a server's status no longer has
    points        a round as numbers by name, and what each name stands for
    scalars       the sink of trackers: each number once
    tensorboard, mlflow, weights_and_biases
                  the trackers, each with its own library, which is imported when it is opened
    spans         the sink of traces: a span for a round, one below it for each phase, by OTLP over HTTP
    journal       what was written, for sinks that cannot be asked

No name of a client is in any of it.
"""
