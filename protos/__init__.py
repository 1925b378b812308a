"""The wire: messages of precad.v1, the values they carry, and the transport that they travel on.

precad/v1/  .proto files and generated stubs (made by `make protos`, checked for freshness by a test)
task        a task's public parameters and their digest
identity    who a certificate says that its holder is
transport   gRPC channels and servers with mutual TLS
convert     messages to values of `mpc` and back; chunking
"""
