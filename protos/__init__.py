"""The wire: messages of precad.v1, the values they carry, and the transport that they travel on.

Modules:

    config_path  paths in a configuration file
    file_names   names that files can have
    messages/    messages to values and back
    precad/      the .proto files, and the code generated from them
    task/        a task's public parameters, and the one step that an opened sum takes
    tls/         mutual TLS: who is at the other end, and with which files
"""
