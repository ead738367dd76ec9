"""The files for another project: the rendered text with its launcher, its header, its self-test, and the manifest."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from wmmagen import coverage, manifest, render
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig
from wmmagen.errors import ConfigError, NotGeneratedYet, RequestError
from wmmagen.manifest import Evidence

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Comments and strings, whose words are no names.
_PROSE = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')
#: Beginnings of names that belong to CUDA, to the C++ library or to what wmmagen itself declares.
_TAKEN = ("cuda", "cu_", "CU", "nv", "wmma", "WMMA", "std", "__")
#: What an emitted kernel's further names end with; another kernel's name may not.
_ENDINGS = ("_kernel", "_supports", "_status_text", "_workspace_bytes", "_selftest", "_padded")
#: C and C++ words, and names of the C library and of CUDA's headers that every file of a program sees.
_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq main abort abs assert atexit calloc ceil clock close cos errno exit exp fabs
    fclose floor fmod fopen fprintf free fwrite getenv isalpha labs linux log malloc memchr memcmp memcpy memmove
    memset open pow printf puts qsort raise rand read realloc round signal sin sinh sprintf sqrt srand stderr stdin
    stdout strcmp strcpy strlen system tan tanh time tolower unix write j0 j1 y0 y1 gamma index NULL EOF INT_MAX
    size_t ptrdiff_t dim3 half half2 uint threadIdx blockIdx blockDim gridDim warpSize
    """.split()
)
#: CUDA's vector types: int4, uchar2, double3, …
_VECTOR_TYPE = re.compile(r"u?(char|short|int|long|longlong)[1-4]|(float|double)[1-4](_16a|_32a)?|[su](8|16|32|64)")


def check_symbol(symbol: str, text: str) -> str:
    """``symbol`` where it can name the exported function of ``text``, the same kernel's files under another name.

    Raises:
        ConfigError: it cannot.
    """
    taken = symbol in _RESERVED or symbol.startswith(_TAKEN) or _VECTOR_TYPE.fullmatch(symbol)
    own = {symbol, render.include_guard(symbol), *(symbol + ending for ending in _ENDINGS)}
    declared = own & set(_WORD.findall(_PROSE.sub("", text)))
    if not _IDENTIFIER.fullmatch(symbol) or taken or declared or symbol.endswith(_ENDINGS):
        raise ConfigError(
            f"--symbol {symbol!r} cannot name the exported function"
            + (": the files use that name themselves" if declared else ""),
            "a letter, then letters, digits and underscores, 200 at most; no word of C, C++ or CUDA, and no name that "
            f"ends with {' or '.join(_ENDINGS)}",
        )
    return symbol


def source_of(
    config: KernelConfig, arch: Arch, *, symbol: str | None = None, strict_isa: bool = False, padded: bool = False
) -> render.Source:
    """The rendered kernel, its launcher under ``symbol`` where one is given.

    Args:
        padded: whether ``symbol`` has to name the launcher on padded copies, too.

    Raises:
        ConfigError: ``symbol`` cannot name the function.
        NotGeneratedYet: no template makes ``config``, or it cannot be called on padded copies.
    """
    source = render.render(config, arch, strict_isa=strict_isa)
    if symbol is None or symbol == source.symbol:
        return source
    beside = render.render_header(config, arch) + render.render_selftest(config, arch)
    if padded:
        beside += "".join(_padding(config, arch, source.symbol).values())
    return render.render(config, arch, strict_isa=strict_isa, symbol=check_symbol(symbol, source.text + beside))


