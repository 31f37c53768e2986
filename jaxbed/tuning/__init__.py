"""Tuning: grids of settings, and runs that are launched."""
