"""The proof of epilogues that needs no GPU: chains of steps on the executor, and mistakes in them. Writes its record.

    python tests/nvrtc/prove_epilogues.py [--archs sm_75,sm_80,sm_90] [--jobs N] [--to tests/nvrtc/records]

Each chain of :data:`CHAINS` is made with several of :data:`KERNELS` in turn, compiled, and validated on its hostile
problems: bit for bit where all steps are exact, else within the proved bound. Then each of :data:`MISTAKES` has to be
rejected. Exit status 0 where all of that is so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import coverage, emit, foundry, mutants, nvrtc, rules, show, trial
from wmmagen.arch import Arch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, name
from wmmagen.defaults import read_config
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry, Order
from wmmagen.mistakes import (
    CHAIN,
    CHAIN_CP,
    CHAIN_GELU,
    CHAIN_GLOBAL,
    GELU,
    GELU_DIRECT,
    GELUTANH,
    GELUTANH_DIRECT,
    Edit,
    Mutant,
)
from wmmagen.nvrtc import Binary
from wmmagen.render import render

#: Each step alone where it can be, steps in several orders, every operation of a formula, and all of C's types.
CHAINS = (
    "linear,c=f32,d=f16", "linear,c=f16,d=f32", "relu", "clamp", "scale", "gelu", "gelutanh", "silu", "biasrow",
    "biascol", "scalerow", "scalecol", "linear+relu", "linear+residual", "linear+biascol+relu",
    "linear+biascol+gelu", "linear+biascol+gelu,d=f16", "biascol+gelutanh,d=f16",
    "biascol+gelu+residual,d=f16,c=f32", "relu+biascol", "biasrow+silu", "biasrow+scalecol+residual",
    "linear+scalerow+clamp+residual", "scale+silu+residual", "clamp+residual+relu,d=f16",
    "scalerow+scalecol+biasrow+biascol+residual,d=f16",
    "linear+biasrow+biascol+scale+scalerow+scalecol+clamp+residual", "expr(acc*2-c+bias)", "expr(acc*0.1+c),d=f16",
    "expr(row<col?acc:-acc)", "expr(row*16+col+acc)", "expr(max(acc,c)-min(acc,8)/4)",
    "expr(acc==bias?row:acc>=c?acc:abs(acc)),d=f16", "expr(acc!=0?acc<=6?acc:6:c)",
    "expr(tanh(acc/8)*sqrt(abs(acc)+1))", "expr(exp(acc/16)+erf(bias))+clamp,d=f16,c=f32",
    "expr(acc/(1+exp(-1.702*acc)))", "relu+expr(acc*acc)+scale", "linear+expr(acc*pi-col)+gelutanh",
    *(f"{chain},a=s8,layout=rc" for chain in (
        "linear,d=s8", "linear,d=u8,c=f32", "scalecol+biascol,d=s8,c=f32", "biascol+scalerow+relu,d=u8,c=s32",
        "scale+scalerow+scalecol+residual,d=s8", "scalecol+biascol+gelu,d=s8,c=f16", "scalerow+scalecol,d=f32",
        "linear+biascol+silu,d=f16", "scale+expr(acc*0.5+bias)+clamp,d=bf16",
    )),
    "scalecol+biascol,a=u8,layout=rc,d=s8,c=f32", "biascol+scale,a=u8,layout=rc,d=u8,c=s32",
    "scalerow+gelutanh,a=u8,layout=rc,d=f32",
    *(f"{chain},a=f64" for chain in (
        "linear+biascol+relu", "scalerow+scalecol+residual", "linear+clamp", "gelu", "biascol+silu",
        "linear+gelutanh", "expr(tanh(acc/8)*sqrt(abs(acc)+1)+0.1)", "expr(exp(acc/16)+erf(bias)*col)",
    )),
)  # fmt: skip
#: Ways of making them: fed, copied and stored in all ways, columns loaded once and with every store.
KERNELS = (
    "warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1",
    "layout=cr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2",
    "layout=rc,feed=global,warps=1x2,frags=1x2,k_steps=2",
    "acc=f16,warps=1x1,frags=2x2,k_steps=2,copy=ld,stages=2",
    "layout=cc,inst=32x8x16,warps=1x1,frags=2x2,k_steps=2,copy=ld,stages=2,arrange_a=tiles,arrange_b=tiles",
    "store=staged,warps=1x1,frags=1x3,k_steps=2,copy=ld,stages=1",
    "store=staged,align_d=1,warps=1x1,frags=1x4,k_steps=2,copy=ld,stages=1",
    "store=staged,align_d=2,warps=2x2,frags=1x1,k_steps=2,copy=cpasync,stages=2",
    "residency=global,store=direct,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=1",
    "residue=predicated,layout=rr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=2",
    "residue=predicated,store=staged,layout=cr,align_d=2,warps=2x1,frags=1x3,k_steps=2,copy=cpasync,stages=3",
    "residue=predicated,store=direct,layout=cc,warps=1x2,frags=1x2,k_steps=2,copy=ld,stages=1",
    "batch=strided,layout=rc,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2",
    "batch=pointers,residue=predicated,align_d=2,warps=1x2,frags=1x3,k_steps=2,copy=cpasync,stages=2",
    "batch=pointers,store=direct,layout=cr,feed=global,warps=1x2,frags=1x1,k_steps=2",
)
#: How many ways each chain is made in.
EACH = 4

_BIAS = "__half2float(bias_of_columns.of[e])"
_ROW_OF_D = "d_tile + static_cast<long long>(row) * ldd + col"
#: Beside those of ``wmmagen mutants``, which are of every kind of kernel.
MISTAKES = (
    Mutant(
        "bounds-swapped", "the bounds of a clamp have changed places", "",
        (Edit("value < low ? low : (value > high ? high : value)",
              "value < high ? high : (value > low ? low : value)"),),
        (CHAIN_CP, CHAIN_GLOBAL), words="differ",
    ),
    Mutant(
        "steps-swapped", "an activation comes before the bias", "",
        (Edit("value = value + __half2float(bias_of_columns.of[e]);",
              "value = (value < 0.0f ? 0.0f : value) + __half2float(bias_of_columns.of[e]);"),
         Edit("        value = value < 0.0f ? 0.0f : value; ", "        ")),
        (CHAIN, CHAIN_GLOBAL), words="the step relu came before biascol",
    ),
    Mutant("bias-of-the-block", "every warp takes the bias of the first one's columns", "",
           (Edit("own_col = warp_col +", "own_col = block_col +"),), (CHAIN, CHAIN_GLOBAL),
           words="bias_col was read 16 elements before"),
    Mutant("bias-unhalved", "the bias is added in bits, not in values", "",
           (Edit(_BIAS, "static_cast<float>(__half_as_ushort(bias_of_columns.of[e]))"),),
           (CHAIN, CHAIN_GELU), words="differ"),
    Mutant("ldc-for-ldd", "rows of D are taken to be as far apart as those of C", "",
           (Edit(_ROW_OF_D, _ROW_OF_D.replace("ldd", "ldc")),),
           (CHAIN, CHAIN_CP), codes=("race", "race-between-blocks"), words="never written|guards"),
    Mutant("ldd-for-ldc", "rows of C are taken to be as far apart as those of D", "",
           (Edit("(row) * ldc + col", "(row) * ldd + col"),), (CHAIN, CHAIN_CP), words="differ"),
    Mutant("rounded-twice", "the sum is rounded to D's type before the bias is added", "",
           (Edit(f"value + {_BIAS}", f"__half2float(__float2half(value)) + {_BIAS}"),), (CHAIN,), words="differ"),
    Mutant("relu-left-out", "there is no activation", "",
           (Edit("value < 0.0f ? 0.0f : value", "value"),), (CHAIN, CHAIN_GLOBAL), words="the step relu is missing"),
    Mutant("tail-power-of-few-digits", "far below 0 GELU has an exponent of five digits", "",
           (Edit("exp2f(-0.721347511f", "exp2f(-0.72135f"),),
           (GELU_DIRECT, GELU.replace(",d=f16", "")), words="differ"),
    Mutant("quotient-scaled-once", "a divisor that is large is scaled, and the quotient not", "",
           (Edit("__fdividef(a, b * scale) * scale", "__fdividef(a, b * scale)"),),
           (GELUTANH_DIRECT, GELUTANH.replace(",d=f16", "")), words="differ"),
    Mutant("coarse-gelu", "GELU by a logistic function", "",
           (Edit("0.5f * (1.0f + erff(x * 0.70710677f))", "1.0f / (1.0f + expf(-1.702f * x))"),),
           (CHAIN_GELU,), words="differ"),
    Mutant("gelu-in-halves", "GELU of a value that is rounded to f16", "",
           (Edit("normal_cdf(value)", "normal_cdf(__half2float(__float2half(0.7f * value)) / 0.7f)"),),
           (CHAIN_GELU,), words="differ"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A chain made in one way."""

    number: int
    arch: Arch
    config: KernelConfig


