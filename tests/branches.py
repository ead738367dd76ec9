"""Which parts and which branches of the templates the text of a kernel is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from wmmagen import render
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig

#: Parts that no card sees anything of: of the self-test, and of the launcher.
PARTS_OF_OTHERS = ("singles", "launcher", "status")
#: What parts of kernels have for headers.
MACROS_OF_OTHERS = ("contract",)


class _Marked(CodeGenerator):
    """Templates that tell their environment which way they go at each condition."""

    environment: Traced

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        if node.name in MACROS_OF_OTHERS:
            node.body = []
        super().visit_Macro(node, frame)

    def visit_If(self, node: nodes.If, frame: Frame) -> None:
        for place in (node, *node.elif_):
            place.body.insert(0, self._mark(place, "holds"))
        node.else_.insert(0, self._mark((node, *node.elif_)[-1], "does not"))
        super().visit_If(node, frame)

    def visit_CondExpr(self, node: nodes.CondExpr, frame: Frame) -> None:
        node.expr1 = self._passing(node, "holds", node.expr1)
        if node.expr2 is not None:
            node.expr2 = self._passing(node, "does not", node.expr2)
        super().visit_CondExpr(node, frame)

    def _mark(self, node: nodes.Node, way: str) -> nodes.Node:
        return nodes.ExprStmt(self._passing(node, way, nodes.Const(None)), lineno=node.lineno)

    def _passing(self, node: nodes.Node, way: str, value: nodes.Expr) -> nodes.Expr:
        branch = f"{self.name}:{node.lineno} {way}"
        while branch in self.environment.known:  # a line can have several conditions
            branch += "'"
        self.environment.known.add(branch)
        return nodes.Call(nodes.EnvironmentAttribute("passing"), [nodes.Const(branch), value], [], None, None)


class Traced(jinja2.Environment):
    """The generator's environment, which keeps what was reached.

    Attributes:
        known: every branch of the templates that were compiled.
        reached: branches that were taken, and templates that were loaded.
    """

    code_generator_class = _Marked

    def __init__(self, like: jinja2.Environment) -> None:
        alike = ("loader", "undefined", "trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape")
        super().__init__(**{name: getattr(like, name) for name in alike})
        self.known: set[str] = set()
        self.reached: set[str] = set()

    def passing(self, branch: str, value: Any) -> Any:
        """``value``, which a branch has."""
        self.reached.add(branch)
        return value

    def get_template(self, name: Any, *arguments: Any, **more: Any) -> jinja2.Template:
        self.reached.add(name)
        return super().get_template(name, *arguments, **more)


@dataclass(frozen=True)
class Trace:
    """What the texts of some kernels are made of.

    Attributes:
        branches: all that the templates of these kernels have.
        reached: for each kernel, the branches and the templates that its text took.
    """

    branches: frozenset[str]
    reached: Mapping[KernelConfig, frozenset[str]]

    def anywhere(self) -> frozenset[str]:
        """What any of the kernels took."""
        return frozenset().union(*self.reached.values())


def traced(configs: Iterable[KernelConfig], arch: Arch) -> Trace:
    """Render each of the ``configs``, without its launcher, which a card does not run, and see what of."""
    environment, reached = Traced(render._environment()), {}
    with mock.patch.object(render, "_environment", return_value=environment):
        for config in configs:
            environment.reached = set()
            context = render._context(config, arch, "gemm", "gemm_kernel", strict_isa=False)
            render._fill("gemm_wmma.cu.jinja", context, constants="", guards="", launcher="")
            reached[config] = frozenset(environment.reached)
    return Trace(frozenset(environment.known), reached)
