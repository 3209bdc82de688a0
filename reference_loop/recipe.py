"""What the user asks of a training run: a frozen recipe, read from a TOML file and from `--set` on the command line.

A table that was not stated is None, and so is an optimizer argument; both then mean the default of torch.
"""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import inf, isinf
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints


class RecipeError(ValueError):
    """A recipe that cannot be trained: what was asked, what was found, the nearest valid key, the valid choices.

    key: the dotted key that is wrong, "" where the fault is not in one key.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Rule(NamedTuple):
    """What one field accepts.

    words: finish the sentence "<key> must be ...".
    convert: (value as read) -> value as held; raises TypeError, ValueError or OverflowError where it is another type.
    holds: (value as held) -> whether it is in range, written in the positive so that NaN is refused.
    choices: all that is accepted, where it is a few words.
    """

    words: str
    convert: Callable[[Any], Any]
    holds: Callable[[Any], bool] = lambda value: True
    choices: tuple[str, ...] = ()


def _exactly(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not kind:  # a bool is an int to isinstance, and not to a reader
            raise TypeError
        return value

    return convert


def _real(value: Any) -> float:
    if value in ("inf", "-inf"):  # JSON has no other way to say it
        return float(value)
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _pair(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple):
        raise TypeError
    first, second = value
    return _real(first), _real(second)


def _day(value: Any) -> str:
    if type(value) is datetime.date:
        return value.isoformat()
    return datetime.date.fromisoformat(value).isoformat()


def _choice(*names: str) -> Rule:
    return Rule(f"one of {', '.join(names)}", _exactly(str), lambda value: value in names, names)


_LARGEST_FLOAT32 = 3.4028234663852886e38

COUNT = Rule("a whole number, 1 or more", _exactly(int), lambda value: value >= 1)
WHOLE = Rule("a whole number, 0 or more", _exactly(int), lambda value: value >= 0)
SEED = Rule("a whole number from 0 to 4294967295", _exactly(int), lambda value: 0 <= value < 2**32)
FLAG = Rule("true or false", _exactly(bool), choices=("true", "false"))
TEXT = Rule("a text that is not empty", _exactly(str), bool)
DAY = Rule("a date such as 2027-06-30", _day)
FINITE = Rule("a finite number", _real, lambda value: -inf < value < inf)
NOT_NEGATIVE = Rule("a finite number, 0 or more", _real, lambda value: 0 <= value < inf)
THRESHOLD = Rule("a number greater than 0 (inf: no clipping)", _real, lambda value: value > 0)
SHARE = Rule("a number from 0 to 1", _real, lambda value: 0 <= value <= 1)
BETAS = Rule("two numbers, each at least 0 and less than 1", _pair, lambda value: all(0 <= b < 1 for b in value))
SCALE = Rule("a number greater than 0 that float32 holds", _real, lambda value: 0 < value <= _LARGEST_FLOAT32)
GROWTH = Rule("a finite number greater than 1", _real, lambda value: 1 < value < inf)
BACKOFF = Rule("a number greater than 0 and less than 1", _real, lambda value: 0 < value < 1)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a recipe. Its plain fields are checked, and held in one type, whenever one is made.

    Raises:
        RecipeError: a value has another type or is out of range.
    """

    title: ClassVar[str] = ""
    rules: ClassVar[dict[str, Rule]] = {}

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        cls.rules = {name: note for name, found in notes.items() for note in found if isinstance(note, Rule)}

    def __post_init__(self) -> None:
        for column in fields(self):
            value, rule = getattr(self, column.name), self.rules.get(column.name)
            if rule is not None and not (value is None and column.default is None):
                object.__setattr__(self, column.name, _held(self.dotted(column.name), value, rule))

    @classmethod
    def dotted(cls, name: str) -> str:
        """The key of a field as error messages and `--set` write it."""
        return f"{cls.title}.{name}" if cls.title else name


