"""Modules of other libraries, made to fit this one's models."""
