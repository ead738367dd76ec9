"""The study: what was tried, kept durably, and what to try next. The only importer of Optuna.

The study on disk gets exactly one write per candidate, when all is known about it: a kill loses at most the candidate
in flight, and two processes on one study meet in short transactions only. Proposals are made in memory: no point that
is illegal or known becomes a trial.
"""

from __future__ import annotations

import atexit
import difflib
import logging
import math
import os
import random
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from wmmagen import __version__, choose, seeds
from wmmagen.arch import Arch
from wmmagen.config import NEUTRAL, KernelConfig, Operation, operation_values, parse, spell
from wmmagen.config import name as name_of
from wmmagen.errors import ConfigError, Fault, OutOfTime, StudyError
from wmmagen.records import Outcome, Record
from wmmagen.space import Space, Value, point_of

#: Where studies lie, below the current folder.
FOLDER = Path("sweeps")
SUFFIX = ".db"

#: Seconds that a process waits for another one's transaction; each takes milliseconds.
_BUSY_S = 120
_ABOUT = "wmmagen"
_RECORD = "record"
_FINALS = "finals"
_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
#: A URL template and the query of a URL begin with these; a file below such a folder could not be named.
_URL_MARKS = "?{}"

#: So many times or estimates are told before the search narrows; until then points are drawn.
_STARTUP = 8
#: Where a guess orders them, those points are the best of so many that were drawn evenly, …
_POOL = 256
#: … but each so manieth one is any point, because a guess may be wrong about a whole part of the space.
_EVEN_EVERY = 4
#: One proposal in so many is drawn by TPE, the others are neighbours of the best point. Steps are quicker where the
#: best is near, draws leave a valley that steps cannot; on made-up costs, half of each had the best of the worst ends.
_DRAWN_EVERY = 2
#: Draws of TPE for one proposal. Where all were illegal or known, it has converged on what is known.
_DRAWS = 12


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.CRITICAL)


# ---------------------------------------------------------------------------------------------------------------------
# The study on disk.


@dataclass(frozen=True)
class About:
    """What a study is about; written once, when it begins.

    Attributes:
        arch: ``sm_75``.
        operation: ``key=value,…``.
        problem: ``MxNxK``.
        fixed: ``key=value,…`` of the keys that were not searched when it began.
        version: of wmmagen, when it began.
    """

    arch: str
    operation: str
    problem: str
    fixed: str = ""
    version: str = __version__

    def to_json(self) -> dict[str, str]:
        """As plain values."""
        return asdict(self)


