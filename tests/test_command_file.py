"""Files of options, `deepweather VERB FILE.yaml`, and their JSON schemas."""

import json
import random

import jsonschema
import pytest
from deepweather import VERBS
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from test_documented_commands import OURS, words_of

from conf import check_words, expand_files, leave
from conf.command_file import words_of_files
from conf.command_line import parse_value
from conf.help_text import help_text
from data_pipeline.common.errors import InputError

NAMES = st.from_regex("[a-z_]{1,8}", fullmatch=True).filter(lambda name: name not in ("null", "true", "false"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"])).filter(lambda text: "$" not in text)
VALUES = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)


@pytest.fixture(scope="module")
def schemas():
    return {verb: json.loads(help_text(verb, ["schema"])) for verb in VERBS if verb not in ("compare", "submit")}


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_hydra_reads_the_values_of_the_file(tmp_path_factory, options):
    """Hydra's own parser reads the words of a file as the values that were written, as JSON, into it."""
    path = tmp_path_factory.getbasetemp() / "run.yaml"
    path.write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in options.items()))
    words, places = words_of_files([str(path)])
    parser = OverridesParser.create()
    assert {one.key_or_group: one.value() for one in map(parser.parse_override, words)} == options
    assert places == {name: f"{path}, line {number}" for number, name in enumerate(options, 1)}


def test_plain_text_is_read_as_on_the_command_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: twin\nmodel.width: 8  # narrow\ntrainer.learning_rate: 1e-3\ndata.store:\ntask.formulas:\n"
        "  - advection(t@850)\ntask.groups: {control: 0}\nrun_dir: /data/of (2) years\nseed: '12'\ne: ${data.path}\n"
    )
    words, _ = words_of_files(["-m", str(path), "model.width=16", "verb", "model.width=1"])
    assert words == [
        "-m", "data=twin", "trainer.learning_rate=1e-3", "data.store=null", "task.formulas=['advection(t@850)']",
        "task.groups={control:0}", "run_dir='/data/of (2) years'", "seed='12'", "e=${data.path}", "model.width=16",
        "verb", "model.width=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"run.yaml, line 2: a is given twice"),
        ("- a\n", "run.yaml holds no options; write one KEY: VALUE in each line"),
        ("a: [1\n", "run.yaml is no YAML: "),
        (None, "run.yaml cannot be read: No such file or directory; name a YAML file, or write KEY=VALUE"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        words_of_files([str(path)])


def test_errors_about_options_name_file_and_line(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("corrector: a.safetensors\ninput: a.grib\noutput: b.grib\nmembrs: ecc-q\n")
    words = expand_files([str(path)])
    with pytest.raises(InputError, match="there is no option membrs; did you mean members") as found:
        check_words("correct", words)
    with pytest.raises(SystemExit):
        leave(found.value)
    assert capsys.readouterr().err == f"error: {found.value} ({path}, line 4)\n"
    expand_files([])


def test_defaults_and_documented_commands_fit_the_schemas(schemas):
    """A schema that underlines what the docs say, or what no one has changed, would be wrong."""
    checkers = {verb: jsonschema.Draft202012Validator(schema) for verb, schema in schemas.items()}
    checked = 0
    for verb, schema in schemas.items():
        defaults = {name: one["default"] for name, one in schema["properties"].items() if "default" in one}
        assert [str(error) for error in checkers[verb].iter_errors(defaults)] == []
    for _, line in OURS:
        verb, *words = words_of(line)
        if verb in schemas and "-m" not in words:
            options = {}
            for name, _, value in (word.partition("=") for word in words if "=" in word):
                try:
                    options[name] = parse_value(value)
                except ValueError:
                    options[name] = value
            assert [str(error) for error in checkers[verb].iter_errors(options)] == [], line
            checked += 1
    assert checked > 90


def test_the_schema_underlines_misspellings_and_wrong_types(schemas):
    chosen = random.Random(0)
    checker = jsonschema.Draft202012Validator(schemas["train"])
    names = [name for name in schemas["train"]["properties"] if len(name) > 5]
    for name in chosen.sample(names, 20):
        at = chosen.randrange(1, len(name) - 1)
        wrong = name[:at] + name[at + 1 :]
        assert any(error.validator == "additionalProperties" for error in checker.iter_errors({wrong: 1})), wrong
    for name, value in {
        "trainer.epochs": "ten", "model": "unett", "data.archive.missing": "droop", "model.seasonal": 2,
    }.items():  # fmt: skip
        assert [*checker.iter_errors({name: value})], name
    assert not [*checker.iter_errors({"trainer.epochs": "${seed}", "hydra.verbose": True, "+new": 1})]
