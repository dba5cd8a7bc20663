"""The light reader of a command line gives what Hydra gives, or leaves the command line to Hydra."""

import re
import string

import deepweather
import pytest
from conftest import ROOT
from hydra.errors import HydraException
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import explain, plain
from conf.command_line import NeedsHydraError, default_options, format_value, parse_value, read_options
from conf.help_text import help_text
from conf.hydra_command import composed
from conf.option_files import HIDDEN
from data_pipeline.common.errors import InputError

KEYS = sorted(default_options("correct"))
WORDS = ["a", "b-c", "_x", "1", "-2", "1_0", "1.5", ".5", "1e-3", "2.", "inf", "-NaN", "true", "FALSE", "null", "007"]
PIECES = st.one_of(
    st.sampled_from(
        [*WORDS, "/", "-", "\\", "+", ".", "$", "%", "*", "@", "?", "|", ":", " ", "\t", "=", "\\,", "\\\\"]
    ),
    st.sampled_from(["'a b'", '"c,d"', '"e\'f"', "''", "(", ")", "ä", "#", "!", '"', "'", "${x}", "???"]),
)
SCALARS = st.lists(PIECES, min_size=1, max_size=4).map("".join)
SPACE = st.sampled_from(["", "", " "])
VALUES = st.recursive(
    SCALARS | st.sampled_from(WORDS),
    lambda inner: st.one_of(
        st.tuples(SPACE, st.lists(inner, max_size=3), SPACE).map(
            lambda t: f"[{t[0]}{f'{t[2]},{t[0]}'.join(t[1])}{t[2]}]"
        ),
        st.lists(st.tuples(st.sampled_from(WORDS) | SCALARS, SPACE, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{key}{space}:{space}{value}" for key, space, value in pairs) + "}"
        ),
    ),
    max_leaves=5,
)
TEXT = st.text(string.printable, max_size=12)


def by_hydra(words):
    """The options as Hydra reads them, or the sentence of its error."""
    try:
        return plain(composed("correct", words))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        return str(explain(error))


def by_hand(words):
    """The options, the sentence of the error, or None where Hydra must read them."""
    try:
        return read_options("correct", words)
    except InputError as error:
        return str(error)
    except NeedsHydraError:
        return None


NEEDED = ["corrector=a", "input=b", "output=c"]


def same(one, other):
    """Whether two values are equal, with their types; NaN equals NaN."""
    return repr(one) == repr(other)


OPTIONS = st.tuples(st.sampled_from(KEYS), st.sampled_from(WORDS) | VALUES | TEXT)


@given(st.lists(OPTIONS, min_size=1, max_size=2), st.lists(SCALARS | TEXT, max_size=1))
@settings(max_examples=60, deadline=None)
@example([("variable_names", "{228: tp, T850: t@850}"), ("variable_names", "{x: y}")], [])
@example([("input", "[pl.grib, 'a b.grib',2018/x_01.grib]"), ("seed", "1_000")], [])
@example([("mesh", "[1,[2,{a: b:c}]]"), ("output", "")], [])
def test_options_have_the_values_of_hydra(pairs, others):
    words = [word for word in NEEDED if word.partition("=")[0] not in dict(pairs)]
    words += [*(f"{key}={value}" for key, value in pairs), *others]
    found = by_hand(words)
    assert found is None or same(found, by_hydra(words)), words


@given(SCALARS | TEXT | st.text("a\\'\"${}[], ", max_size=6), st.integers())
@settings(max_examples=20, deadline=None)
@example("1\\", 0)
@example("\\\\${a}", 0)
@example("'a'", 0)
def test_a_formatted_value_is_read_as_it_was(text, number):
    assume("???" not in text)  # a missing value, which Hydra has no way to quote
    value = [text, "b", str(number)]
    words = [f"input={format_value(value)}", f"corrector={format_value(text)}", f"seed={format_value(number)}"]
    expected = {"input": value, "corrector": text, "seed": number}
    found = by_hydra([*words, "output=c"])
    assert {key: found[key] for key in expected} == expected
    if not any(special in text for special in ("\\", "'", "${")):
        assert parse_value(format_value(value)) == value  # without Hydra


@pytest.mark.parametrize(
    "value",
    ["IN.grib", "../data/in_2018.grib2", "[a.grib, b.grib]", "{t2m: a.onnx, wind: b.onnx}", "5", "1e-3", "null", "true",
     "'a, b'", '"x=y"', "", "data/*.grib", "2018-01-08T00:00", "[0.1, 0.5]"],
)  # fmt: skip
def test_usual_values_need_no_hydra(value):
    assert isinstance(by_hand(["corrector=a", "output=c", f"input={value}"]), dict)


@pytest.mark.parametrize("words", [[*NEEDED, "corector=a"], [*NEEDED, "nothing=3"], [], NEEDED[:1]])
def test_a_misspelt_or_missing_option_gives_the_same_sentence(words):
    assert by_hand(words) == by_hydra(words)


@pytest.mark.parametrize(
    "word", ["--cfg", "-m", "+new=1", "~seed", "seed=1,2", "seed=range(3)", "input=${output}", "a"]
)
def test_the_rest_of_the_grammar_is_left_to_hydra(word):
    assert by_hand([*NEEDED, word]) is None


@pytest.mark.parametrize("verb", deepweather.VERBS)
def test_help_lists_every_option_with_its_meaning(verb, command, tmp_path):
    """The options are those that Hydra composes; plain help leaves some out, and says how many."""
    options = plain_options(OmegaConf.to_container(composed(verb, [])))
    plain, every = (command(tmp_path, verb, "--help", *words).stdout for words in ((), ("all",)))
    listed = [dict(re.findall(r"^([\w.]+): .*?  # (.+)$", text, re.M)) for text in (plain, every)]
    assert options == set(listed[1])
    more = re.search(r"^--help all lists (\d+) more options", plain, re.M)
    assert listed[0].items() <= listed[1].items()
    assert len(listed[1]) - len(listed[0]) == int(more[1] if more else 0)


def plain_options(node, prefix=""):
    """The dotted names of all options in a composed configuration; a mapping without a class may be one value."""
    found = set()
    for key, value in node.items():
        if key not in HIDDEN:
            found |= plain_options(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return found


CHOICES = {
    group: [path.stem for path in sorted((ROOT / "conf" / group).glob("*.yaml")) if "defaults:" in path.read_text()]
    for group in ("data", "model", "task")
}
"""Files with options of other files."""


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_help_lists_what_a_choice_has_from_others(number):
    """One choice of each group at a time."""
    words = [f"{group}={names[number % len(names)]}" for group, names in CHOICES.items()]
    made, shown = OmegaConf.to_container(composed("train", words)), help_text("train", [*words, "all"])
    for group in CHOICES:
        options = plain_options(made[group], f"{group}.")
        cache = {name for name in options if name.startswith("data.cache.")}
        assert options - cache == set(re.findall(rf"^({group}\.[\w.]+): ", shown, re.M)) - cache


def test_help_follows_the_chosen_model(command, tmp_path):
    shown = command(tmp_path, "train", "model=emos", "--help").stdout
    assert "\nmodel.family: " in shown
    assert "\nmodel.depth: " not in shown
    refused = command(tmp_path, "train", "model=emoss", "--help")
    assert refused.code == 2
    assert refused.stderr.startswith("error: there is no model emoss; choose one of ")
