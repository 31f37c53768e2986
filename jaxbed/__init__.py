"""jaxbed: train debiasing methods with many seeds at once, and say what is really better."""

__version__ = "0.1.0"
