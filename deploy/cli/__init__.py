"""The command `precad`, a module for each kind of command.

Modules:

    main             the command `precad`
    account          `precad account`: what a training costs
    audit            `precad audit`: the protocol under attack
    certify          `precad certify`: its flags, and what each of them stands for
    common           What the commands share
    declared         Make a command of a declaration
    enrolment        `precad pki token`, `precad pki serve` and `precad enrol`: certificates by one-time token
    export           `precad export` and `precad verify-export`: a trained model for others, and what it may be
                     believed to be
    holder           `precad holder`: what a data holder's records paid over all tasks and queries, and what they may
                     still pay
    init             `precad init`: a commented start for a training on this machine, or for a deployment
    joined_commands  The command line's own commands, and beside them those that join by entry points
    local            `precad demo` and `run`: a whole training on this machine
    operations       `precad status` and `precad watch`: a running or finished task, from outside
    panels           The commands by what they are for
    pki              `precad pki`: a private authority
    process_logs     The log of a server or a client process
    provisioning     `precad provision` and `precad join`: start-up kits
    query            `precad query`: one number, or a few, about a column over all clients
    report           `precad report`: runs as a page and as figures
    roles            `precad serve` and `precad client`: one role of a deployment
    setup            `precad check`, `precad initial-model`, `precad adapter`: before a deployment starts
    shown            Show the report of `precad account` or `precad certify`
    standard_output  Standard output that cannot be written
    track            `precad track`: a task's rounds in TensorBoard, MLflow, Weights & Biases, or as spans
"""
