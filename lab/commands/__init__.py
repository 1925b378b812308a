"""The laboratory's commands.

Modules:

    audit            `precad audit privacy`: what an attack on the running system shows
    bench            `precad bench`: it is measured, beside what one would otherwise pick
    experiment_runs  Make the commands of `precad experiment`
    experiments      `precad experiment`: what the papers report, repeated
    measuring        Show, write and draw the report of a benchmark
    simulate         `precad simulate`: a whole training in this process
    xie_experiments  `precad experiment` of Xie et al.'s paper: its tables and figures, repeated
"""
