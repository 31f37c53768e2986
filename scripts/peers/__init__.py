"""The same training in PyTorch, to be timed beside jaxbed's by `scripts/bench.py`. No part of jaxbed; PyTorch is no requirement."""
