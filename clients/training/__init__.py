"""Algorithm 2 up to the clipped update.

Modules:

    local_update  Algorithm 2 up to the clipped update
    record_draws  which records a round has: drawn anew, or in bins
    conduct       where a client may deviate, and the honest one; attacks are the other conducts
    projection    the ball that an update must be in
    convex_projection  a smaller convex set, of bounds of layers and half-spaces
    round_update  what a client computes by the task's algorithm, PRECAD or another
    descent       several local steps
    distances     distances between updates in the clear
    evaluation    accuracy and confidence on records that nobody trains on
    held_out      a client's answer to an evaluation: what the model does with records that it holds out
"""
