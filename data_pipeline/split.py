"""Split of the forecasts into training, validation and test by valid time: by years, by dates, or by folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.dates import DAY, Dates, Span, parse_span

SPLITS = ("train", "val", "test", "held_out")
NEXT_FOLD = "next_fold"
"""Value of `val` that makes the fold after the held-out fold the validation data."""
SYNOPTIC_DAYS = 10
"""Days between splits by years: the weather of a day says little about that of ten days later."""


@dataclass(frozen=True)
class Split:
    """First and last year, or first and last date, of training, validation and test; valid times decide.

    `val` and `test` may be None. `folds` is the number of consecutive folds for cross-validation into which the years
    (or days) of `train` are cut. Training leaves out the fold with the number `fold`, counted from 1; this fold is the
    split `held_out`. With as many folds as years, each fold is one year. With `val` set to `next_fold`, the fold after
    the held-out fold validates.

    Training and validation leave out forecasts that are valid within `gap_days` of a scored split; training also leaves
    out forecasts within `gap_days` of validation. None means the longest lead time, and if all splits are whole years,
    which touch at New Year, at least `SYNOPTIC_DAYS`.
    """

    train: Sequence[int | str]
    val: Sequence[int | str] | str | None = None
    test: Sequence[int | str] | None = None
    folds: int | None = None
    fold: int | None = None
    gap_days: int | None = None

    def __post_init__(self) -> None:
        spans = [(name, span) for name, span in self._spans.items() if span is not None]
        for k, (name, span) in enumerate(spans):
            for _, other in spans[:k]:
                if shared := Dates((span,)).first_shared(Dates((other,))):
                    what = f"{shared.year}" if self._by_years else f"{shared}"
                    raise InputError(
                        f"data.split.{name} shares {what} with another split; splits must not overlap: give other "
                        f"dates, or data.split.{name}=null"
                    )
        if self.gap_days is not None:
            check_integer("data.split.gap_days", self.gap_days, 0)
        if self.folds is None:
            if self.fold is not None:
                raise InputError(f"data.split.fold={self.fold} needs data.split.folds, the number of folds")
            if self.val == NEXT_FOLD:
                raise InputError("data.split.val=next_fold needs data.split.folds, the number of folds")
            return
        check_integer("data.split.folds", self.folds, 3 if self.val == NEXT_FOLD else 2, self._units)
        if self.fold is not None:
            check_integer("data.split.fold", self.fold, 1, self.folds)

    @property
    def validates(self) -> bool:
        """Whether there are forecasts for validation."""
        return self.val is not None

    def dates(self, name: str, lead_times: Sequence[int]) -> Dates:
        """Return the dates of the split `name` for forecasts with these lead times (hours).

        `held_out` is the fold that is left out of training; without the option `fold`, all folds.
        """
        if name not in SPLITS:
            raise InputError(f"there is no split {name!r}; choose one of {', '.join(SPLITS)}")
        held_out = () if self.fold is None else (self._fold_spans[self.fold - 1],)
        scored = [*held_out, *filter(None, [self._spans["test"]])]
        if name == "held_out":
            if self.folds is None:
                raise InputError("the split held_out needs data.split.folds, the number of folds of cross-validation")
            return Dates(held_out or self._fold_spans)
        if name == "test":
            return Dates((self._given("test"),))
        gap = timedelta(days=self.gap(lead_times))
        val = self._validation
        if name == "val":
            return Dates(val or (self._given("val"),), _near(scored, gap))
        training = Dates((self._given("train"),)).without(Dates((*held_out, *val)))
        return Dates(training.spans, _near([*scored, *val], gap))

    def gap(self, lead_times: Sequence[int]) -> int:
        """Return the number of days between two splits of forecasts with these lead times (hours)."""
        if self.gap_days is not None:
            return self.gap_days
        return max(SYNOPTIC_DAYS if self._by_years else 1, -(-max(lead_times) // 24))

    @property
    def stored(self) -> Dates:
        """All dates that training and validation need in any fold; a store holds these dates."""
        return Dates(tuple(filter(None, (self._spans["train"], self._spans["val"]))))

    def leave_out(self, fold: int) -> Split:
        """Return the same split with another fold held out."""
        return replace(self, fold=fold)

    def check_fold(self) -> None:
        """Raise an `InputError` if there are folds but the option `fold` is not set."""
        if self.folds is not None and self.fold is None:
            raise InputError(
                f"data.split.folds={self.folds} needs data.split.fold, the fold that is left out of training; train "
                f"one corrector for each fold from 1 to {self.folds}"
            )

    @cached_property
    def _spans(self) -> dict[str, Span | None]:
        given = {"train": self.train, "val": None if self.val == NEXT_FOLD else self.val, "test": self.test}
        return {
            name: None if value is None and name != "train" else parse_span(f"data.split.{name}", value)
            for name, value in given.items()
        }

    @property
    def _by_years(self) -> bool:
        """Whether all splits are given by years."""
        given = [value for value in (self.train, self.val, self.test) if not isinstance(value, str | None)]
        return all(type(end) is int for value in given for end in value)

    @property
    def _units(self) -> int:
        """Number of years, or of days, that can be cut into folds."""
        first, last = self._given("train")
        return last.year - first.year + 1 if self._by_years else (last - first).days + 1

    @cached_property
    def _fold_spans(self) -> tuple[Span, ...]:
        """The spans of all folds, empty without folds; their lengths differ by at most one year (or day)."""
        if self.folds is None:
            return ()
        first, last = self._given("train")
        ends = [k * self._units // self.folds for k in range(self.folds + 1)]
        if self._by_years:
            begins = [date(first.year + end, 1, 1) for end in ends[:-1]]
        else:
            begins = [first + timedelta(days=end) for end in ends[:-1]]
        return tuple(zip(begins, [*(begin - DAY for begin in begins[1:]), last], strict=True))

    @property
    def _validation(self) -> tuple[Span, ...]:
        if self.val != NEXT_FOLD:
            return tuple(filter(None, [self._spans["val"]]))
        if self.fold is None or self.folds is None:
            return ()
        return (self._fold_spans[self.fold % self.folds],)

    def _given(self, name: str) -> Span:
        span = self._spans[name]
        if span is None:
            raise InputError(f"option data.split.{name} has no value; give it as data.split.{name}=[first, last]")
        return span


def _near(spans: Sequence[Span], gap: timedelta) -> tuple[Span, ...]:
    """Return the spans extended by `gap` at both ends; empty if there is no gap."""
    return tuple((first - gap, last + gap) for first, last in spans) if gap else ()
