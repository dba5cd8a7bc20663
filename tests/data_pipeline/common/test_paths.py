"""Which files a path, a pattern or a list of them stands for."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.common.paths import expand


def test_patterns(tmp_path, monkeypatch):
    for name in ("b", "a", "c.idx", "odd[1]"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert expand(tmp_path / "*") == [tmp_path / "a", tmp_path / "b", tmp_path / "odd[1]"]
    assert expand([tmp_path / "b", str(tmp_path / "?")]) == [tmp_path / "b", tmp_path / "a"]
    assert expand(tmp_path / "c.idx") == [tmp_path / "c.idx"]
    assert expand(tmp_path / "odd[1]") == [tmp_path / "odd[1]"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/a") == [tmp_path / "a"]
    for wrong, says in {
        "none*": r"no file matches .*none\*",
        "none": "there is no file .*none",
        "folder": r"folder is a folder; name its files, for example with .*folder/\*",
        "fold*": r"no file matches .*fold\*",
    }.items():
        with pytest.raises(InputError, match=says):
            expand(tmp_path / wrong)
    with pytest.raises(InputError, match="no files were named"):
        expand([])
