"""What ties the parts together: configuration, certificates, the command line, and the runner for one machine.

cli         the command `precad`
config      one TOML file per deployment, validated as a whole
pki         a private authority and role certificates
localhost   dealer, aggregators and clients as processes of this machine
watch       what the runner shows while they work
run_folder  what a run leaves behind
demo        the configuration behind `precad demo`
audit       the real two-party check on vectors of your own
exit_codes  how a process says what ended it
lock        makes the lock files
"""
