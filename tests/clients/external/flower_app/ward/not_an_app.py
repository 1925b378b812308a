"""ward: a module without a ClientApp."""

app = "no ClientApp"
