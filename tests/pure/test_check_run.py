"""Checked runs on a backend of NumPy, from a binary that nobody compiled: what is launched, and what is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes import NumpyBackend, binary_of
from wmmagen import cli, layout, reference, rules, show, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Launch, Pointer, pick
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Layout, Problem, parse
from wmmagen.defaults import read_config
from wmmagen.nvrtc import Binary
from wmmagen.timing import TimingProtocol

SM80 = ARCHS[80]
_HOW = "i16x16x16_w1x1_f1x2_k1_shared_{copy}_p8x8x{pad}_rows_fb1_resfrag_{store}_mb1_{raster}_sk1"


def config_of(
    acc: str = "f32",
    d: str = "f32",
    layout: str = "rr",
    align: str = "8x8x4",
    copy: str = "cpasync3",
    store: str = "direct",
    raster: str = "linear",
    epilogue: str = "linear",
) -> KernelConfig:
    pad = 0 if store == "direct" else 4 if acc == "f32" else 8
    how = _HOW.format(copy=copy, pad=pad, store=store, raster=raster)
    return parse(f"wmma_gemm_f16_{acc}_{d}_{layout}_{epilogue}_exact{align}__{how}")


CONFIG = config_of()
CONFIGS = [
    CONFIG,
    config_of(epilogue="none"),
    *(config_of(layout=layout) for layout in Layout if layout is not Layout.RR),
    config_of(d="f16", align="8", store="staged"),
    config_of(d="f16", align="2x4x1", copy="ld2", store="staged"),
    config_of(acc="f16", d="f16", align="8", copy="ld1"),
    config_of(acc="f16", align="4x2x2", store="staged", copy="cpasync4"),
    config_of(raster="grouped2"),
    config_of(raster="panels3", epilogue="none"),
]
configs = pytest.mark.parametrize("config", CONFIGS, ids=str)


class Watcher(NumpyBackend):
    """Keeps what it is asked to launch."""

    def __init__(self, **more: Any) -> None:
        super().__init__(arch=SM80, **more)
        self.launches: list[tuple[Launch, tuple[np.ndarray, ...]]] = []

    def run(self, binary: Binary, launch: Launch, buffers: Any, *, limit_s: float = 10.0) -> list[np.ndarray]:
        self.launches.append((launch, tuple(buffers)))
        return super().run(binary, launch, buffers, limit_s=limit_s)


def check(
    problem: Problem, config: KernelConfig = CONFIG, backend: NumpyBackend | None = None, **more: Any
) -> trial.Run:
    return trial.check_run(config, binary_of(config), backend or Watcher(), problem, **more)


@configs
def test_a_right_kernel_is_exact_on_the_hostile_set(config: KernelConfig) -> None:
    problems = trial.validation_problems(config)
    runs = trial.validate(config, binary_of(config), Watcher(), problems)
    assert [run.mismatch for run in runs] == [""] * (len(problems) + 1)
    assert all(run.exact and run.guaranteed for run in runs)
    assert len(runs) <= 10


@configs
def test_the_hostile_set_is_legal_and_has_everything(config: KernelConfig) -> None:
    problems = trial.validation_problems(config)
    for problem in problems:
        assert rules.check(config, SM80, problem) == []
    block_k = trial.derive.values(config)["BLOCK_K"]
    wanted = {0, 1, config.stages - 1, config.stages, config.stages + 1}
    assert wanted <= {p.k // block_k for p in problems}
    if config.operation.scaled:
        assert {(p.alpha, p.beta) for p in problems} == set(trial.reference.FACTORS)
        assert all(p.beta for p in problems if not p.k)


@configs
def test_pointers_are_aligned_as_promised_and_no_further(config: KernelConfig) -> None:
    backend = Watcher()
    check(trial.validation_problems(config)[0], config, backend)
    launch, _ = backend.launches[0]
    o = config.operation
    pointers = [value for value in launch.arguments if isinstance(value, Pointer)]
    staged = config.store == "staged"
    of_d = o.align_d * o.d.bits // 8 if staged else 32
    promised = [o.align_a * 2, o.align_b * 2, *([of_d] if o.scaled else []), of_d]
    assert [p.offset % 256 for p in pointers] == promised
    assert [p.buffer for p in pointers] == list(range(len(promised)))


def test_the_arguments_are_the_kernel_s() -> None:
    problem = Problem(CONFIG.operation, 32, 64, 16, 24, 72, 80, 96, 2.0, -3.0)
    backend = Watcher()
    assert check(problem, backend=backend).exact
    assert backend.launches[0][0].arguments[4:] == (64, 16, 24, 72, 96, 80, 2.0, -3.0)
    assert [type(x) for x in backend.launches[0][0].arguments[-2:]] == [float, float]


def _values(backend: Watcher, number: int, problem: Problem) -> np.ndarray:
    image = trial.layout.images(problem, shifts=trial.pointer_shifts(CONFIG))[number]
    return image.unpack(backend.launches[0][1][number])


def test_what_is_not_to_be_read_is_hostile() -> None:
    backend = Watcher()
    without_c = Problem.packed(CONFIG.operation, 32, 64, 16, 8, beta=0.0)
    assert check(without_c, backend=backend).exact
    assert np.isnan(_values(backend, 2, without_c)).all()
    assert np.isfinite(_values(backend, 0, without_c)).all()
    backend = Watcher()
    without_ab = Problem.packed(CONFIG.operation, 32, 64, 16, 8, alpha=0.0, beta=2.0)
    assert check(without_ab, backend=backend).exact
    assert np.isinf(_values(backend, 0, without_ab)).all()
    assert np.isnan(_values(backend, 1, without_ab)).all()
    assert np.isfinite(_values(backend, 2, without_ab)).all()


def test_a_c_that_is_not_read_needs_no_leading_dimension() -> None:
    problem = replace(Problem.packed(CONFIG.operation, 32, 64, 16, beta=0.0), ldc=0)
    assert check(problem).exact


def test_a_c_that_was_written_to_is_wrong() -> None:
    class Scribbler(Watcher):
        def run(self, *arguments: Any, **more: Any) -> list[np.ndarray]:
            back = super().run(*arguments, **more)
            back[2][-1] ^= 1
            return back

    run = check(Problem.packed(CONFIG.operation, 32, 64, 16), backend=Scribbler())
    assert not run.exact
    assert run.mismatch.startswith("C was written to")


@pytest.mark.parametrize(
    ("alpha", "beta", "wrong", "words"),
    [
        (1.0, 0.0, {"beta": 1.0}, "C was read although beta is 0"),
        (0.0, 2.0, {"alpha": 1.0}, "A or B was read although alpha is 0"),
        (2.0, 1.0, {"alpha": 1.0}, "alpha was ignored"),
        (2.0, 1.0, {"beta": 0.0}, "beta·C is missing"),
        (2.0, 4.0, {"beta": 1.0}, "beta was ignored"),
    ],
)
def test_a_kernel_with_other_factors_is_told_why(
    alpha: float, beta: float, wrong: dict[str, float], words: str
) -> None:
    class Liar(Watcher):
        def run(self, binary: Binary, launch: Launch, *arguments: Any, **more: Any) -> list[np.ndarray]:
            *kept, a, b = launch.arguments
            factors = {"alpha": a, "beta": b} | wrong
            return super().run(binary, replace(launch, arguments=(*kept, *factors.values())), *arguments, **more)

    run = check(Problem.packed(CONFIG.operation, 32, 64, 32, 8, alpha=alpha, beta=beta), backend=Liar())
    assert not run.exact
    assert words in run.mismatch


@pytest.mark.parametrize("size", [(0, 64, 16), (32, 0, 16)])
def test_no_element_of_d_launches_nothing(size: tuple[int, int, int]) -> None:
    backend = Watcher()
    assert check(Problem.packed(CONFIG.operation, *size), backend=backend).exact
    assert backend.launches == []


def test_inputs_are_proved_once_wherever_the_matrices_lie() -> None:
    problem = Problem.packed(CONFIG.operation, 48, 32, 16)
    one, other = (trial.exact_case(problem, shifts=layout.Shifts(a, 32, 64)) for a in (16, 32))
    assert one.inputs is other.inputs and one.want is other.want
    assert one.images[0].offset + 16 == other.images[0].offset


def test_what_was_proved_can_be_forgotten() -> None:
    problem = Problem.packed(CONFIG.operation, 16, 16, 16)
    held = trial.exact_case(problem)
    assert trial.exact_case(problem).inputs is held.inputs
    trial.forget_cases()
    assert trial.exact_case(problem).inputs is not held.inputs


def test_positions() -> None:
    run = check(Problem.packed(CONFIG.operation, 48, 96, 112, 24), pattern="positions")
    assert run.exact and run.guaranteed and run.pattern == "positions"
    case = trial.exact_case(Problem.packed(CONFIG.operation, 48, 96, 112, 24), "positions")
    assert case.inputs.a[5, 9] == (3 * 5 + 9) % 7
    assert case.inputs.b[9, 5] == (9 + 5 * 5) % 11


def test_above_a_size_the_check_is_freivalds() -> None:
    problem = Problem.packed(CONFIG.operation, 32, 64, 32, 8)
    below, above = check(problem), check(problem, above=32 * 64 * 32 - 1)
    assert below.method == "full"
    assert above.exact
    assert above.method.startswith("freivalds: 4 vectors, miss probability <= 2^-")
    assert check(problem, above=32 * 64 * 32).method == "full"
    assert check(problem, above=None).method == "full"
    assert above.as_json()["method"] == "freivalds"
    assert above.as_json()["vectors"] == 4
    assert 0 < float(str(above.as_json()["miss_probability"])) <= 2.0**-32
    assert above.method in show.runs([above])
    assert "freivalds" not in show.runs([below])
    assert show.runs([below, below]) == f"{show.runs([below])}, 2 launches, the same bytes"
    assert show.runs([above, above]) == f"{show.runs([above])}, 2 launches"
    assert show.runs([below, above, below]).count("\n") == 1

    def spoil(name: str, d: np.ndarray) -> None:
        d[17, 33] += 1

    wrong = check(problem, backend=Watcher(spoil=spoil), above=0)
    assert "D[17, 33]" in wrong.mismatch
    assert "1 of 2048 elements differ" in wrong.mismatch


def test_timing_has_a_c_and_its_factors() -> None:
    seen: list[tuple[Launch, int]] = []

    class Clock(Watcher):
        def time(self, binary: Binary, launch: Launch, buffers: Any, *arguments: Any, **more: Any) -> Any:
            seen.append((launch, len(buffers)))
            return super().time(binary, launch, buffers, *arguments, **more)

    problem = Problem.packed(CONFIG.operation, 32, 64, 16, alpha=0.375, beta=0.75)
    trial.time_it(CONFIG, binary_of(CONFIG), Clock(), problem, TimingProtocol())
    ((launch, buffers),) = seen
    assert buffers == 4
    assert launch.arguments[-2:] == (0.375, 0.75)


def test_timing_takes_the_data_that_the_protocol_names() -> None:
    problem = Problem.packed(CONFIG.operation, 32, 64, 16, alpha=2.0, beta=0.0)
    image, *_, last = layout.images(problem)
    made = {data: trial.subject_of(CONFIG, binary_of(CONFIG), problem, data) for data in ("normal", "integers")}
    values = {data: image.unpack(subject.buffers[0]).astype(np.float64) for data, subject in made.items()}
    assert np.array_equal(values["integers"], np.rint(values["integers"])) and np.any(values["integers"])
    assert not np.array_equal(values["normal"], np.rint(values["normal"]))
    assert all(np.array_equal(subject.buffers[-1], last.blank()) for subject in made.values())
    for data in made:
        assert trial.time_it(CONFIG, binary_of(CONFIG), Watcher(), problem, TimingProtocol(data=data)).data == data


def test_kernels_are_compared_on_buffers_that_they_share() -> None:
    problem = Problem.packed(CONFIG.operation, 32, 64, 16)
    subjects = [trial.subject_of(CONFIG, binary_of(CONFIG), problem) for _ in range(2)]
    assert all(one is two for one, two in zip(subjects[0].buffers, subjects[1].buffers, strict=True))
    assert trial.compare(subjects, Watcher(), TimingProtocol()).ratio(0, 1).tie


# ---------------------------------------------------------------------------------------------------------------------
# The command line.


@pytest.fixture
def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(Watcher(), arch))
    monkeypatch.setattr(trial, "build", lambda config, arch, compiler: (None, binary_of(config)))

    def run(config: KernelConfig, *options: str) -> tuple[int, dict[str, Any]]:
        status = cli.run(["validate", str(config), "--arch", "sm_80", *options, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


Ask = Callable[..., tuple[int, dict[str, Any]]]


def test_validate_takes_factors(ask: Ask) -> None:
    status, document = ask(CONFIG, "--problem", "32x64x16", "--alpha", "2", "--beta", "-0.5")
    assert status == 0
    for run in document["runs"]:
        assert (run["alpha"], run["beta"], run["method"]) == (2.0, -0.5, "full")
        assert run["leading_dimensions"] == [16, 64, 64, 64]
        assert run["miss_probability"] is None
    status, document = ask(CONFIG, "--beta", "4")
    assert status == 0
    assert {run["beta"] for run in document["runs"]} == {4.0}


@pytest.mark.parametrize("a", ["s8", "u8"])
def test_sums_beyond_their_type_are_asked_for_where_their_bits_are_known(a: str) -> None:
    plain = read_config(f"a={a}", SM80)
    problem = trial.overflowing(plain)
    assert problem is not None
    inputs = reference.exact_inputs(problem, pattern="extremes")
    assert inputs.guaranteed
    assert inputs.bound > inputs.limit
    for steps in ("linear", "scalerow", "scalecol+biascol+gelu", "relu"):
        assert trial.overflowing(read_config(f"a={a},d=s8,epilogue={steps}", SM80)) is None


def test_validate_refuses_factors_that_nothing_uses(ask: Ask) -> None:
    for option in ("--alpha", "--beta"):
        status, document = ask(config_of(epilogue="none"), option, "2")
        assert status == 2
        assert "epilogue=linear" in document["error"]["message"]


def test_validate_refuses_factors_that_leave_nothing_exact(ask: Ask) -> None:
    status, document = ask(CONFIG, "--problem", "32x64x16", "--alpha", "0.1")
    assert status == 2
    assert "13421773" in document["error"]["message"]


def test_validate_chooses_the_method(ask: Ask) -> None:
    status, document = ask(CONFIG, "--freivalds-above", "16")
    assert status == 0
    methods = {(run["alpha"] != 0 and "x0" not in run["problem"], run["method"]) for run in document["runs"]}
    assert methods == {(True, "freivalds"), (False, "full")}
    assert ask(CONFIG, "--full")[1]["runs"][0]["method"] == "full"
    assert ask(CONFIG, "--full", "--freivalds-above", "16")[0] == 2


def test_validate_knows_the_positions(ask: Ask) -> None:
    status, document = ask(CONFIG, "--pattern", "positions")
    assert status == 0
    assert {run["pattern"] for run in document["runs"]} == {"positions"}
