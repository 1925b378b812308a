"""One client's session with both servers.

Modules:

    session      one client's side of a task
    proved       a round of mode `proved`: one upload, and one proof
    sending      one upload or proof to one server
    links        connections to both servers
    model_cache  the last global model, for all clients of a process
    patience     when to ask a server again
    events       events that a client has not looked at yet, of each server no more than so many
"""
