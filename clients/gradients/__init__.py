"""Gradients of single records, clipped and summed.

Modules:

    engine           Algorithm 2, lines 2 to 5: clipped gradients of many clients' records in one pass
    record_paths     the ways to the gradients of single records
    record_range     refuses labels and tokens that the model has no place for
    first_gradients  refuses records of which none has a finite gradient
    one_pass         the fastest for all parameters, and where it keeps what layers read and wrote
    narrow_pass      the fastest for adapters: without what outputs do not read
    narrowing        what that is, call by call
    calls            a model's pass as calls of PyTorch's functions
    probe            which way a model takes, and which models are refused
    layers           what a record's gradient is, layer by layer
    sequences        that of short sequences at an adapter, by its norm alone
    segments         sums over the records of each client within a batch
    record_clipping  what a record adds to its client's sum
    tiles            how the records of many clients are dealt to passes
    pass_lengths     how long passes of adapters are
    bit_exactness    whether a record's gradient depends on its place and its neighbours
    model_stack      several clients' local steps at once
    stacked_layers   layers with parameters for each of them
"""
