"""What `scripts/torture.py` does to jaxbed."""