@dataclass(frozen=True, kw_only=True)
class Optimizer(Table):
    """Which optimizer, with its torch.optim arguments; one that is None was not stated and is torch.optim's default."""

    title = "optimizer"

    name: Annotated[str, _choice("sgd", "adam", "adamw")] = "sgd"
    """The algorithm; it decides which arguments below may be stated."""
    lr: Annotated[float, NOT_NEGATIVE] = 0.1
    """The learning rate that the schedule multiplies."""
    weight_decay: Annotated[float | None, NOT_NEGATIVE] = None
    """How strongly parameters are drawn to 0: by the step in adamw, through the gradient in sgd and adam."""
    momentum: Annotated[float | None, NOT_NEGATIVE] = None
    """sgd: how much of the last direction is kept."""
    dampening: Annotated[float | None, FINITE] = None
    """sgd: how much of a new gradient is held back from the momentum, from the second update on."""
    nesterov: Annotated[bool | None, FLAG] = None
    """sgd: look ahead along the momentum; needs momentum, and no dampening."""
    betas: Annotated[tuple[float, float] | None, BETAS] = None
    """adam, adamw: how much of the running mean of the gradient, and of its square, is kept."""
    eps: Annotated[float | None, NOT_NEGATIVE] = None
    """adam, adamw: added to the denominator."""
    amsgrad: Annotated[bool | None, FLAG] = None
    """adam, adamw: divide by the largest second moment so far."""
    maximize: Annotated[bool | None, FLAG] = None
    """Climb instead of descend."""

    def __post_init__(self) -> None:
        super().__post_init__()
        takes = ARGUMENTS[self.name]
        for name in self.arguments():
            if name not in takes:
                owners = ", ".join(owner for owner, known in ARGUMENTS.items() if name in known)
                raise RecipeError(
                    f"optimizer.{name} is not an argument of {self.name}, which takes {', '.join(takes)}: "
                    f"remove it, or set optimizer.name to one that takes it ({owners})",
                    f"optimizer.{name}",
                )
        if self.nesterov and (not self.momentum or self.dampening):
            raise RecipeError(
                f"optimizer.nesterov needs a momentum greater than 0 and no dampening, found momentum = "
                f"{self.momentum or 0.0} and dampening = {self.dampening or 0.0}: set optimizer.momentum, "
                "or remove optimizer.nesterov",
                "optimizer.nesterov",
            )

    def arguments(self) -> dict[str, Any]:
        """The arguments for the torch.optim class: lr, and of the others only the stated ones."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {name: value for name, value in values.items() if value is not None}


ARGUMENTS: dict[str, tuple[str, ...]] = {
    "sgd": ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    "adam": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
    "adamw": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
}
"""Which arguments each optimizer takes; a recipe that states another one is refused."""


@dataclass(frozen=True, kw_only=True)
class Schedule(Table):
    """How the learning rate moves; formulas in `reference_loop.schedules`."""

    title = "schedule"

    name: Annotated[str, _choice("constant", "linear", "cosine")]
    """What follows the warm-up: nothing, a line to 0, half a cosine to 0."""
    warmup: Annotated[int, WHOLE] = 0
    """Updates over which the rate rises from 0."""


@dataclass(frozen=True, kw_only=True)
class Clip(Table):
    """By what the gradients of one update are limited: exactly one of the two."""

    title = "clip"

    max_norm: Annotated[float | None, THRESHOLD] = None
    """Largest 2-norm of all gradients together; inf asks explicitly for no clipping."""
    max_value: Annotated[float | None, THRESHOLD] = None
    """Largest absolute value of a gradient's element."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.max_norm is None) == (self.max_value is None):
            both = f"max_norm = {self.max_norm} and max_value = {self.max_value}"
            found = "neither" if self.max_norm is None else both
            raise RecipeError(f"[clip] needs exactly one of max_norm and max_value, found {found}", "clip")

    @property
    def threshold(self) -> float:
        """The one of the two that is set."""
        return self.max_norm if self.max_norm is not None else self.max_value  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Precision(Table):
    """The type that autocast computes in; parameters stay float32."""

    title = "precision"

    dtype: Annotated[str, _choice("float32", "bfloat16", "float16")] = "float32"
    """float32: no autocast; float16 brings a gradient scaler."""


