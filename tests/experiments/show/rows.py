"""Rows of made-up comparisons."""

from experiments.report.evidence import read_evidence


def rows_of(root, study):
    return read_evidence(root, study).shown
