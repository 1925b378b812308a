"""Foreign trainers, in processes of their own. They are clients of a task whose guarantee is of whole clients.

Modules:

    training    a foreign trainer as a client: its parameters minus the model, within C, as integers
    mixed_training  clients of one process that train in different ways
    trainer     one client's process: what it is given, how long it may take, and what its end costs
    program     which code a trainer is, in which interpreter, and how much it may take
    reasons     why a trainer does not start, or a training failed, in words of ours
    arrays      a model's arrays by name, shape and place
    kept_state  what a trainer leaves for its next process
    frames      what goes through the pipes
    counts      counts of held-out records, in whatever words a foreign evaluation has
    child       the process's program, in an interpreter that need not have precad
    sandbox     what the process is shut off from
    walls       which of it this machine gives, in words
    flower      a Flower ClientApp, called as Flower calls it
    nvflare     a script of NVFLARE's client API, served as NVFLARE serves it
"""