@dataclass(frozen=True, kw_only=True)
class ScalerOptions(Table):
    """The gradient scaler's numbers, by default those of torch.amp.GradScaler; in use when the precision is float16."""

    title = "scaler"

    init_scale: Annotated[float, SCALE] = 65536.0
    """What the first loss is multiplied by."""
    growth_factor: Annotated[float, GROWTH] = 2.0
    """By what the scale grows after `growth_interval` updates without overflow."""
    backoff_factor: Annotated[float, BACKOFF] = 0.5
    """By what the scale shrinks after an overflow."""
    growth_interval: Annotated[int, COUNT] = 2000
    """Updates without overflow before the scale grows."""


@dataclass(frozen=True, kw_only=True)
class Ema(Table):
    """A running mean of the parameters."""

    title = "ema"

    decay: Annotated[float, SHARE]
    """How much of the mean is kept at each update."""


@dataclass(frozen=True, kw_only=True)
class Log(Table):
    """When the training loss is reported."""

    title = "log"

    every: Annotated[int, COUNT] = 1
    """Updates from one report to the next."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Table):
    """When the task's metrics are computed."""

    title = "evaluate"

    every: Annotated[int, COUNT] = 1
    """Updates from one evaluation to the next."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Table):
    """When the training state is written."""

    title = "checkpoint"

    every: Annotated[int, COUNT]
    """Updates from one checkpoint to the next."""


@dataclass(frozen=True, kw_only=True)
class Parallel(Table):
    """How many processes train together."""

    title = "parallel"

    ranks: Annotated[int, COUNT] = 1
    """Processes, each with its own share of the data."""


@dataclass(frozen=True, kw_only=True)
class Accept(Table):
    """A known difference that does not fail until a day; the cause is checked where causes are known."""

    title = "accept"

    cause: Annotated[str, TEXT]
    """The knob, or `hyperparameter.<name>`."""
    reason: Annotated[str, TEXT]
    """Why it is wanted, for whoever reads the report."""
    until: Annotated[str, DAY]
    """The last day on which it is accepted, as 2027-06-30."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Table):
    """What a training run is asked to do. Exactly one of `epochs` and `updates` is set; with neither, one epoch."""

    seed: Annotated[int, SEED] = 0
    """Seeds torch, python and numpy, before the model is built and again after."""
    epochs: Annotated[int | None, COUNT] = None
    """Passes over the data."""
    updates: Annotated[int | None, COUNT] = None
    """Optimizer steps, over as many passes as they need."""
    batch_size: Annotated[int, COUNT] = 2
    """Samples per micro-batch and rank."""
    accumulation: Annotated[int, COUNT] = 1
    """Micro-batches per update."""
    shuffle: Annotated[bool, FLAG] = False
    """Draw the samples of each epoch in random order."""
    drop_last: Annotated[bool, FLAG] = False
    """Leave out an incomplete last batch."""
    workers: Annotated[int, WHOLE] = 0
    """Processes that load data; 0 loads in the training process."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule | None = None
    clip: Clip | None = None
    precision: Precision = field(default_factory=Precision)
    scaler: ScalerOptions | None = None
    ema: Ema | None = None
    log: Log | None = None
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint | None = None
    parallel: Parallel = field(default_factory=Parallel)
    semantics: dict[str, str] = field(default_factory=dict)
    """What the user expects where it is not the textbook's: knob to value, checked against the knobs elsewhere."""
    accept: tuple[Accept, ...] = ()
    """Known differences that do not fail."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.updates is not None:
            raise RecipeError(
                f"the length is given twice, epochs = {self.epochs} and updates = {self.updates}: remove one", "epochs"
            )
        if self.epochs is None and self.updates is None:
            object.__setattr__(self, "epochs", 1)


TABLES: dict[str, type[Table]] = {
    table.title: table
    for table in (Optimizer, Schedule, Clip, Precision, ScalerOptions, Ema, Log, Evaluate, Checkpoint, Parallel)
}

# Keys that exclude each other: of two `--set`, or of a file and a `--set`, the one stated last stands.
_INSTEAD_OF = {
    ("epochs",): ("updates",),
    ("updates",): ("epochs",),
    ("clip", "max_norm"): ("clip", "max_value"),
    ("clip", "max_value"): ("clip", "max_norm"),
}


def load(path: str | Path | None, sets: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a TOML file and change it by `KEY=VALUE` texts, in their order.

    path: the file; None starts from the defaults.
    sets: dotted TOML keys, each with a TOML value; what is no TOML value is a text, so `optimizer.name=adamw` needs no
        quotes. Of keys that exclude each other (`epochs`, `updates`) the one stated last stands.

    Raises:
        RecipeError: the file cannot be read or is not TOML, or it does not describe a recipe.
    """
    values = _read_file(Path(path)) if path is not None else {}
    texts: dict[str, str] = {}
    try:
        if "semantics" in values:
            values["semantics"] = _flat_semantics(values["semantics"])
        for text in sets:
            keys, value = _parse_set(text)
            texts[".".join(keys)] = text
            _put(values, keys, value)
        return from_dict(values)
    except RecipeError as error:
        guilty = [text for key, text in texts.items() if f"{key}.".startswith(f"{error.key}.")]
        named = str(error).startswith("--set ")
        source = f"--set {guilty[-1]}: " if guilty else f"{path}: " if path is not None and not named else ""
        raise RecipeError(f"{source}{error}", error.key) from None


