"""The comparison experiments: ``python -m experiments list`` names them."""