class Study:
    """Records that outlive the process. :func:`open_study` and :func:`find_study` make it.

    Attributes:
        name: of the study.
        url: of its storage.
        about: what it is about.
    """

    def __init__(self, study: optuna.Study, url: str, about: About) -> None:
        self.name = study.study_name
        self.url = url
        self.about = about
        self._study = study
        self._read: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep ``record``: one transaction, durable when this returns."""
        value = record.timing.median_us if record.ranks and record.timing else None
        attributes = {_RECORD: record.to_json()}
        with _speaking(self.url):
            self._study.add_trial(create_trial(state=_state(record), value=value, user_attrs=attributes))

    def records(self) -> list[Record]:
        """Every record kept so far, by whichever process, in the order in which they were kept.

        Raises:
            StudyError: the study holds a trial that is no record.
        """
        with _speaking(self.url):
            trials = self._study.get_trials(deepcopy=False)
        # A trial is written whole and never again, so what was read once need not be read again.
        self._read.extend(self._record(trial) for trial in trials[len(self._read) :])
        return list(self._read)

    def keep_finals(self, records: Sequence[Record]) -> None:
        """Keep ``records``, leaders that were measured again in turns, instead of those kept before."""
        with _speaking(self.url):
            self._study.set_user_attr(_FINALS, [record.to_json() for record in records])

    def finals(self) -> list[Record]:
        """What :meth:`keep_finals` kept last.

        Raises:
            StudyError: the study holds something else there.
        """
        with _speaking(self.url):
            kept = self._study.user_attrs.get(_FINALS, [])
        try:
            return [Record.from_json(document) for document in kept]
        except (KeyError, TypeError, ValueError) as error:
            raise StudyError(
                f"{_without_password(self.url)}: the finals of study {self.name} are no records of wmmagen: {error}",
                "give --study another name",
            ) from None

    def _record(self, trial: FrozenTrial) -> Record:
        try:
            return Record.from_json(trial.user_attrs[_RECORD])
        except (KeyError, ValueError) as error:
            where = f"{_without_password(self.url)}: trial {trial.number} of study {self.name}"
            raise StudyError(
                f"{where} is no record of wmmagen: {error}",
                "give --study another name",
            ) from None


def _state(record: Record) -> TrialState:
    """What other readers of the storage see: timed; right or open, but without a time that counts; or failed."""
    if record.ranks:
        return TrialState.COMPLETE
    return TrialState.PRUNED if record.outcome in (Outcome.OK, Outcome.UNVERIFIED) else TrialState.FAIL


def check_name(name: str) -> None:
    """Return where a study can be called ``name``.

    Raises:
        StudyError: it cannot.
    """
    if not _STUDY_NAME.fullmatch(name):
        raise StudyError(
            f"{name!r} is no name of a study",
            "at most 100 letters, digits and . _ + -, beginning with a letter or a digit",
        )


def open_study(
    name: str,
    storage: str | Path | None = None,
    *,
    arch: Arch,
    operation: Operation,
    problem: str,
    fixed: Mapping[str, Value] | None = None,
) -> Study:
    """The study called ``name``: the one that is there, or a new one.

    Args:
        name: letters, digits and ``. _ + -``.
        storage: the path of an SQLite file or the URL of a database; None for ``sweeps/<name>.db``.
        arch, operation, problem: what it is about.
        fixed: keys that are not searched; noted where the study is new.

    Raises:
        StudyError: no such name or storage can be, or the study there is about something else.
    """
    check_name(name)
    values = operation_values(operation)
    # What is not there is not said, so that studies of before it could be there go on.
    pairs = {key: value for key, value in values.items() if key not in NEUTRAL or value != NEUTRAL[key]}
    about = About(arch.name, _pairs(pairs), problem, _pairs(fixed or {}))
    url, path = _locate(storage if storage is not None else FOLDER / f"{name}{SUFFIX}")
    if path is not None and not os.path.exists(path):
        _begin(path, name, about)
    if path is not None:
        _demand_database(path)
    study = _join(url, name, about)
    _demand_same(study, about)
    return study


def find_study(name_or_path: str, folder: Path | None = None) -> Study:
    """The study of a name in ``folder`` (``sweeps`` below the current one), or the one that a path or URL names.

    Raises:
        StudyError: there is none; names the nearest one that is there.
    """
    folder = FOLDER if folder is None else folder
    if "://" in name_or_path:
        url, file = _locate(name_or_path)
        if file is not None:
            _demand_database(file)
        return _open_existing(url, None)
    path = Path(name_or_path)
    if not os.path.isfile(path):
        path = folder / (name_or_path if name_or_path.endswith(SUFFIX) else f"{name_or_path}{SUFFIX}")
    if not os.path.isfile(path):
        raise StudyError(
            f"there is no study {name_or_path!r}, neither as a file nor in {folder}", _nearest(path.stem, folder)
        )
    place = _writable(path)
    _demand_database(place)
    return _open_existing(_locate(place)[0], path.stem)


def _writable(path: Path) -> Path:
    """``path``, or a copy of it where SQLite cannot write: it has to even to read a study in WAL mode."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return path
    folder = tempfile.mkdtemp(prefix="wmmagen-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for part in path.parent.glob(f"{path.name}*"):  # the study and what is not yet merged into it
        if part.name.removeprefix(path.name) in ("", "-wal"):
            shutil.copyfile(part, Path(folder, part.name))
    return Path(folder, path.name)


def _nearest(stem: str, folder: Path) -> str:
    known = sorted(p.stem for p in folder.glob(f"*{SUFFIX}")) if os.path.isdir(folder) else []
    if not known:
        return "`wmmagen sweep` begins one"
    near = difflib.get_close_matches(stem, known, n=1, cutoff=0.4)
    return (f"did you mean {near[0]}? " if near else "") + f"there: {' '.join(known)}"


def _pairs(values: Mapping[str, Value]) -> str:
    return ",".join(f"{key}={spell(value)}" for key, value in values.items())


def _locate(storage: str | Path) -> tuple[str, Path | None]:
    """The URL of ``storage``, and its file where it is one."""
    if isinstance(storage, str) and "://" in storage:
        in_file = re.fullmatch(r"sqlite(?:\+\w+)?:///(?!/?:memory:)([^?]+).*", storage)
        return storage, Path(in_file[1]) if in_file else None
    path = Path(storage)
    if any(mark in str(path) for mark in _URL_MARKS):
        raise StudyError(
            f"{path}: a study cannot lie there: {' '.join(_URL_MARKS)} mean something else in a URL",
            "give --storage a path without them",
        )
    return f"sqlite:///{path}", path


@contextmanager
def _speaking(url: str) -> Iterator[None]:
    """Turns what a storage says is wrong with it into a :class:`StudyError`."""
    try:
        yield
    except (OptunaError, SQLAlchemyError, ImportError, ValueError, LookupError, RuntimeError) as error:
        # The last three are what SQLAlchemy and Optuna say of a malformed URL, a damaged row, a later version's schema.
        said = str(error.__cause__ or error).splitlines()[0]
        raise StudyError(
            f"{_without_password(url)}: {said}", "see whether the storage is there and can be written"
        ) from error


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", url)


#: Schemas of a storage that this version of Optuna is known to read and write.
_SCHEMAS: set[str] = set()


def _connect(url: str, *, new: bool = False) -> optuna.storages.RDBStorage:
    """The storage at ``url``. What is ``new`` has the schema of this version.

    Optuna's own check of a schema runs every script of its history, so it is asked once for each schema.
    """
    _quiet()
    options: dict[str, Any] = {"connect_args": {"timeout": _BUSY_S}} if url.startswith("sqlite") else {}
    connect = partial(optuna.storages.RDBStorage, url, engine_kwargs=options)
    with _speaking(url):
        storage = connect(skip_compatibility_check=True)
        schema = storage.get_current_version()
        if schema not in _SCHEMAS:
            storage = storage if new else connect()
            _SCHEMAS.add(schema)
    return storage


def _begin(path: Path, name: str, about: About) -> None:
    """Make the file of a study, complete with what it is about.

    It is made beside its place and moved there as a whole, so that no other process ever opens half of one; where
    another one was quicker, its file stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as beside:
            made = Path(beside) / path.name
            with closing(sqlite3.connect(made)) as database:
                # Readers and a writer pass each other by; the file remembers the mode.
                database.execute("PRAGMA journal_mode=WAL")
            storage = _connect(f"sqlite:///{made}", new=True)
            with _speaking(f"sqlite:///{path}"):
                optuna.create_study(storage=storage, study_name=name).set_user_attr(_ABOUT, about.to_json())
            storage.remove_session()
            storage.engine.dispose()
            os.link(made, path)
    except FileExistsError:
        if not os.path.isfile(path):
            raise StudyError(f"{path}: a study cannot lie there", "give --storage another path") from None
    except OSError as error:
        raise StudyError(
            f"{path}: a study cannot be begun there: {error}", "give --storage a path that can be written"
        ) from None


def _demand_database(path: Path) -> None:
    """Raise StudyError where ``path`` is no storage of studies, before anything is written into it."""
    fix = "give the path of a study, or the name of a new one"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError as error:
        raise StudyError(
            f"{path}: cannot be opened: {error}", "see whether it is there, a file, and can be written"
        ) from None
    except sqlite3.Error as error:
        raise StudyError(f"{path}: is no study: {error}", fix) from None
    if not {"studies", "trials", "alembic_version"} <= tables:
        raise StudyError(f"{path}: is a database, but holds no study", fix)


def _join(url: str, name: str, about: About) -> Study:
    """The study ``name`` in a storage that is there, begun where it is not."""
    storage = _connect(url)
    with _speaking(url):
        study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        if _ABOUT not in study.user_attrs and not study.get_trials(deepcopy=False):
            study.set_user_attr(_ABOUT, about.to_json())
    return _wrap(study, url)


def _open_existing(url: str, preferred: str | None) -> Study:
    """The only study of a storage, or the one called ``preferred``."""
    storage = _connect(url)
    with _speaking(url):
        names = optuna.get_all_study_names(storage)
        name = preferred if preferred in names else names[0] if len(names) == 1 else None
        if name is None:
            holds = f"it holds {len(names)} studies: {' '.join(sorted(names))}" if names else "it holds no study"
            raise StudyError(f"{_without_password(url)}: {holds}", "give the path of a file with one study")
        return _wrap(optuna.load_study(storage=storage, study_name=name), url)


def _wrap(study: optuna.Study, url: str) -> Study:
    plain = study.user_attrs.get(_ABOUT)
    try:
        about = About(**(plain or {}))
    except TypeError:
        raise StudyError(
            f"{_without_password(url)}: study {study.study_name} was not begun by wmmagen", "give --study another name"
        ) from None
    return Study(study, url, about)


def _demand_same(study: Study, asked: About) -> None:
    held = study.about
    different = [
        f"{word} {there} (asked was {here})"
        for word, there, here in (
            ("arch", held.arch, asked.arch),
            ("problem", held.problem, asked.problem),
            ("operation", held.operation, asked.operation),
        )
        if there != here
    ]
    if different:
        raise StudyError(
            f"study {study.name} is about {'; '.join(different)}",
            "give --study another name, or ask for what it is about: its times compare with each other only",
        )


# ---------------------------------------------------------------------------------------------------------------------
# What to try next.


#: What a told point teaches.
Lesson = Literal["time", "estimate", "failure"]
#: What a point is likely to cost, told without compiling it.
Guess = Callable[[KernelConfig], float]


class Proposer:
    """The next point of a space that is worth a trial: legal, and not tried before.

    Seeds come first. Then, while too little is told, points drawn evenly from the space, or with a guess the best of
    many that were drawn, and some even ones; with enough told, neighbours of the best point in turn with what TPE draws
    from what it was told. That are times where there are times, and estimates where there are none: the two are never
    compared. A proposal depends on the space, the seed, the guess and what was told, and on nothing else: a sweep that
    is stopped and resumed goes on as if it had not been.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        exhaustive: bool = False,
        first: Sequence[KernelConfig] | None = None,
        guess: Guess | None = None,
    ) -> None:
        """Begin without knowledge.

        Args:
            space: where to search.
            seed: of the random draws.
            exhaustive: every point, in the order of the space.
            first: configurations to begin with; None for the known good ones of the architecture.
            guess: what a point is likely to cost, without compiling it; None where nothing tells.
        """
        self._space = space
        self._seed = str(seed)
        self._in_order = exhaustive
        begin = [] if exhaustive else seeds.for_space(space) if first is None else first
        self._first = [index for index in map(space.index, begin) if index is not None]
        self._seen: set[int] = set()
        self._next = 0
        self._told = 0
        self._times: dict[int, float] = {}
        self._estimates: dict[int, float] = {}
        self._guess = guess
        self._drawn: list[int] | None = None
        self._distributions = _distributions(space)
        # What TPE learns from: times, estimates, and the points that failed.
        self._taught: list[tuple[Lesson, FrozenTrial]] = []

    @property
    def tried(self) -> int:
        """Points of the space that were told."""
        return len(self._seen)

    def tell(self, record: Record) -> bool:
        """Learn what became of a point; a record of another space is passed over, and the answer is False."""
        index = self._index(record)
        if index is None:
            return False
        self._seen.add(index)
        self._told += 1
        self._times.pop(index, None)
        self._estimates.pop(index, None)
        if record.ranks and record.timing is not None:
            self._times[index] = record.timing.median_us
            self._teach("time", index, record.timing.median_us)
        elif record.ranks_by_estimate and record.estimate is not None:
            self._estimates[index] = record.estimate.us
            self._teach("estimate", index, record.estimate.us)
        elif record.foreign or record.outcome not in (Outcome.OK, Outcome.UNVERIFIED):
            self._teach("failure", index, math.inf)
        return True

    @property
    def _costs(self) -> dict[int, float]:
        """What the told points cost: their times, or where there are none their estimates."""
        return self._times or self._estimates

    def _index(self, record: Record) -> int | None:
        try:
            return self._space.index(parse(record.name))
        except ConfigError:
            # A name of a later version: it is none of this space's points.
            return None

    def _teach(self, kind: Lesson, index: int, value: float) -> None:
        params = _params(self._space, point_of(self._space.at(index)))
        self._taught.append((kind, create_trial(params=params, distributions=self._distributions, value=value)))

    def diverge(self, salt: int) -> None:
        """Draw differently from now on: another process has the same space, seed and knowledge."""
        self._seed = f"{self._seed}+{salt}"
        random.Random(self._seed).shuffle(self._first)
        self._drawn = None
        self._in_order = False

    def propose(self) -> KernelConfig | None:
        """A point that was not told yet; None where all were."""
        if len(self._seen) >= len(self._space):
            return None
        index = self._decided(self._seen, self._told, len(self._costs))
        return self._space.at(self._searched() if index is None else index)

    def foreseen(self, count: int, *, costed: bool) -> list[KernelConfig]:
        """The next points that are proposed whatever becomes of those before them, in their order; at most ``count``.

        Args:
            costed: whether records may bring times or estimates that rank; if not, no proposal ever depends on one.
        """
        seen = set(self._seen)
        found: list[int] = []
        while len(found) < count and len(seen) < len(self._space):
            index = self._decided(seen, self._told + len(found), len(self._costs) + (len(found) if costed else 0))
            if index is None:
                break
            found.append(index)
            seen.add(index)
        return [self._space.at(index) for index in found]

    def _decided(self, seen: set[int], told: int, costs: int) -> int | None:
        """The next point, where it follows from which ones were told; None where it depends on their costs."""
        if self._in_order:
            return next(index for index in range(self._next_unseen(), len(self._space)) if index not in seen)
        seed = next((index for index in self._first if index not in seen), None)
        if seed is not None:
            return seed
        if costs >= _STARTUP:
            return None
        likely = None
        if self._guess is not None and told % _EVEN_EVERY:
            likely = next((index for index in self._pool() if index not in seen), None)
        return likely if likely is not None else self._unseen(self._rng(told), seen)

    def _pool(self) -> list[int]:
        """Points drawn evenly, the best guess first."""
        if self._drawn is None:
            assert self._guess is not None
            size = len(self._space)
            drawn = random.Random(f"{self._seed}/pool").sample(range(size), min(_POOL, size))
            guessed = [(self._guess(self._space.at(index)), index) for index in drawn]
            self._drawn = [index for _, index in sorted(guessed)]
        return self._drawn

    def _next_unseen(self) -> int:
        while self._next in self._seen:
            self._next += 1
        return self._next

    def _rng(self, told: int) -> random.Random:
        return random.Random(f"{self._seed}/{told}")

    def _searched(self) -> int:
        rng = self._rng(self._told)
        drawn = self._draw(rng) if self._told % _DRAWN_EVERY == 0 else None
        return drawn if drawn is not None else self._near_best(rng)

    def _draw(self, rng: random.Random) -> int | None:
        """A new point that TPE draws; None where it drew none."""
        _quiet()
        # A new study each time: a sampler reads a study's trials once and is not told of those that are added later.
        memory = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        memory.add_trials(self._lessons())
        sampler = optuna.samplers.TPESampler(seed=rng.getrandbits(32), n_startup_trials=1, constant_liar=False)
        asked = create_trial(state=TrialState.RUNNING)
        for _ in range(_DRAWS):
            params = sampler.sample_relative(memory, asked, self._distributions)
            assert params.keys() == self._distributions.keys(), "a draw names every axis"
            index = self._space.index_of(_point(self._space, params))
            if index is not None and index not in self._seen:
                return index
        return None

    def _lessons(self) -> list[FrozenTrial]:
        passed_over = "estimate" if self._times else "time"
        return [trial for kind, trial in self._taught if kind != passed_over]

    def _near_best(self, rng: random.Random) -> int:
        """A new neighbour of the best point, or any new point where all are known."""
        costs = self._costs
        best = min(costs, key=lambda index: (costs[index], index))
        around = map(self._space.index, self._space.neighbours(self._space.at(best)))
        new = [index for index in around if index is not None and index not in self._seen]
        return rng.choice(new) if new else self._unseen(rng, self._seen)

    def _unseen(self, rng: random.Random, seen: set[int]) -> int:
        size = len(self._space)
        if 2 * len(seen) < size:
            while (index := rng.randrange(size)) in seen:
                pass
            return index
        return rng.choice([index for index in range(size) if index not in seen])


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    """What TPE draws: the place among the values of each axis that is open; ordered for counts."""
    found: dict[str, BaseDistribution] = {}
    for name, values in space.live.items():
        last = len(values) - 1
        if last > 0:
            ordered = name in space.ordered
            found[name] = IntDistribution(0, last) if ordered else CategoricalDistribution(range(last + 1))
    return found


