"""The layout of a survey is read as it was written. A file with another layout is one line."""

import numpy as np
import pytest

from dltutorial.errors import DataError
from dltutorial.science import survey
from dltutorial.science.arrays import write_arrays

IMAGES = np.random.default_rng(0).standard_normal((6, 1, 16, 16), np.float32)
LABELS = np.arange(6) % 2


def test_images_and_labels_are_read_as_they_were_written(tmp_path):
    write_arrays(tmp_path / "train.h5", {"images": IMAGES, "labels": LABELS})
    images, labels = survey.read(tmp_path / "train.h5")
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": IMAGES * np.nan, "labels": LABELS}, "row 0 of images holds NaN"),
        ({"images": IMAGES}, "has no array 'labels'"),
        ({"images": IMAGES[:, 0], "labels": LABELS}, r"images has the shape \(6, 16, 16\), not"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, content, message):
    write_arrays(tmp_path / "train.h5", content)
    with pytest.raises(DataError, match=message) as refused:
        survey.read(tmp_path / "train.h5")
    assert "\n" not in str(refused.value)
