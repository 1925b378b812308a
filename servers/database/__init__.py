"""Durable tables: one door, with SQLite or PostgreSQL behind it.

Modules:

    tables       the one door to durable tables, with a versioned schema
    sqlite_file  behind it, a file
    postgres     behind it, PostgreSQL: a lock and an epoch per leader
    dialects     words in which the two differ
    replicas     several processes of one server take turns
"""
