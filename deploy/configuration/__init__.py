"""One TOML file per deployment, validated as a whole.

Modules:

    sections          one TOML file, validated as a whole
    faults            what is wrong with a file, a line a fault, and which key was meant
    auditing          how many canaries audit clients of a local run declare
    apps              a run or a client configured by an app of the user's own
    check             what can be known of a configuration before anything starts
    check_links       whether the servers that are dialled answer, for the check
    check_earlier     what a server's ledger states with earlier tasks, for the check
    check_privacy     what a task proves, for the check
    check_holder      how much room the holders' own ledgers have, for the check
    check_records     the records that a client would train on
    measures          tries what a local run measures, before anything starts
    public_records    the public records that an aggregator measures models on
    demo              the configuration behind `precad demo`
    init              `precad init`: the files that a local run or a deployment begins with
    local             the configuration of a whole deployment on one machine
    local_servers     the same of its servers: free addresses and waits
    model_and_records the same of its task: what follows from its model and records
    client_ids        a task's clients, by number, list or table
    evaluation_clip   C of evaluations by clients, from what these hold out
    initial_model     the public model that a run or a simulation is given to start from
    update_set        bounds of layers and directions of a local run
    trainers          foreign trainers: their flags, and why no figure is about one record
    query             the same of a query, whose task asks instead of training
    earlier_run       what a finished run has spent, for a query after it
"""
