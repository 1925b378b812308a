"""ward: a client function whose clients train, and evaluate nothing."""

from flwr.client import ClientApp, NumPyClient

from ward.client_fn_app import WardClient
from ward.task import load_data


class FitOnly(NumPyClient):
    """Train on local data."""

    __init__, fit = WardClient.__init__, WardClient.fit


def client_fn(context):
    """Make a client of one partition."""
    data = load_data(context.run_config["data.folder"], context.node_config["partition-id"])
    return FitOnly(*data, context).to_client()


app = ClientApp(client_fn=client_fn)
