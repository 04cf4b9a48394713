"""What the demo measures, as trials of one store: a second run has nothing left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from restack.data import load_texts
from restack.plan import Plan, drop_by_score
from restack.studies.drop import STRATEGIES, strategies
from restack.studies.laying import Layout
from restack.studies.subjects import Subject, describe
from restack.studies.view import score
from restack.sweep.identify import identify_data, identify_model
from restack.sweep.rows import Row
from restack.sweep.trial import Data, Trial

MODEL, TASK, TEXTS = "restack/demo-mlm", "demo/sentiment", "demo/text"
LESS = 6
"""So many of its twelve layers each strategy leaves out."""
LINES, EXAMPLES, SCORED = 200, 4000, 500
"""Texts that are read, examples that are trained on, examples that are scored."""
RECIPE: Mapping[str, Any] = {"epochs": 1, "batch_size": 16, "rate": 3e-4, "head": "mean-pool"}


@dataclass(frozen=True, slots=True)
class Timing:
    """What is run when costs are measured."""

    texts: int
    max_length: int = 64
    batch_size: int = 32

    @property
    def options(self) -> str:
        """The same for `restack bench`."""
        return f"--limit {self.texts} --max-length {self.max_length} --batch {self.batch_size}"


TIMED = Timing(96)  # three batches: ratios settle over the rounds, of which there are ten
WHOLE = "untouched"
SMALLER = (*STRATEGIES, "contribution")
OTHERS = {"duplicate": "duplicate:each", "reinit": "reinit:after=6", "shuffle": "permute:seed=1"}


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials, part by part; later parts follow from what earlier ones have measured."""

    subject: Subject
    texts: Data
    examples: Data
    timed: Data

    def lens(self) -> Trial:
        """What the model's own head reads from each layer; one text is decoded."""
        return self._look("lens", {"decode": 1}, "lens", data=self.texts)

    def scores(self) -> Trial:
        """How much each layer matters."""
        measures = ["cls_cosine", "angular_distance", "exact"]
        return self._look("score", {"measures": measures}, "scores", data=self.texts)

    def plans(self, scores: Row) -> dict[str, Plan]:
        """By name: the model itself, six plans that leave layers out, and three others."""
        depth = self.subject.depth
        alike = [layer["cls_cosine"] for layer in scores.payload["layers"]]
        return {
            WHOLE: Plan.identity(depth),
            **strategies(depth, LESS),
            "contribution": drop_by_score(depth, alike, count=LESS),
            **{name: Plan.parse(text, depth) for name, text in OTHERS.items()},
        }

    def untrained(self, plans: Mapping[str, Plan]) -> Trial:
        """What comes out along all plans without training, in one walk through them."""
        settings = {"plans": [str(plan) for plan in plans.values()], "read": "tokens"}
        return self._look("plans", settings, "untrained", data=self.texts, names=list(plans))

    def tuned(self, plans: Mapping[str, Plan]) -> list[Trial]:
        """A short fine-tuning along each plan."""
        return [
            _LAYOUT.tune(
                self.subject,
                TASK,
                replace(self.examples, size=EXAMPLES, subsample=0),
                RECIPE,
                _LAYOUT.labels(self.subject, "tuned", name=name),
                plan=plan,
            )
            for name, plan in plans.items()
        ]

    def cost(self, plans: Iterable[Plan]) -> Trial:
        """Sizes and times of some plans, the model itself first."""
        settings = {
            "plans": [str(plan) for plan in plans],
            "batch_size": TIMED.batch_size,
            "max_length": TIMED.max_length,
        }
        return self._look("cost", settings, "cost", task=TASK, data=self.timed)

    def _look(
        self,
        kind: str,
        settings: Mapping[str, Any],
        part: str,
        *,
        task: str | None = None,
        data: Data,
        **labels: Any,
    ) -> Trial:
        said = _LAYOUT.labels(self.subject, part, **labels)
        return _LAYOUT.look(kind, self.subject, settings, said, task=task, data=data)


_LAYOUT = Layout("demo", "demo")


def prepare() -> Trials:
    """The model and the data that ship, with what tells them from others."""
    subject = describe(MODEL)
    texts = load_texts(TEXTS, limit=LINES)
    return Trials(
        replace(subject, model=identify_model(subject.model)),
        Data(TEXTS, None, ("validation",), limit=LINES, fingerprint=texts.fingerprint),
        identify_data(TASK, Data(limit=SCORED)),
        identify_data(TASK, Data(limit=TIMED.texts)),
    )


def best(tuned: Sequence[Row]) -> Row:
    """Of the smaller stacks the one that scores highest after fine-tuning."""
    return max((row for row in tuned if row.labels["name"] in SMALLER), key=score)
