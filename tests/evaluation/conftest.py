"""The verb `evaluate` in this process, on an archive in memory, and an EMOS that was trained on it."""

import json

import pytest
from memory_archive import MemoryArchive, evaluating, untrained_emos
from quick_report import blank_figures, few_parts, no_figures


@pytest.fixture
def archive():
    return MemoryArchive()


@pytest.fixture
def deepweather(archive):
    """Run the verb like the command line, in this process, with blank figures in the report and few parts in tables."""
    with evaluating(archive) as run, blank_figures(), few_parts():
        yield run


@pytest.fixture
def scores_of(deepweather, tmp_path):
    """Run the verb without figures in a folder of `tmp_path`; return the scores."""

    def run(name, *options):
        with no_figures():
            deepweather(tmp_path / name, *options)
        return json.loads((tmp_path / name / "scores.json").read_text())

    return run


@pytest.fixture
def refusal(deepweather, tmp_path, capsys):
    """Run the verb, which must end with exit code 2 and write nothing; return the error without its beginning."""

    def run(*options):
        with pytest.raises(SystemExit) as left:
            deepweather(tmp_path / "refused", *options)
        assert left.value.code == 2
        assert not (tmp_path / "refused").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("error: ")

    return run


@pytest.fixture(scope="session")
def emos(tmp_path_factory):
    """The file of an EMOS that was trained on the archive."""
    corrector, data = untrained_emos(MemoryArchive(), seasonal=False)
    corrector.fit(data)
    corrector.save(path := tmp_path_factory.mktemp("emos") / "emos.safetensors")
    return path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Give every test a cache of its own: archives in memory have the same fingerprint and other values."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
