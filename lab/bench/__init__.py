"""`precad bench`: what the protocol costs, beside what a user would otherwise pick, measured in one run.

Contents:

    statistics        medians with quartiles, and the slope of a log-log fit
    machine           what the numbers were measured on
    workload          a batch of updates, one of them too long, and everything that exists before the clock
                      starts
    checks            what is timed: the sound check, the unsound one, and the physical floor
    unsound           the pass of the unsound one
    measured          what a server process measures, and the channel that counts
    proved            mode `proved`: a batch with its proofs, and its check
    proved_client     mode `proved`: an upload at its client
    proved_targets    mode `proved`: what it was to reach
    server            one of two server processes
    server_pair       both server processes, over loopback gRPC with TLS, and what they measured
    peer_runs         how peers are started, and what they measured
    validation        the check, beside its peers
    robust            robust sums on shares, beside the check
    canonne           the baseline of the noise
    noise             the sampler, beside its peers
    scale             time, memory and bytes as the model and the round grow
    startup           how long people wait before something happens
    threads           the check's local step on several cores
    plain_training    a whole round, beside the same training without PRECAD
    plain_federation  a whole round, beside the same training without PRECAD
    bare_servers      a whole round of mode `proved`, at servers that compute nothing
    overhead          a whole round, beside the same training without PRECAD
    dense             the model of any size that they train
    processor_time    what the processes of a deployment spend in a round
    measured_run      a whole deployment, what it spends, and a delay between its servers
    turns             two of them, a few rounds of one by turns with a few of the other
    delaying_relay    the delay
    audit_overhead    a whole round of an audited task, beside the same without an audit
    audit_figures     what audits show of sound systems, and how often they accuse them
    training          per-record gradients, beside Opacus
    adapters          a round of private adapters, beside Opacus
    local_training    several local steps of many clients
    simulation        simulated rounds, and where their time goes
    tables            what people see
    adapter_tables    what people see
    plots             what people see
    errors            what may go wrong
    peers/            other people's answers to the same question, each a program with an environment of its own
"""
