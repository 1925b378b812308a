"""The client of PRECAD: trains on its own records and uploads one clipped, secret-shared update per round.

In reading order:

    local_update     Algorithm 2 up to the clipped update
    per_record       its lines 2 to 5: clipped gradients of many clients' records in one pass
    record_paths     three ways to the gradients of single records
    record_range     refuses labels and tokens that the model has no place for
    one_pass         the fastest, and where it keeps what layers read and wrote
    model_probe      which of them a model takes, and which models are refused
    layer_gradients  what a record's gradient is, layer by layer
    record_clipping  what a record adds to its client's sum
    tiles            how the records of many clients are dealt to passes of one shape
    bit_exactness    whether a record's gradient depends on its place and its neighbours
    conduct          where a client may deviate, and the honest one; attacks are the other conducts
    projection       the ball that an update must be in
    encoding         line 8: the update as integers
    submission       line 8: what each server receives of them
    round_update     what a client computes by the task's algorithm, PRECAD or another
    descent          several local steps
    model_stack      several clients' local steps at once
    stacked_layers   layers with parameters for each of them
    models           what is trained, and the flat vector that stands for it
    datasets/        records and how clients share them
    session          one client's side of a task
    upload_limit     how often it uploads for one model
    process          several clients in a process
    links            connections to both servers
    patience         when to ask a server again
    config           what an operator configures
    evaluation       accuracy and confidence on records that nobody trains on
    attacks/, aggregation/, simulation/   experiments
    extension        a user's own class by import path
    errors           what may go wrong, as one tree
"""
