"""Fashion-MNIST's files as folders of images, by the command."""

import gzip

import numpy as np
import pytest
from test_data import idx_bytes

from data_prep import idx_images
from jaxbed.data import image_files
from jaxbed.data.image_files import Size

STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def arrays(classes=3):
    """Twelve training and six test images of 7 x 7 px."""
    rng, found = np.random.default_rng(0), []
    for size in (12, 6):
        found += [rng.integers(0, 256, (size, 7, 7), np.uint8), np.arange(size, dtype=np.uint8)[::-1] % classes]
    return found


def written(folder, given, zipped=False):
    folder.mkdir(exist_ok=True)
    for stem, array in zip(STEMS, given, strict=True):
        content = idx_bytes(array)
        (folder / f"{stem}-ubyte{'.gz' * zipped}").write_bytes(gzip.compress(content) if zipped else content)
    return folder


def made(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.png")}


@pytest.mark.parametrize("zipped", [True, False])
def test_every_image_lies_in_the_folder_of_its_class(tmp_path, zipped, capsys):
    given, target = arrays(), tmp_path / "new" / "out"
    assert idx_images.main([str(written(tmp_path / "idx", given, zipped)), str(target)]) == 0
    assert capsys.readouterr().out == f"{target}: train 12, test 6 images\n"
    for name, image, label in (("train", *given[:2]), ("test", *given[2:])):
        opened = image_files.open_location(str(target / name), Size(7, 7, "unchanged"))
        assert opened.classes == ("0", "1", "2") and len(opened.labels) == len(label)
        for number, (pixels, where) in enumerate(zip(opened.images.take(range(len(label)))[0], opened.images.names, strict=True)):
            row = int(str(where).partition("/")[2].removesuffix(".png"))
            assert opened.labels[number] == label[row] and str(where) == f"{label[row]}/{row:05d}.png"
            np.testing.assert_array_equal(pixels, np.repeat(image[row][..., None], 3, -1))


def test_it_resumes_and_takes_no_folder_of_other_images(tmp_path, capsys):
    source, target = written(tmp_path / "idx", arrays()), tmp_path / "out"
    assert idx_images.main([str(source), str(target)]) == 0
    whole = made(target)
    for name in list(whole)[::2]:
        (target / name).unlink()
    assert idx_images.main([str(source), str(target)]) == 0 and made(target) == whole
    other = arrays()
    other[0][0, 0, 0] ^= 1
    assert idx_images.main([str(written(tmp_path / "other", other)), str(target)]) == 2 and made(target) == whole
    assert "recipe.json has sha256" in capsys.readouterr().err
    (target / "recipe.json").unlink()
    assert idx_images.main([str(source), str(target)]) == 2
    assert f"{target / 'train'} exists, and this command did not make it: name another folder" in capsys.readouterr().err


def test_more_than_ten_classes_sort_as_their_numbers(tmp_path):
    given = arrays(classes=11)
    assert idx_images.main([str(written(tmp_path / "idx", given)), str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out" / "train").iterdir()) == [f"{label:02}" for label in range(11)]


def without(place, value):
    changed = arrays()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (without(1, np.zeros(5, np.uint8)), "train-images has 12 images but train-labels has 5"),
        (without(3, np.full(6, 9, np.uint8)), "test images have the label 9, and no training image does"),
        ([*(array[:0] for array in arrays()[:2]), *arrays()[2:]], "has no train images"),
        (without(0, np.zeros(3, np.uint8)), "train-images-idx3-ubyte is not an IDX file of bytes with 3 dimensions, or is damaged"),
    ],
)
def test_damaged_files_are_named_and_nothing_is_written(tmp_path, given, message, capsys):
    assert idx_images.main([str(written(tmp_path / "idx", given)), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_missing_file_is_named_with_the_cure(tmp_path, capsys):
    (written(tmp_path / "idx", arrays()) / "t10k-labels-idx1-ubyte").unlink()
    assert idx_images.main([str(tmp_path / "idx"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'idx' / 't10k-labels'}-idx1-ubyte[.gz] is missing" in said and idx_images.CURE in said and "config" not in said
