"""Folders that tests keep between sessions: made once, renamed when they are whole, and of one state of the program."""

import kept
import pytest


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that asks for a folder, and the names of its files; the cache is `tmp_path / "cache"`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def ask(text):
        folder = kept.kept("one", lambda folder: (folder / "file").write_text(text), tmp_path / "session")
        return folder.is_relative_to(tmp_path / "cache"), (folder / "file").read_text()

    return ask


def test_a_folder_is_made_once_for_each_state_of_the_program(made, monkeypatch):
    assert [made("first"), made("second")] == [(True, "first")] * 2
    monkeypatch.setattr(kept, "state_of_the_program", lambda parts: "changed")
    assert made("third") == (True, "third")


def test_a_folder_that_was_not_finished_is_made_again(made):
    with pytest.raises(TypeError):
        made(None)
    assert made("whole") == (True, "whole")


def test_the_state_covers_every_file_of_the_program_and_the_settings(tmp_path, monkeypatch):
    names = (
        "conf/task/t2m.yaml",
        "training/train.py",
        "scripts/deepweather.py",
        "tests/kept.py",
        "tests/twin_project.py",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    state = kept.state_of_the_program.__wrapped__
    states = [state()]
    for name in names:
        (tmp_path / name).write_text("changed")
        states.append(state())
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert len({*states, state()}) == 7
