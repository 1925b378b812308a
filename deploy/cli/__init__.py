"""The command `precad`, a module for each kind of command.

main             the command `precad`
audit            `precad audit`: the protocol under attack
common           What the commands share
enrolment        `precad pki token`, `precad pki serve` and `precad enrol`: certificates by one-time token
export           `precad export` and `precad verify-export`: a trained model for others, and what it may be
                 believed to be
guarantees       `precad account` and `precad certify`: what a training proves
joined_commands  The command line's own commands, and beside them those that join by entry points
local            `precad demo` and `run`: a whole training on this machine
operations       `precad status` and `precad watch`: a running or finished task, from outside
pki              `precad pki`: a private authority
report           `precad report`: runs as a page and as figures
roles            `precad serve` and `precad client`: one role of a deployment
setup            `precad check` and `precad initial-model`: before a deployment starts
standard_output  Standard output that cannot be written
"""
