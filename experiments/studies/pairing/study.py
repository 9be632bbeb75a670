"""Does it help to use each random feature as both members of the pair that RoPE rotates?

python -m experiments run pairing
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
