"""How good are random features as an estimate of the softmax kernel, at which scale of inputs, and which of them?

python -m experiments run features
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
