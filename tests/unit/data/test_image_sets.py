from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tintype.data import image_sets as images
from tintype.data.image_file import Encoded
from tintype.data.image_sets import open_images
from tintype.errors import UserError


def image(seed: int, size: tuple[int, int] = (8, 6), form: str = "png") -> bytes:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, form)
    return buffer.getvalue()


def folder_of(path: Path, count: int) -> Path:
    (path / "inner").mkdir(parents=True)
    for index in range(count):
        (path / ("inner" if index % 2 else ".") / f"{index:02d}.png").write_bytes(image(index))
    (path / "notes.txt").write_text("not an image")
    return path


def tar_of(path: Path, count: int) -> Path:
    with tarfile.open(path, "w") as tar:
        for index in range(count):
            content = image(index)
            member = tarfile.TarInfo(f"{index:02d}.png")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def parquet_of(path: Path, count: int, nested: bool = True) -> Path:
    import pyarrow
    from pyarrow import parquet

    images = [image(index) for index in range(count)]
    column = [{"bytes": image, "path": None} for image in images] if nested else images
    parquet.write_table(pyarrow.table({"image": column, "caption": ["x"] * count}), path)
    return path


def pixels(path: Path, limit: int | None = None) -> list[torch.Tensor]:
    return list(open_images(path, limit))


def test_a_folder_a_tar_and_parquet_files_hold_the_same(tmp_path: Path) -> None:
    expected = {image.numpy().tobytes() for image in pixels(folder_of(tmp_path / "folder", 150))}
    assert len(expected) == 150
    (tmp_path / "two").mkdir()
    parquet_of(tmp_path / "two" / "a.parquet", 150)
    sets = [tar_of(tmp_path / "a.tar", 150), parquet_of(tmp_path / "b.parquet", 150, nested=False), tmp_path / "two"]
    for one in sets:
        found = pixels(one)
        assert {image.numpy().tobytes() for image in found} == expected
        assert found[0].shape == (3, 6, 8) and found[0].dtype == torch.uint8
    assert open_images(sets[0]).fingerprint() == open_images(sets[1]).fingerprint()


def test_the_order_is_the_same_each_time_and_a_limit_takes_the_first(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", 9)
    first, again = pixels(path), pixels(path, 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=False)) and len(again) == 4
    assert open_images(path, 4).fingerprint() != open_images(path).fingerprint()


def test_grey_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 77).save(tmp_path / "a.png")
    Image.new("RGBA", (4, 4), (1, 2, 3, 255)).save(tmp_path / "b.png")
    grey, colour = pixels(tmp_path)
    assert grey.unique().tolist() == [77] and colour[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("strip", [1, 16, 40, 1 << 22])
def test_an_image_that_is_copied_in_strips_is_the_same(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_STRIP_PIXELS", strip)
    content = image(3, (8, 11))
    expected = torch.from_numpy(np.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1)
    assert torch.equal(images.decode(Encoded("a", content)), expected)


def test_a_tar_that_was_cut_between_members_is_not_a_smaller_set(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "a.tar", 6).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        third = tar.getmembers()[3].offset
    for end in (third, third + 100, third + 512, len(whole) // 2):
        (tmp_path / "cut.tar").write_bytes(whole[:end])
        with pytest.raises(UserError, match="truncated"):
            pixels(tmp_path / "cut.tar")


@pytest.mark.parametrize("mode", ["I;16", "F", "RGBA", "LA"])
def test_what_eight_opaque_bits_cannot_hold_is_refused(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (8, 8), 0 if len(mode) != 4 or mode == "I;16" else (9, 9, 9, 128)).save(tmp_path / "a.tiff")
    with pytest.raises(UserError, match=r"a\.tiff (has pixels in the mode|has transparent pixels)"):
        pixels(tmp_path)


def test_hidden_files_are_left_and_mixed_kinds_refused(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", 3)
    (tmp_path / "set" / ".thumbs").mkdir()
    (tmp_path / "set" / ".thumbs" / "t.png").write_bytes(image(9))
    assert len(pixels(tmp_path / "set")) == 3
    tar_of(tmp_path / "set" / "b.TAR", 2)
    with pytest.raises(UserError, match=r"contains images and \.tar files|contains \.tar and images files"):
        pixels(tmp_path / "set")
    assert len(pixels(tmp_path / "set" / "b.TAR")) == 2


def test_an_image_that_cannot_be_read_is_named_and_not_skipped(tmp_path: Path) -> None:
    folder_of(tmp_path / "set", 3)
    (tmp_path / "set" / "01-bad.jpg").write_bytes(image(0, form="jpeg")[:60])
    with pytest.raises(UserError, match=r"01-bad.jpg cannot be read as an image"):
        pixels(tmp_path / "set")


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (10_000, 10_000)).save(tmp_path / "bomb.png")
    with pytest.raises(UserError, match=r"bomb\.png has 10000 × 10000 pixels"):
        pixels(tmp_path)


def test_what_is_no_set_of_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.zip").write_bytes(b"")
    (tmp_path / "bad.tar").write_bytes(b"no tar at all" * 100)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    save_file({"features": torch.zeros(2, 3)}, tmp_path / "features.safetensors")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"picture": [b"x"]}), tmp_path / "other.parquet")
    cases = {
        "nowhere": "does not exist",
        "empty": "contains no image files",
        "a.zip": "the path is not a set of images",
        "bad.tar": "cannot be read as a tar file",
        "features.safetensors": "not a shard of sampled images",
        "bad.parquet": "cannot be read as a Parquet file",
        "other.parquet": "no column 'image'; its columns are picture",
    }
    for name, message in cases.items():
        with pytest.raises(UserError, match=message):
            pixels(tmp_path / name)
