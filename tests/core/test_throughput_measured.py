"""The law of step times against measurements of real models, part of which is held out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.throughput_model.measurements import data_folder, pollux
from benchmarks.throughput_model.run import errors, splits
from swell.core.types import StepSummary

FOLDER = data_folder()
pytestmark = pytest.mark.skipif(
    FOLDER is None or not (FOLDER / "traces" / "pollux_osdi21.tar.gz").exists(),
    reason="SWELL_DATA does not name a folder with traces/pollux_osdi21.tar.gz, the measurements of Pollux (OSDI 2021)",
)


@pytest.fixture(scope="module")
def measured() -> dict[str, list[StepSummary]]:
    assert FOLDER is not None
    return pollux(FOLDER)


@pytest.mark.parametrize("protocol", ["a quarter", "16 points"])
@pytest.mark.parametrize("model", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_configurations_that_were_held_out_are_predicted_within_ten_percent(measured, model, protocol):
    found = [errors(*split) for split in splits(measured[f"pollux/{model}"], protocol)]
    assert np.mean([one["median"] for one in found]) < 0.10
    assert np.mean([one["within_two_errors"] for one in found]) > 0.75