@dataclass(frozen=True)
class Proved:
    """What became of one: ``wrong`` is empty where all is right; ``seen`` and ``bound`` are in ulp of D."""

    launches: int
    wrong: str
    seen: float | None
    bound: float | None


def cases(targets: Sequence[Arch]) -> Iterator[Case]:
    """Each chain in :data:`EACH` ways that are legal, other ones for other chains and architectures."""
    turn = 0
    for chain in CHAINS:
        for arch in targets:
            made = 0
            for offset in range(len(KERNELS)):
                if made == EACH:
                    break
                config = read_config(
                    f"epilogue={chain},{_fitting(KERNELS[(turn + offset) % len(KERNELS)], chain)}", arch
                )
                if rules.legal(config, arch) and not coverage.missing(config):
                    made += 1
                    yield Case(turn, arch, config)
            turn += 1


def _fitting(kernel: str, chain: str) -> str:
    """What a chain says itself is not said again."""
    keys = {key for key in ("a", "c", "d", "layout") if f",{key}=" in chain}
    return ",".join(pair for pair in kernel.split(",") if pair.partition("=")[0] not in keys)


def prove(config: KernelConfig, binary: Binary, number: int) -> Proved:
    """Validate one; the random fragment layouts are other ones for every launch and every configuration."""
    try:
        runs = trial.validate(config, binary, CpuBackend(seed=1000 * number), trial.validation_problems(config))
    except Fault as fault:
        return Proved(0, f"{fault.outcome}: {fault.message}", None, None)
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    errors = [run.error for run in runs if run.error is not None]
    far = (max(e.seen for e in errors), max(e.bound for e in errors)) if errors else (None, None)
    return Proved(len(runs), "; ".join(wrong), *far)


