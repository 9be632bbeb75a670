"""The study, whose words the study of translation has too."""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
