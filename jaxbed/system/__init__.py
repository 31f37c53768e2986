"""Files, memory, caches, and how a process ends. Nothing here knows JAX."""
