"""The examples of single tasks save samples, and learn more than a guess that needs no training."""

import re

import numpy as np
import pytest
from PIL import Image
from test_examples import run


def read_rows(said):
    """Return the share saved and the result of each row; of a guess, the result alone."""
    rows = re.findall(r"^(.+?) {2,}(?:([\d.]+)% of the samples saved, )?(?:\D*?) ?([\d.]+)", said, re.MULTILINE)
    return {name: (float(saved or 0), float(result)) for name, saved, result in rows}


def check_savings(rows):
    assert rows["full data"][0] == 0
    assert 10 < rows["InfoBatch"][0] < 45  # at most half of the samples below the mean, in six of eight epochs
    if "sieve" in rows:
        assert 20 < rows["sieve"][0] < 40  # it keeps 70 % of each batch


@pytest.mark.slow
def test_segmentation(tmp_path):
    rows = read_rows(run("segmentation.py", tmp_path, "--samples", "300", "--epochs", "8", "--sieve"))
    check_savings(rows)
    assert min(iou for _, iou in rows.values()) > 0.8  # nothing but background has 0.27


@pytest.mark.slow
def test_segmentation_of_files(tmp_path):
    """Images whose classes are their colors, one of which is ignored, with masks of another size."""
    generator = np.random.default_rng(0)
    colors = np.array([[0, 0, 0], [250, 0, 0], [0, 0, 250]], dtype=np.uint8)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(40):
        mask = generator.integers(3, size=(8, 8)).repeat(8, axis=0).repeat(8, axis=1)
        Image.fromarray(colors[mask]).save(tmp_path / "images" / f"{number:02}.jpg", quality=95)
        mask[:8] = 255
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "masks" / f"{number:02}.png")
    rows = read_rows(run("segmentation.py", tmp_path, "--data", str(tmp_path), "--epochs", "24"))
    assert min(iou for _, iou in rows.values()) > 0.5


@pytest.mark.slow
def test_mae(tmp_path):
    rows = read_rows(run("mae.py", tmp_path, "--epochs", "8"))
    check_savings(rows)
    assert max(rows["full data"][1], rows["InfoBatch"][1]) < 0.95 * rows["mean image"][1]


@pytest.mark.slow
def test_mae_of_files(tmp_path):
    generator, folder = np.random.default_rng(0), tmp_path / "some" / "where"
    folder.mkdir(parents=True)
    for number in range(20):
        pixels = generator.integers(256, size=(4, 4, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    rows = read_rows(run("mae.py", tmp_path, "--data", str(tmp_path), "--epochs", "8"))
    assert set(rows) == {"mean image", "full data", "InfoBatch"}
    assert all(0 < error < 5 for _, error in rows.values())


@pytest.mark.slow
def test_diffusion_of_pixels(tmp_path):
    pytest.importorskip("diffusers")
    rows = read_rows(run("diffusion.py", tmp_path, "--epochs", "8", "--sieve"))
    check_savings(rows)
    assert max(error for _, error in rows.values()) < 0.15  # what the variance of each pixel alone tells


@pytest.mark.slow
def test_diffusion_of_latents(tmp_path):
    pytest.importorskip("diffusers")
    rows = read_rows(run("diffusion.py", tmp_path, "--latent", "--epochs", "8"))
    check_savings(rows)
    assert max(error for _, error in rows.values()) < 0.3


@pytest.mark.slow
def test_mixing(tmp_path):
    rows = read_rows(run("mixing.py", tmp_path, "--epochs", "8"))
    check_savings(rows)
    assert min(right for _, right in rows.values()) > 85  # a guess is right in 10 %


@pytest.mark.slow
def test_detection(tmp_path):
    rows = read_rows(run("detection.py", tmp_path, "--samples", "400", "--epochs", "12"))
    check_savings(rows)
    assert min(found for _, found in rows.values()) > 35  # a box of mean size in the middle finds 8 %, with its class


@pytest.mark.slow
def test_retrieval(tmp_path):
    rows = read_rows(run("retrieval.py", tmp_path, "--epochs", "8"))
    check_savings(rows)
    assert min(rows["full data"][1], rows["InfoBatch"][1]) > 10 * rows["by chance"][1]


@pytest.mark.slow
def test_vae(tmp_path):
    rows = read_rows(run("vae.py", tmp_path, "--epochs", "8"))
    check_savings(rows)
    assert rows["full data"][1] < rows["mean image"][1] - 0.5
    assert rows["InfoBatch"][1] < rows["mean image"][1] - 0.5
