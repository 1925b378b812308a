"""Tie the parts together: configuration, certificates, the command line, and the runner for one machine.

Contents:

    joined          finds what joins by entry points
    errors          how a process says what ended it
    given_paths     refuses a path that the system takes for no file
    conducts        the conduct of each client: the protocol, or an experiment's attack
    authority/      a private certificate authority, and enrolment by one-time token
    cli/            the command `precad`, a module for each kind of command
    configuration/  one TOML file per deployment, validated as a whole
    exporting/      `precad export` and `precad verify-export`: a trained model as files that both servers sign
    files/          files and folders that appear whole or not at all
    guarantees/     `precad account` and `precad certify`: what a training proves
    localhost/      a whole deployment on one machine, as processes
    measuring/      measures committed models on public records, outside of the server's process
    oversight/      `precad status`, `precad watch` and `precad audit`: servers seen from outside
    provisioning/   `precad provision` and `precad join`: start-up kits
    reporting/      `precad report`: what run folders say, as one page that works without a network, and as PNG
                    figures
    run_files/      runs as they lie on disk, and what their files say
    shown/          how figures, tables and durations are written for people
    tracking/       `precad track`: rounds as an operator sees them, in trackers and as spans
"""

import os

# gRPC's core reads it when it is first imported. It writes plain text among the logs' JSON. That is a line for every
# stranger whose handshake fails and, at ERROR, for every call with a header that it cannot read: as many as they like.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
