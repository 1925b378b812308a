"""The wire: messages of precad.v1, the values they carry, and the transport that they travel on.

precad/v1/  .proto files and generated stubs (made by `make protos`, checked for freshness by a test)
task        a task's public parameters and their digest
task_fields what two tasks differ in, for people
carried_fields  what a hello has for that
model_update what an opened sum does to the model
quantile    a bound of updates that is learnt with noise
identity    who a certificate says that its holder is
tls_files   the files of TLS: what a process shows and whom it trusts
private_key keys in PEM, in the clear or encrypted
last_good   files that may be replaced while a process runs
config_path paths in a configuration file
transport   gRPC channels and servers with mutual TLS
convert     messages to values of `mpc` and back; chunking
undecoded   calls of which we decode the replies ourselves
"""
