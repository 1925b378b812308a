"""Telemetry of a server: events, status, log lines.

Modules:

    events  the one owner of what a server says of itself: state, task, round, records and end; and counters
    status  the snapshot of it that the dashboard, `/status.json` and `precad status` show
    model_figures  the figures of committed models in a server's folder
    evaluations  figures of evaluations by the clients, beside the rounds whose models they are of
    quality  how good committed models are on public records, measured by a program beside the server
    audit_figures  the audit of the task, which an operator's command leaves beside the server's state
    logs    every log line says which server, task and round it is about
"""
