"""The operations port of a server: what an operator may look at, and nothing that changes anything.

In reading order:

    status      the snapshot that the dashboard, `/status.json` and `precad status` show
    telemetry   what happens, as the server reports it: counters, and the times and reasons that records do not hold
    metrics     both, for Prometheus
    access      who may look: a token, sessions of browsers, a limit on failed attempts
    http        the port: health, metrics, status, events, the dashboard and its checkpoints
    health      gRPC's health protocol, on the server's main port
    logs        every log line says which server, task and round it is about
    dashboard/  the page: HTML, CSS and JavaScript, without anything from elsewhere
"""
