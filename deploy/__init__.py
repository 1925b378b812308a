"""What ties the parts together: configuration, certificates, the command line, and the runner for one machine.

The command line:

    cli         the command `precad`
    commands/   its commands, a module for each kind; bench, simulate and experiment join by entry points
    joined      finds what joins by entry points
    errors      how a process says what ended it
    figures     how numbers about privacy are written

A deployment:

    config      one TOML file, validated as a whole
    check       what can be known of it before anything starts
    check_records  of a client: the records that it would train on
    conducts    what each client does: the protocol, or an experiment's attack
    pki         a private authority and role certificates
    certificate_forms   what its certificates look like
    enrolment/  certificates by one-time token
    operations  `precad status` and `precad watch`
    audit_log   a server's log, ledger and releases against one another
    audit       the real two-party check on vectors of your own
    exporting/  a model as files, with a statement that both servers sign
    docker/, kubernetes/, systemd/, grafana/, samples/   files for operators

On one machine:

    demo        the configuration behind `precad demo`
    local_configuration   a whole deployment's, from what its user says
    localhost   dealer, aggregators and clients as processes
    processes   that cannot outlive their parent
    watch       what the runner shows while they work
    run_folder  what a run leaves behind
    report      its summary, for people
    spent       its epsilons, each with the adversary
    reporting/  run folders as one page
    whole_file, whole_folder   one that appears with everything in it, or not at all

Guarantees:

    accounting_commands   `precad account`
    certify_flags, certify_commands   `precad certify`
    planning_commands     `precad certify --plan`
    run_evidence          what run folders say for a certificate
    accounting_plots      what `--plot` draws

The laboratory, which nothing of the above imports (tests/test_structure.py has the list):

    simulate    the same task in one process, for many seeds
    simulation_shown   how far they are, and what came out
    workers     trainings side by side
    experiments/   what the papers report, repeated

    lock        makes the lock files
"""

import os

# gRPC's core reads it when it is first imported. Below ERROR it writes plain text among the logs' JSON, a line for
# every stranger whose handshake fails and so as many as a stranger likes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
