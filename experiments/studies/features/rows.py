"""What the figures and tables of the study show."""

from pathlib import Path

import pandas as pd

from experiments.studies.features.measure import TRAINED


def derived(root: Path) -> pd.DataFrame:
    """The output's error at the published point, worked out by others of us; the paper prints no numbers."""
    columns = ["scale", "estimator", "value"]
    return pd.DataFrame([(0.5, "positive", 2.7e-5), (0.5, "trigonometric", 1e-5)], columns=columns)


def trained(root: Path) -> pd.DataFrame | None:
    """By variant and seed the geometric mean over layers of both errors, with the scale of the variant's inputs."""
    found = TRAINED.read(root)
    if found is None:
        return None
    scales = found.groupby("variant")["input_scale"].mean()
    errors = {"log10_kernel_error": "kernel", "log10_attention_error": "attention"}
    keys = ["variant", "seed", "estimator", "directions", "num_features"]
    long = found.rename(columns=errors).melt([*keys, "layer"], list(errors.values()), "error", "value")
    means = (10 ** long.groupby([*keys, "error"], sort=False)["value"].mean()).reset_index()
    titles = [f"{name}, scale {scales[name]:.2f}" for name in means["variant"]]
    return means.assign(title=titles, made=means["estimator"] + ", " + means["directions"])
