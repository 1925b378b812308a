"""The laboratory's commands.

bench            `precad bench`: it is measured, beside what one would otherwise pick
experiment_runs  Share what the commands of `precad experiment` have in common
experiments      `precad experiment`: what the papers report, repeated
simulate         `precad simulate`: a whole training in this process
xie_experiments  `precad experiment` of Xie et al.'s paper: its tables and figures, repeated
"""