def from_dict(values: Mapping[str, Any]) -> Recipe:
    """The recipe that a nested dict describes, as TOML or `to_dict` gives it.

    Raises:
        RecipeError: an unknown key, a missing one, a wrong type, or a value out of range; the key is in `.key`.
    """
    _refuse_unknown(values, Recipe)
    parts: dict[str, Any] = {}
    for key, value in values.items():
        if key == "semantics":
            parts[key] = _flat_semantics(value)
        elif key == "accept":
            if not isinstance(value, list | tuple):
                raise RecipeError(f"accept must be a list of tables, written [[accept]], found {_shown(value)}", key)
            parts[key] = tuple(_table(Accept, entry) for entry in value)
        elif key in TABLES:
            parts[key] = _table(TABLES[key], value)
        else:
            parts[key] = value
    return Recipe(**parts)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a nested dict that strict JSON can write and `from_dict` reads back to an equal recipe.

    What is None is left out; an infinite threshold is the text "inf".
    """
    plain: dict[str, Any] = _plain(recipe)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        pairs = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: _plain(held) for name, held in pairs.items() if held is not None}
    if isinstance(value, tuple):
        return [_plain(held) for held in value]
    if isinstance(value, dict):
        return dict(value)
    return str(value) if isinstance(value, float) and isinf(value) else value


def _table(table: type[Table], value: Any) -> Table:
    """One table of the recipe from the dict that was read for it."""
    title = table.title
    if not isinstance(value, Mapping):
        first = fields(table)[0].name
        raise RecipeError(
            f"{title} must be a table, found {_shown(value)}: set its keys, such as {title}.{first}", title
        )
    _refuse_unknown(value, table)
    needed = [f.name for f in fields(table) if f.default is MISSING]
    for name in needed:
        if name not in value:
            words = table.rules[name].words
            needs = f"[{title}] needs {', '.join(needed)}"
            raise RecipeError(f"{title}.{name} is missing: {needs}, and {name} is {words}", title)
    return table(**value)


def _flat_semantics(value: Any) -> dict[str, str]:
    """Knob to value, whether the knobs were written as quoted dotted names or as nested tables."""
    if not isinstance(value, Mapping):
        raise RecipeError(f"semantics must be a table of knobs, found {_shown(value)}", "semantics")
    flat = {}
    for knob, asked in _leaves(value):
        if not isinstance(asked, str):
            raise RecipeError(f"semantics: {knob} must be a text, found {_shown(asked)}", f"semantics.{knob}")
        flat[knob] = asked
    return flat


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _held(key: str, value: Any, rule: Rule) -> Any:
    """The value as the recipe holds it, or a refusal that says what the key takes."""
    try:
        held = rule.convert(value)
        ok = rule.holds(held)
    except (TypeError, ValueError, OverflowError):
        ok = False
    if ok:
        return held
    near = difflib.get_close_matches(str(value).lower(), rule.choices, 1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    raise RecipeError(f"{key} must be {rule.words}, found {_shown(value)}{hint}", key)


def _refuse_unknown(values: Mapping[str, Any], table: type[Table]) -> None:
    """Refuse the first key that the table does not have, naming the nearest that exists."""
    valid = [f.name for f in fields(table)]
    for name in values:
        if name not in valid:
            key = table.dotted(name)
            near = _nearest(key)
            hint = f"; did you mean {near}?" if near else ""
            owner = f"[{table.title}]" if table.title else "a recipe"
            raise RecipeError(f"unknown key {key}{hint} ({owner} has {', '.join(valid)})", key)


def _nearest(key: str) -> str | None:
    """The valid dotted key that an unknown one most likely means, if any is near."""
    tables: tuple[type[Table], ...] = (Recipe, *TABLES.values(), Accept)
    valid = {table.dotted(f.name): f.name for table in tables for f in fields(table)}
    name = key.split(".")[-1]
    same_name = [dotted for dotted, last in valid.items() if last == name]
    if same_name:
        return difflib.get_close_matches(key, same_name, 1, cutoff=0.0)[0]
    near = difflib.get_close_matches(name, valid.values(), 1)
    candidates = [dotted for dotted, last in valid.items() if last in near]
    return next(iter(difflib.get_close_matches(key, candidates, 1, cutoff=0.0)), None)


def _shown(value: Any) -> str:
    """A value as an error message quotes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_file(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"the recipe file {path} does not exist: give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe file {path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise RecipeError(f"the recipe file {path} cannot be read: {error.strerror}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", reason)
        line = (place and place[1]) or max(1, len(text.splitlines()))
        raise RecipeError(f"{path}:{line}: not valid TOML: {reason}") from None


def _parse_set(text: str) -> tuple[tuple[str, ...], Any]:
    """The keys and the value of one `KEY=VALUE`; the knob in a semantics key is one key, quoted or not."""
    left, equals, right = text.partition("=")
    try:
        if not equals:
            raise ValueError
        keys = _only_path(tomllib.loads(f"{left.strip()} = 0"))
    except ValueError:
        raise RecipeError(f"--set takes KEY=VALUE, such as optimizer.lr=0.1, found {text!r}") from None
    if keys[0] == "semantics" and len(keys) > 1:
        keys = ("semantics", ".".join(keys[1:]))
    return keys, stated(right)


def stated(text: str) -> Any:
    """The TOML value that a text is; the text itself where it is none, so that a word needs no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    return parsed["value"] if len(parsed) == 1 else text.strip()


def _only_path(parsed: Mapping[str, Any]) -> tuple[str, ...]:
    """The one path of keys in a dict that holds one leaf."""
    ((key, inner),) = parsed.items()
    return (key, *_only_path(inner)) if isinstance(inner, Mapping) else (key,)


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    """Set one key of a nested dict, and remove the one that it stands instead of."""
    dotted = ".".join(keys)
    *outer, last = keys
    table = values
    for depth, key in enumerate(outer):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            plain = ".".join(keys[: depth + 1])
            raise RecipeError(f"{plain} is not a table, so {dotted} cannot be set", dotted)
    table[last] = value
    instead = _INSTEAD_OF.get(keys)
    if instead is not None:
        table.pop(instead[-1], None)
