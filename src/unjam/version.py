"""The version of this package, which reports and logs name."""

__version__ = "0.1.0"
