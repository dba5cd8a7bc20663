"""The text of formulas: operands, units, and the errors."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.formula import FORMULA_OPERATIONS, Formula, read_variable
from data_pipeline.variables.meaning import Meaning
from data_pipeline.variables.variable import Variable


def test_what_a_formula_reads():
    for text, leaves, units, parity in (
        ("advection( t@850 )", "t@850 u@850 v@850", "K s⁻¹", 1),
        ("advection(2t)", "2t 10u 10v", "K s⁻¹", 1),
        ("advection(t@850-24h)", "t@850-24h u@850-24h v@850-24h", "K s⁻¹", 1),
        ("advection(tcwv, u@850, v@850)", "tcwv u@850 v@850", "kg s⁻¹ m⁻²", 1),
        ("gradient(q@850)", "q@850", "m⁻¹", 1),
        ("eastward_gradient(t@850)", "t@850", "K m⁻¹", -1),
        ("inverse_laplacian(vorticity@500)", "u@500 v@500", "m² s⁻¹", 1),
        ("change(geopotential_tendency@500, 24)", "u@500 v@500 u@500-24h v@500-24h", "m² s⁻³", 1),
        ("balanced_geopotential(stretching(d@500))", "d@500", "m² s⁻³", 1),
        ("lagrangian_change(z@500, 24)", "z@500 z@500-24h u@500 v@500 u@500-24h v@500-24h", "m² s⁻²", 1),
        ("lagrangian_change(2t, 24, u@850, v@850)", "2t 2t-24h u@850 v@850 u@850-24h v@850-24h", "K", 1),
        ("thickness(850, 500)", "z@500 z@850", "m", 1),
        ("difference(skt, 2t)", "skt 2t", "K", 1),
        ("change(u@500, 24)", "u@500 u@500-24h", "m s⁻¹", -1),
        ("change(thickness(500, 850), 24)", "z@500 z@850 z@500-24h z@850-24h", "m", 1),
        ("change(change(2t, 24), 24)", "2t 2t-24h 2t-48h", "K", 1),
    ):
        formula = Formula.parse(text)
        assert " ".join(map(str, formula.leaves)) == leaves
        assert (formula.units, formula.parity) == (units, parity)
        assert Formula.parse(str(formula)) == formula == read_variable(text)
        meaning = Meaning.stated(formula, [24])
        assert Meaning.from_json(meaning.to_json()) == meaning


def test_two_spellings_of_one_formula_are_equal():
    assert Formula.parse("vorticity@500") == Formula.parse("vorticity(u@500,v@500)")
    assert Formula.parse("change(z@500, 24)") != Formula.parse("change(z@500, 48)")
    assert {Formula.parse(one.usage).operation for one in FORMULA_OPERATIONS.values()} == {*FORMULA_OPERATIONS}
    assert read_variable("t@850") == Variable("t", 850)


def test_wrong_formulas_are_refused():
    for text, sentence in (
        ("twist(t@850)", r"cannot read the formula 'twist\(t@850\)'; write one of gradient\(t@850\)"),
        ("gradient(gradient(t@850)", "the brackets of the formula .* do not match"),
        ("advection(3)", "has wrong arguments; write it like advection"),
        ("thickness(500)", r"has wrong arguments; write it like thickness\(500, 850\)"),
        ("change(z@500+0h, 24)", r"z@500\+0h has a fixed lead time, so it has no change"),
        ("lagrangian_change(tcwv, 24, 6)", r"has wrong arguments; write it like lagrangian_change\(t@850, 24\)"),
        ("lagrangian_change(u@850, 24)", "u@850 is a component of a vector"),
        ("gradient(u@850)", "u@850 is a component of a vector"),
        ("advection(eastward_gradient(2t))", "is a component of a vector"),
        ("vorticity(v@500, u@500)", "v@500 and u@500 are not the eastward and the northward component of one wind"),
        ("speed(u@500, v@850)", "are not the eastward and the northward component of one wind"),
        ("speed(u@500, v@500-24h)", "are not the eastward and the northward component of one wind"),
        ("advection(t@850, t@850, v@850)", "are not the eastward and the northward component of one wind"),
        (
            "advection(thickness(500, 850))",
            r"several levels .* such as advection\(thickness\(500, 850\), u@700, v@700\)",
        ),
        ("difference(u@500, t@500)", "has wrong arguments; write it like difference"),
        ("t@850", "'t@850' in formulas is no formula"),
    ):
        with pytest.raises(InputError, match=sentence):
            Formula.parse(text)


def test_wrong_units_are_refused():
    wind = Formula.parse("vorticity@500")
    u, v = wind.leaves
    assert wind.units_from({u: "m s-1", v: ""}) == "", "unknown units stay unknown"
    with pytest.raises(InputError, match="vorticity@500 needs v@500 in m s-1, it is in knot; convert it"):
        wind.units_from({u: "m s-1", v: "knot"})
    with pytest.raises(InputError, match="z@500 is in m2 s-2 and t@500 in K; convert one of them"):
        _ = Formula.parse("difference(z@500, t@500)").units
