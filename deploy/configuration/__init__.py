"""One TOML file per deployment, validated as a whole.

sections       one TOML file, validated as a whole
check          what can be known of it before anything starts
check_records  of a client: the records that it would train on
demo           the configuration behind `precad demo`
local          a whole deployment's, from what its user says
"""
