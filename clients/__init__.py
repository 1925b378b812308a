"""The client of PRECAD: trains on its own records and uploads one clipped, secret-shared update per round.

Modules:

    encoding      Algorithm 2, line 8: the update as integers
    submission    Algorithm 2, line 8: what each server receives of them
    upload_limit  how often a client uploads for one model
    record_bins   the key of a client's bins, and the rounds that it was in
    state_lines   files of lines that outlive a process
    holder_limit  the data holder's own limit over all tasks
    payments      what each upload pays from the holder's ledger
    loading       their records, as the configuration says
    process       several clients in a process
    one_process   keeps a client of a task to one process
    same_deal     keeps all client processes of a local run to one deal
    config        what an operator configures
    query_consent the columns that a client answers queries about, and its limit
    app           a user's model, records, loss and metrics as one object
    own_code      where modules and files of the user's own are
    new_file      a new file that is not left behind half written
    extras        libraries that only some installations have
    checks        checks of numeric arguments
    errors        what may go wrong, as one tree
    auditing/     audit clients, whose records are canaries
    attacks/      malicious clients for experiments
    external/     foreign trainers, in processes of their own
    gradients/    gradients of single records, clipped and summed
    models/       the models that clients train, and the flat vector that stands for one
    queries/      queries about a column: the values that a client holds, and its answers
    records/      labelled records, where they come from, and how an experiment spreads them over clients
    training/     Algorithm 2 up to the clipped update
    upload/       one client's session with both servers
"""
