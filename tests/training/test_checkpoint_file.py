"""A damaged checkpoint is noticed and not used: training goes on from the one before, to the same bits."""

import zipfile

import pytest
import torch
from training_parts import KilledError, killed_at, train_run

from data_pipeline.common.errors import InputError
from models.parallel.mesh import Mesh
from training.run import checkpoint_file
from training.run.checkpoint_file import is_whole, keep_as, seal


@pytest.fixture
def sealed(tmp_path):
    path = tmp_path / "some.ckpt"
    torch.save({"weights": torch.arange(5000.0), "step": 3}, path)
    seal(path)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_sealed_file_is_still_a_checkpoint_and_a_zip_archive(sealed):
    assert is_whole(sealed)
    for mmap in (False, True):
        found = torch.load(sealed, weights_only=True, mmap=mmap)
        assert found["step"] == 3
        torch.testing.assert_close(found["weights"], torch.arange(5000.0), rtol=0, atol=0)
    with zipfile.ZipFile(sealed) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"deepweather sha256 ")


def test_every_cut_and_every_changed_byte_is_noticed(sealed):
    content = sealed.read_bytes()
    for place in [*range(0, len(content), 499), *range(len(content) - 83, len(content))]:
        sealed.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not is_whole(sealed), place
    for size in [0, 1, 21, 22, 83, 84, 105, *range(200, len(content), 997), len(content) - 1]:
        sealed.write_bytes(content[:size])
        assert not is_whole(sealed), size
    sealed.write_bytes(content + b"\0")
    assert not is_whole(sealed)
    sealed.write_bytes(content)
    assert is_whole(sealed)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"no archive" * 10)
    with pytest.raises(InputError, match=r"leave out the plugin of trainer\.lightning"):
        seal(path)


@pytest.mark.parametrize("links", [True, False], ids=["with hard links", "without"])
def test_the_second_name_keeps_the_content_when_the_first_is_replaced(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(checkpoint_file.os, "link", refuse)
    last, previous = tmp_path / "last", tmp_path / "previous"
    keep_as(last, previous)
    assert not previous.exists()
    for number in range(3):
        new = tmp_path / "new"
        new.write_text(str(number))
        keep_as(last, previous)
        keep_as(last, previous)  # a run that was killed between the two steps
        new.replace(last)
        assert last.read_text() == str(number)
        assert number == 0 or previous.read_text() == str(number - 1)
    assert names(tmp_path) == ["last", "previous"]


def train(toy, folder):
    """Train nine steps; return the weights."""
    return train_run(Mesh.single(), toy, folder, torch.float32, epochs=3, checkpoint_minutes=1e-9)[1]


@pytest.fixture(scope="module")
def undisturbed(toy, tmp_path_factory):
    return train(toy, tmp_path_factory.mktemp("undisturbed"))


def damage(path):
    path.write_bytes(path.read_bytes()[:-1000] + bytes(1000))


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (["last"], ["last.ckpt is damaged and is not used", "resuming from FOLDER/previous.ckpt"]),
        (["last", "previous"], ["last.ckpt is damaged and is not used", "previous.ckpt is damaged and is not used"]),
        (["best"], ["best.ckpt is missing or damaged; training starts again from the first step"]),
        ([], ["resuming from FOLDER/last.ckpt"]),
    ],
    ids=lambda value: " and ".join(value) if value and "." not in value[0] else "",
)
def test_training_goes_on_from_a_whole_checkpoint_to_the_same_weights(
    toy, undisturbed, tmp_path, capsys, damaged, words
):
    with killed_at(7):
        train(toy, tmp_path)
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    steps = {
        name: torch.load(folder / f"{name}.ckpt", weights_only=True)["global_step"] for name in ("last", "previous")
    }
    assert steps["last"] == steps["previous"] + 1 == 7
    for name in damaged:
        damage(folder / f"{name}.ckpt")
    capsys.readouterr()
    found = train(toy, tmp_path)
    printed = capsys.readouterr().out
    for word in words:
        assert word.replace("FOLDER", str(folder)) in printed
    assert ("resuming" in printed) == any("resuming" in word for word in words)
    for name, tensor in undisturbed.items():
        assert (found[name] == tensor).all(), name
    assert names(folder) == ["best.ckpt", "last.ckpt"]
    assert all(map(is_whole, folder.iterdir()))


@pytest.mark.parametrize("moment", ["keep_as", "seal"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(toy, undisturbed, tmp_path, moment):
    """A kill when the older file has its second name and the new one not its own; and before the new one is sealed."""
    original, calls = getattr(checkpoint_file, moment), []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 6:
            raise KilledError
        original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"training.run.checkpoints.{moment}", killed)
        with pytest.raises(KilledError):
            train(toy, tmp_path)
    found = train(toy, tmp_path)
    for name, tensor in undisturbed.items():
        assert (found[name] == tensor).all(), name
    assert names(tmp_path / "checkpoints") == ["best.ckpt", "last.ckpt"]
