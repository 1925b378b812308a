"""One TOML file per deployment, validated as a whole.

Modules:

    sections       one TOML file, validated as a whole
    apps           a run or a client configured by an app of the user's own
    check          what can be known of a configuration before anything starts
    check_links    whether the servers that are dialled answer, for the check
    check_privacy  what a task proves, for the check
    check_holder   how much room the holders' own ledgers have, for the check
    check_records  the records that a client would train on
    measures       what a local run measures, tried before anything starts
    public_records the public records that an aggregator measures models on
    demo           the configuration behind `precad demo`
    init           `precad init`: the files that a local run or a deployment begins with
    local          the configuration of a whole deployment on one machine
    trainers       foreign trainers: their flags, and why no figure is about one record
    query          the same of a query, whose task asks instead of training
"""
