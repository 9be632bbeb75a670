"""Does RoPE make softmax and linear attention converge faster, and where should it be applied?

python -m experiments run convergence
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