def emit(
    config: KernelConfig,
    arch: Arch,
    folder: Path,
    *,
    symbol: str | None = None,
    evidence: Evidence | None = None,
    padded: bool = False,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Write the files for another project, as :func:`prepared` makes them, and return their paths.

    Args:
        config, arch, folder, symbol, evidence, padded, overwrite: as those of :func:`prepared`.

    Raises:
        ConfigError: ``symbol`` cannot name a function.
        NotGeneratedYet: no template makes ``config``, or it cannot be called on padded copies.
        RequestError: a file of other content is in the way, or the folder cannot be written. Nothing was changed.
    """
    texts = prepared(config, arch, folder, symbol=symbol, evidence=evidence, padded=padded, overwrite=overwrite)
    return write_all(texts)


def prepared(
    config: KernelConfig,
    arch: Arch,
    folder: Path,
    *,
    symbol: str | None = None,
    evidence: Evidence | None = None,
    padded: bool = False,
    overwrite: bool = False,
) -> dict[Path, str]:
    """The files for another project, for :func:`write_all`; ``folder`` is made then where it is missing.

    These are ``<symbol>.cu``, ``<symbol>.h``, ``<symbol>_selftest.cu`` and ``manifest.json``, in which every kernel of
    the folder has its entry. Asked for ``padded``, ``<symbol>_padded.cu`` and ``<symbol>_padded.h`` stand before the
    manifest.

    Args:
        symbol: the exported function; the canonical name where it is None.
        evidence: kept in the manifest.
        padded: write what calls the kernel with any size, on padded copies, too.
        overwrite: replace files of other content.

    Raises:
        ConfigError: ``symbol`` cannot name a function.
        NotGeneratedYet: no template makes ``config``, or it cannot be called on padded copies.
        RequestError: a file of other content is in the way, or one cannot be read.
    """
    source = source_of(config, arch, symbol=symbol, padded=padded)
    name = source.symbol
    more = {folder / file: text for file, text in _padding(config, arch, name).items()} if padded else {}
    if not padded:
        _demand_no_other_padding(config, arch, name, folder)
    texts = {
        folder / f"{name}.cu": source.text,
        folder / f"{name}.h": render.render_header(config, arch, symbol=name),
        folder / f"{name}_selftest.cu": render.render_selftest(config, arch, symbol=name),
        **more,
    }
    for path, text in texts.items():
        _demand_free(path, text, overwrite)
    hashes = {path.name: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    path = folder / manifest.FILE
    texts[path] = manifest.joined(path, name, manifest.entry(source, hashes, evidence), overwrite=overwrite)
    return texts


def write_all(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Write each text, in their order, and return the paths.

    Raises:
        RequestError: a folder cannot be made or written.
    """
    for path, text in texts.items():
        write(path, text)
    return tuple(texts)


def _padding(config: KernelConfig, arch: Arch, name: str) -> dict[str, str]:
    """The files of the launcher on padded copies, by their names.

    Raises:
        NotGeneratedYet: ``config`` cannot be called so.
    """
    coverage.demand_padding(config)
    return {
        f"{name}_padded.cu": render.render_padding(config, arch, symbol=name),
        f"{name}_padded.h": render.render_padding_header(config, arch, symbol=name),
    }


def _demand_no_other_padding(config: KernelConfig, arch: Arch, name: str, folder: Path) -> None:
    """Return where no launcher on padded copies is left in ``folder`` that was written for another kernel.

    It would build beside this one, and give it copies that lie as the other one wants them.

    Raises:
        RequestError: there is one.
    """
    try:
        own = _padding(config, arch, name)
    except NotGeneratedYet:
        own = dict.fromkeys((f"{name}_padded.cu", f"{name}_padded.h"), "")
    for file, text in own.items():
        try:
            _demand_free(folder / file, text, overwrite=False)
        except RequestError:
            raise RequestError(
                f"{folder / file} is there, and calls another kernel of the name {name}",
                "choose another folder or --symbol, remove it, or say --padded --overwrite",
            ) from None


def selftest_command(files: Sequence[Path], arch: Arch) -> str:
    """The command that builds and runs the self-test of what :func:`emit` wrote, for a shell."""
    kernel, _, selftest, *_ = files
    program = os.path.join(os.curdir, selftest.with_suffix(""))  # an absolute path stays what it is
    # A folder may begin as an option does.
    sources = (os.path.join(os.curdir, file) if str(file).startswith("-") else str(file) for file in (kernel, selftest))
    built = shlex.join(["nvcc", f"-arch={arch}", "-o", program, *sources])
    return f"{built} && {shlex.quote(program)}"


def write(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it there, so that a reader sees the old file or the new one.

    Raises:
        RequestError: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise RequestError(f"{path.parent} cannot be written: {error.strerror}", "choose another folder") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise RequestError(f"{path} cannot be written: {error.strerror}", "choose another folder") from None


def may_write(folder: Path) -> bool:
    """Whether files can be written below ``folder``, as far as can be told without writing; it may be missing."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _demand_free(path: Path, text: str, overwrite: bool) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(f"{path} is there and is no file", "choose another folder or --symbol")
    if overwrite:
        return
    try:
        present = path.read_bytes() if os.path.exists(path) else text.encode()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", "choose another folder") from None
    if present != text.encode():
        raise RequestError(
            f"{path} exists and holds something else", "choose another folder or --symbol, or say --overwrite"
        )
