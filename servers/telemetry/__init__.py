"""Telemetry of a server: events, status, log lines.

Modules:

    status  the snapshot that the dashboard, `/status.json` and `precad status` show
    events  what happens, as the server reports it: counters, and the times and reasons that records do not hold
    logs    every log line says which server, task and round it is about
"""