def line(case: Case, answer: Proved) -> str:
    """A line of the record: nothing in it depends on the machine or the hour."""
    document = {
        "arch": case.arch.name,
        "name": name(case.config),
        "fingerprint": render(case.config, case.arch).fingerprint,
        "launches": answer.launches,
        "right": not answer.wrong,
        "wrong": answer.wrong,
        "error_ulps": answer.seen,
        "error_bound_ulps": answer.bound,
    }
    return json.dumps(document, sort_keys=True)


def summary(done: Sequence[tuple[Case, Proved]]) -> list[str]:
    """What is committed beside the record."""
    exact = [answer for case, answer in done if case.config.operation.epilogue.exact]
    lines = [
        f"{len({str(case.config.operation.epilogue) for case, _ in done})} chains in {len(done)} kernels for "
        f"{', '.join(dict.fromkeys(case.arch.name for case, _ in done))}, on the CPU executor; {nvrtc.title()}",
        f"{sum(not answer.wrong for _, answer in done)} right, {sum(bool(answer.wrong) for _, answer in done)} not, "
        f"{len(exact)} of them bit for bit; {sum(answer.launches for _, answer in done)} checked launches",
        "farthest from float64, in ulp of D, beside the farthest proved bound:",
    ]
    farthest: dict[tuple[str, str], tuple[float, float]] = {}
    for case, answer in done:
        if answer.seen is not None and answer.bound is not None:
            key = (str(case.config.operation.epilogue), case.config.operation.d.name)
            seen, bound = farthest.get(key, (0.0, 0.0))
            farthest[key] = max(seen, answer.seen), max(bound, answer.bound)
    return [*lines, *(f"  {d} {chain:<45} {s:>9.4g} {b:>9.4g}" for (chain, d), (s, b) in farthest.items())]


def main() -> int:
    """Compile, validate, break, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90")
    parser.add_argument("--jobs", type=int, default=foundry.usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    targets = [archs.find(word) for word in asked.archs.split(",")]
    begin, wanted = time.monotonic(), list(cases(targets))
    sources = [render(case.config, case.arch) for case in wanted]
    with Foundry(asked.jobs) as makers:
        orders = (Order(s.text, s.kernel, case.arch) for s, case in zip(sources, wanted, strict=True))
        binaries = list(makers.compile_many(orders))
    for answer in binaries:
        if not isinstance(answer, Binary):
            raise answer
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        configs, numbers = [case.config for case in wanted], [case.number for case in wanted]
        done = list(zip(wanted, pool.map(prove, configs, binaries, numbers), strict=True))
    for case, proved in done:
        if proved.wrong:
            print(f"not right on {case.arch}: {name(case.config)}: {proved.wrong}", file=sys.stderr)
    broken = list(mutants.cases(MISTAKES, targets))
    rows = mutants.judge_all(broken, mutants.executor(), jobs=asked.jobs)
    for row in rows:
        if row.survived:
            print(show.mutant(row), file=sys.stderr)
    told = [*summary(done), "further mistakes: " + show.kill_rate(rows)]
    told.append(f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes")
    emit.write(asked.to / "epilogues.jsonl", "".join(f"{line(*entry)}\n" for entry in done))
    emit.write(asked.to / "epilogues.txt", "\n".join(told) + "\n")
    print("\n".join(told))
    return 0 if done and not any(a.wrong for _, a in done) and not any(row.survived for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
