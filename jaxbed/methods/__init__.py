"""One module a method: equations, configuration, and what differs from the published code."""