def _params(space: Space, point: Mapping[str, Value]) -> dict[str, int]:
    return {name: values.index(point[name]) for name, values in space.live.items() if len(values) > 1}


def _point(space: Space, params: Mapping[str, int]) -> dict[str, Value]:
    return {name: values[params[name]] if name in params else values[0] for name, values in space.live.items()}


# ---------------------------------------------------------------------------------------------------------------------
# The sweep.

Trial = Callable[[KernelConfig], Record]


@dataclass(frozen=True)
class Ahead:
    """What may be done for a point before its turn comes.

    Attributes:
        begin: is handed points that will be tried whatever becomes of those before them, each once.
        reach: how many points ahead, the one whose turn it is included.
        costed: whether trials may bring times or estimates that rank.
    """

    begin: Callable[[KernelConfig], None]
    reach: int
    costed: bool


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, after a record.

    Attributes:
        tried: points of the space that are known, from earlier runs and other processes too.
        wanted: how many of them the sweep is to know; the whole space where no number was asked for.
        new: candidates of this run.
        best: the fastest record so far, by its time or, where no time ranks, by its estimate; None without either.
        seconds: since this run began.
    """

    tried: int
    wanted: int
    new: int
    best: Record | None
    seconds: float


@dataclass(frozen=True)
class SweepResult:
    """What a sweep ended with.

    Attributes:
        records: all of the study, in the order in which they were kept.
        new: candidates of this run.
        stopped: ``trials``, ``budget`` or ``exhausted``.
        seconds: that this run took.
    """

    records: tuple[Record, ...]
    new: int
    stopped: str
    seconds: float


def sweep(
    space: Space,
    trial: Trial,
    study: Study,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    exhaustive: bool = False,
    counts: Callable[[Record], bool] = lambda record: True,
    ahead: Ahead | None = None,
    guess: Guess | None = None,
    on_record: Callable[[Record, Progress], None] | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> SweepResult:
    """Try points of ``space`` until so many are known, the time is over, or none is left.

    Points that the study knows are not tried again and count. Each record is kept as soon as it is known; whatever
    ends the sweep, an interrupt or an error of ``trial``, the records before it are kept.

    Args:
        space: where to search.
        trial: what tries one point.
        study: where records are kept.
        trials: points of the space to know in the end, this run's and earlier ones; None for all.
        budget_s: seconds after which no new point is begun; None for no limit. A trial that raises OutOfTime ends the
            sweep, too, and leaves no record.
        exhaustive: every point, in the order of the space.
        counts: whether an earlier record settles its point; where it does not, the point is open again.
        ahead: what is begun before its turn. It changes no record and no order.
        guess: what a point is likely to cost; it orders the first trials.
        on_record: told of each new record.
        seed: of the random draws.
        clock: seconds, from any origin.

    Raises:
        RequestError: the space holds nothing that can be tried.
        WmmagenError: whatever ``trial`` raises that is no fault of a kernel; a fault is recorded.
    """
    space.demand()
    start = clock()
    wanted = len(space) if trials is None else min(trials, len(space))
    proposer = Proposer(space, seed=seed, exhaustive=exhaustive, guess=guess)
    records: list[Record] = []
    counted: list[Record] = []
    # What this run has tried counts whatever is said of it: nothing is tried twice in one run.
    own: set[str] = set()
    begun: set[KernelConfig] = set()

    def settled(record: Record) -> bool:
        return record.name in own or counts(record)

    counted += [r for r in _refresh(study, records) if settled(r) and proposer.tell(r)]
    while not (stopped := _ended(proposer, wanted, len(space), budget_s is not None and clock() - start >= budget_s)):
        if ahead is not None:
            _begin_ahead(ahead, proposer, wanted, begun)
        config = proposer.propose()
        assert config is not None
        try:
            record = _outcome(trial, config, study.about)
        except OutOfTime:
            stopped = "budget"
            break
        own.add(record.name)
        _keep(study, record)
        arrived = _refresh(study, records)
        counted += [r for r in arrived if settled(r) and proposer.tell(r)]
        if sum(other.name == record.name for other in arrived) > 1:
            # Another process goes the same way a little ahead; one of the two has to leave it.
            proposer.diverge(os.getpid())
        if on_record is not None:
            choice = choose.choose(counted) or choose.by_estimate(counted)
            best = choice.best if choice else None
            on_record(record, Progress(proposer.tried, wanted, len(own), best, clock() - start))
    return SweepResult(tuple(records), len(own), stopped, clock() - start)


def _begin_ahead(ahead: Ahead, proposer: Proposer, wanted: int, begun: set[KernelConfig]) -> None:
    for config in proposer.foreseen(min(ahead.reach, wanted - proposer.tried), costed=ahead.costed):
        if config not in begun:
            begun.add(config)
            ahead.begin(config)


def _refresh(study: Study, records: list[Record]) -> list[Record]:
    """Add the records that were kept since, by any process, to ``records``, and return them."""
    arrived = study.records()[len(records) :]
    records.extend(arrived)
    return arrived


def _ended(proposer: Proposer, wanted: int, size: int, late: bool) -> str:
    """Why no further point is to be tried; empty where one is."""
    if proposer.tried >= size:
        return "exhausted"
    if proposer.tried >= wanted:
        return "trials"
    return "budget" if late else ""


def _outcome(trial: Trial, config: KernelConfig, about: About) -> Record:
    try:
        return trial(config)
    except Fault as fault:
        return Record(name_of(config), about.arch, about.problem, Outcome(fault.outcome), detail=fault.message)


def _keep(study: Study, record: Record) -> None:
    """Keep a finished record, also where an interrupt arrives meanwhile."""
    try:
        study.add(record)
    except KeyboardInterrupt:
        # The transaction is either whole or undone; only the study knows which.
        if record not in study.records():
            study.add(record)
        raise
