"""Softmax attention over a window of keys and FAVOR+ over those before it."""
