"""One client's session with both servers.

session   one client's side of a task
links     connections to both servers
patience  when to ask a server again
"""
