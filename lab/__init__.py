"""The laboratory: it measures, simulates and repeats papers. It may import everything.

Contents:

    auditing/    `precad audit privacy`: what an attack on the running system shows, beside each epsilon
    bench/       `precad bench`: what the protocol costs, beside what a user would otherwise pick, measured in
                 one run
    commands/    the laboratory's commands
    papers/      the papers' reports, repeated: a module for each experiment, and what several of them share
    simulation/  federated training in one process, for research: PRECAD's rounds, and what they are compared
                 with
"""
