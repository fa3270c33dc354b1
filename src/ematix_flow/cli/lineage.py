"""`flow lineage`: where a table or a column comes from, and what depends on it, over all pipelines of a module."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load, prints_on_stderr
from ematix_flow.errors import UnknownName, closest, listed
from ematix_flow.watch.lineage import Dataset, Edge, LineageGraph, Node

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_WORDS = {
    "IDENTITY": "as it is",
    "TRANSFORMATION": "transformed",
    "AGGREGATION": "aggregated",
    "CONDITIONAL": "decides",
    "WINDOW": "orders or groups",
}


def configure(parser: CommandParser) -> None:
    """A table or a column, and which way to look."""
    parser.add_argument("what", metavar="TABLE[.COLUMN]", help="a table, as much of its name as is unique; or a column")
    add_module(parser)
    parser.add_argument(
        "--format", dest="shape", choices=("text", "json", "mermaid"), default="text", help="how to answer"
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--upstream", action="store_true", help="only where it comes from")
    ways.add_argument("--downstream", action="store_true", help="only what depends on it")
    parser.say(
        "Nothing is run and nobody is connected to: SQL and declarations are read.",
        example="flow lineage customer_dim --module my_pipelines\n"
        "flow lineage analytics.customer_dim.email --module my_pipelines --upstream\n"
        "flow lineage customer_dim --module my_pipelines --format mermaid",
        then="flow run --module M NAME --lineage file:///tmp/lineage.jsonl   tells others of every run",
    )


def run(args: Namespace, console: Console) -> int:
    """Look it up in the graph of all declared pipelines."""
    from ematix_flow.run.declared_lineage import declared_lineage

    load(args.module)
    with prints_on_stderr():  # pipelines' functions are called for their SQL
        graph = declared_lineage()
    for gap in dict.fromkeys(gap for lineage in graph.lineages for gap in lineage.gaps):
        console.note(f"not known: {gap}", "dim")
    node = _found(args.what, graph)
    above = [] if args.downstream else graph.upstream(node)
    below = [] if args.upstream else graph.downstream(node)
    if console.is_json or args.shape == "json":
        console.json(_as_json(node, above, below, graph))
    elif args.shape == "mermaid":
        for line in _mermaid(node, [*above, *below]):
            console.line(line)
    else:
        for line in _text(node, above, below, graph):
            console.line(line)
    return 0


def _found(what: str, graph: LineageGraph) -> Node:
    """The table or column that is meant.

    Raises:
        UnknownName: None is called so, or several are.
    """
    datasets = graph.datasets()
    tables = [dataset for dataset in datasets if _ends_with(dataset, what)]
    if not tables and "." in what:
        table, _, column = what.rpartition(".")
        owners = [dataset for dataset in datasets if _ends_with(dataset, table)]
        nodes = [
            Node(owner, name)
            for owner in owners
            for name in graph.columns_of(owner)
            if name.casefold() == column.casefold()
        ]
        if len(nodes) == 1:
            return nodes[0]
        if len(owners) == 1:
            names = graph.columns_of(owners[0])
            raise UnknownName(
                f"'{column}' is not a known column of {_short(owners[0])}.",
                fix=closest(column, names) or f"known are {listed(names)}",
            )
        tables = [node.dataset for node in nodes] or owners
    if len(tables) == 1:
        return Node(tables[0])
    if tables:
        raise UnknownName(
            f"{len(tables)} tables are called '{what}'.",
            fix=f"write more of the name: {listed(str(table) for table in tables)}",
        )
    shown = sorted({_short(dataset) for dataset in datasets})
    raise UnknownName(
        f"No pipeline of the module reads or writes '{what}'.", fix=closest(what, shown) or f"known: {listed(shown)}"
    )


def _ends_with(dataset: Dataset, what: str) -> bool:
    """Whether a name is the dataset's, or the end of it: `t`, `schema.t`, `db.schema.t`, `folder/schema/t`."""
    whole, wanted = str(dataset).casefold(), what.casefold()
    return whole == wanted or whole.endswith((f".{wanted}", f"/{wanted}", f"/{wanted.replace('.', '/')}"))


def _short(dataset: Dataset) -> str:
    """Enough of the name for people: the last two parts."""
    return ".".join(re.split(r"[./]", dataset.name)[-2:])


def _shown(node: Node) -> str:
    return _short(node.dataset) + (f".{node.column}" if node.column else "")


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(node: Node, above: list[Edge], below: list[Edge], graph: LineageGraph) -> Iterator[str]:
    yield f"{_shown(node)}   {node.dataset.namespace}{'   made by the load' if _made_here(node, graph) else ''}"
    if above:
        yield "comes from"
        yield from _tree(node, above, lambda edge: (edge.target, edge.source), depth=1)
    if below:
        yield "goes to"
        yield from _tree(node, below, lambda edge: (edge.source, edge.target), depth=1)
    if not above and not below:
        yield "nothing that is declared has to do with it"


def _tree(
    node: Node,
    edges: list[Edge],
    ends: Callable[[Edge], tuple[Node, Node]],
    *,
    depth: int,
    seen: frozenset[tuple[str, str, str]] = frozenset(),
) -> Iterator[str]:
    for edge in edges:
        here, there = ends(edge)
        if here.key() != node.key():
            continue
        again = there.key() in seen
        how = _WORDS.get(edge.how, edge.how)
        yield f"{'  ' * depth}{_shown(there)}   {how} · {edge.pipeline}{'   (see above)' if again else ''}"
        if not again:
            yield from _tree(there, edges, ends, depth=depth + 1, seen=seen | {node.key(), there.key()})


def _made_here(node: Node, graph: LineageGraph) -> bool:
    return any(
        column.made_here
        for lineage in graph.lineages
        for output in lineage.outputs
        for column in output.columns
        if Node(output.dataset, column.name).key() == node.key()
    )


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_json(node: Node, above: list[Edge], below: list[Edge], graph: LineageGraph) -> dict[str, Any]:
    return {
        **_node_json(node),
        "made_here": _made_here(node, graph),
        "upstream": [_edge_json(edge) for edge in above],
        "downstream": [_edge_json(edge) for edge in below],
    }


def _edge_json(edge: Edge) -> dict[str, Any]:
    return {
        "pipeline": edge.pipeline,
        "how": edge.how,
        "from": _node_json(edge.source),
        "to": _node_json(edge.target),
    }


def _node_json(node: Node) -> dict[str, Any]:
    return {"namespace": node.dataset.namespace, "name": node.dataset.name, "column": node.column or None}


def _mermaid(node: Node, edges: Iterable[Edge]) -> Iterator[str]:
    """A flowchart; the node that was asked for is drawn thick."""
    yield "flowchart LR"
    numbers: dict[tuple[str, str, str], str] = {}
    lines = []
    for edge in dict.fromkeys(edges):
        for end in (edge.source, edge.target):
            if end.key() not in numbers:
                numbers[end.key()] = f"n{len(numbers)}"
                yield f'  {numbers[end.key()]}["{_plain(_shown(end))}"]'
        arrow = "-->" if edge.how not in ("CONDITIONAL", "WINDOW") else "-.->"
        lines.append(f'  {numbers[edge.source.key()]} {arrow}|"{_plain(edge.pipeline)}"| {numbers[edge.target.key()]}')
    yield from dict.fromkeys(lines)
    if node.key() in numbers:
        yield f"  style {numbers[node.key()]} stroke-width:3px"


def _plain(text: str) -> str:
    """Text inside a label: quotes would end it."""
    return text.replace('"', "#quot;").replace("\n", " ")
