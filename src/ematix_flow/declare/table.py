"""Tables: classes whose annotations are columns. Both spellings, decorator and base class, make one `TableSpec`."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ematix_flow.declare.columns import ColumnType, to_column_type
from ematix_flow.declare.keys import NaturalKey, Nullable, PrimaryKey
from ematix_flow.declare.maintenance import Maintenance, declared_maintenance
from ematix_flow.declare.normalizers import Normalizer
from ematix_flow.errors import FlowError, InvalidDeclaration, UnknownColumn, WrongDeclarationType, closest, listed


@dataclass(frozen=True)
class ColumnSpec:
    """One declared column: its name, type, place in the key, and the markers that clean its values."""

    name: str
    type: ColumnType
    nullable: bool = False
    primary_key: bool = False
    normalizers: tuple[Normalizer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The column as plan data, the way `flow preview` shows it."""
        return {
            "name": self.name,
            "type": self.type.to_dict(),
            "nullable": self.nullable,
            "primary_key": self.primary_key,
        }


@dataclass(frozen=True)
class TableSpec:
    """A declared table. Frozen, comparable, and the only thing a planner sees of the user's class."""

    schema: str
    name: str
    columns: tuple[ColumnSpec, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    merge_keys: tuple[str, ...] = ()
    maintenance: Maintenance | None = None

    def __post_init__(self) -> None:
        for label, value in (
            ("schema", self.schema),
            ("table", self.name),
            *(("column", c.name) for c in self.columns),
        ):
            if not isinstance(value, str) or not value.strip():
                raise InvalidDeclaration(f"{self}: empty {label} name.")
        if not self.columns:
            raise WrongDeclarationType(f"{self} declares no columns.", fix="annotate at least one: id: BigInt")
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise InvalidDeclaration(f"{self}: column '{name}' is declared twice.")
        for constraint in self.unique:
            if not constraint:
                raise InvalidDeclaration(f"{self}: a unique constraint is empty.")
            if len(set(constraint)) != len(constraint):
                raise InvalidDeclaration(f"{self}: unique constraint {constraint} names a column twice.")
            self.require(constraint, "unique constraint")
        self.require(self.merge_keys, "__merge_keys__")

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the primary-key columns, in declaration order."""
        return tuple(column.name for column in self.columns if column.primary_key)

    @property
    def column_names(self) -> tuple[str, ...]:
        """All declared names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnSpec:
        """The column of that name; `UnknownColumn` when the table does not declare it."""
        self.require((name,), "")
        return next(column for column in self.columns if column.name == name)

    def require(self, names: Sequence[str], option: str) -> None:
        """Raise `UnknownColumn` for the first name that is not declared; `option` says who asked."""
        for name in names:
            if name not in self.column_names:
                raise UnknownColumn(
                    f"{option or 'column'}: '{name}' is not a column of {self}."
                    if option
                    else f"'{name}' is not a column of {self}.",
                    fix=closest(name, self.column_names) or f"declared columns: {listed(self.column_names)}",
                )


@dataclass(frozen=True)
class Column:
    """A column written as a class attribute: `name = Column(Text())`. Nullable unless told otherwise."""

    type: Any
    nullable: bool = True
    primary_key: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", to_column_type(self.type))

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            object.__setattr__(self, "name", name)


class ManagedTable:
    """The base of declared tables.

    A subclass with `__schema__`, `__tablename__` and columns (annotations or `Column(...)` attributes) is a table as
    soon as its class body ends; `__abstract__ = True` postpones that to its subclasses.
    """

    __table_spec__: ClassVar[TableSpec]
    __schema__: ClassVar[str]
    __tablename__: ClassVar[str]
    __merge_keys__: ClassVar[tuple[str, ...]] = ()
    __unique_constraints__: ClassVar[tuple[tuple[str, ...], ...]] = ()
    __maintenance__: ClassVar[Maintenance | bool | None] = None
    columns: ClassVar[tuple[Column, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__abstract__"):
            return
        _finish(cls, frame_names=_names_around(2))

    @classmethod
    def ensure(cls, conn: Any, on_drift: str = "error") -> dict[str, Any]:
        """Create the table, or compare it with what is there.

        Returns:
            `{"action": "created" | "matched" | "drift", "differences": [...]}`.
        """
        from importlib import import_module

        result: dict[str, Any] = import_module("ematix_flow.run.tables").ensure(cls.__table_spec__, conn, on_drift)
        return result


def declare_table(
    cls: type,
    *,
    schema: str,
    name: str | None,
    frame_names: Mapping[str, Any],
    maintenance: Maintenance | bool | None = None,
) -> type[ManagedTable]:
    """Turn an annotated class into a `ManagedTable`; what `@ematix.table(...)` does.

    Raises:
        TypeError: the class is a dataclass, an attrs class or a pydantic model, or an annotation is no column type.
    """
    for found, what in (
        (dataclasses.is_dataclass(cls), "dataclass"),
        (hasattr(cls, "__attrs_attrs__"), "attrs class"),
        (hasattr(cls, "model_fields") or hasattr(cls, "__pydantic_fields__"), "pydantic model"),
    ):
        if found:
            raise WrongDeclarationType(
                f"@ematix.table: '{cls.__name__}' is already a {what}.", fix="declare the table as a plain class"
            )
    body = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    body |= {"__schema__": schema, "__tablename__": name or snake_case(cls.__name__), "__abstract__": True}
    if maintenance is not None:
        body["__maintenance__"] = maintenance
    bases = tuple(base for base in cls.__bases__ if base is not object)
    if not any(issubclass(base, ManagedTable) for base in bases):
        bases = (ManagedTable, *bases)
    table: type[ManagedTable] = types.new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(body))
    del table.__abstract__  # type: ignore[attr-defined]  # only there to postpone __init_subclass__
    table.__qualname__ = cls.__qualname__
    _finish(table, frame_names=frame_names)
    return table


def snake_case(name: str) -> str:
    """The table name of a class.

    >>> [snake_case(n) for n in ("CustomerDim", "HTTPServer", "ABTest", "UserV2Stats", "events")]
    ['customer_dim', 'http_server', 'ab_test', 'user_v2_stats', 'events']
    """
    parted = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", parted).lower()


def table_spec(table: object) -> TableSpec:
    """The spec behind a table class; `TypeError` for anything else."""
    spec = getattr(table, "__table_spec__", None)
    if not isinstance(spec, TableSpec):
        raise WrongDeclarationType(
            f"{table!r} is not a table.", fix="pass a class declared with @ematix.table or class T(ManagedTable)"
        )
    return spec


def _finish(cls: type[ManagedTable], frame_names: Mapping[str, Any]) -> None:
    for dunder in ("__schema__", "__tablename__"):
        if not hasattr(cls, dunder):
            raise WrongDeclarationType(
                f"Table '{cls.__name__}' has no {dunder}.",
                fix=f'set {dunder} = "…" in the class body, or __abstract__ = True for a base class',
            )
    columns = tuple(_declared_columns(cls, frame_names))
    if not columns:
        raise WrongDeclarationType(
            f"Table '{cls.__name__}' declares no columns.", fix="annotate at least one: id: Annotated[BigInt, pk()]"
        )
    groups: dict[str, list[str]] = {}
    for column, markers in columns:
        for marker in markers:
            if isinstance(marker, NaturalKey):
                groups.setdefault(marker.group, []).append(column.name)
    unique = tuple(tuple(group) for group in cls.__unique_constraints__)
    unique += tuple(tuple(groups[label]) for label in sorted(groups) if tuple(groups[label]) not in unique)
    cls.__table_spec__ = TableSpec(
        schema=cls.__schema__,
        name=cls.__tablename__,
        columns=tuple(column for column, _ in columns),
        unique=unique,
        merge_keys=tuple(cls.__merge_keys__),
        maintenance=declared_maintenance(cls.__maintenance__, f"{cls.__schema__}.{cls.__tablename__}"),
    )
    cls.columns = tuple(
        Column(c.type, nullable=c.nullable, primary_key=c.primary_key, name=c.name) for c in cls.__table_spec__.columns
    )
    cls.__columns__ = tuple((column.name, column) for column in cls.columns)  # type: ignore[attr-defined]


def _declared_columns(cls: type, frame_names: Mapping[str, Any]) -> Iterator[tuple[ColumnSpec, tuple[Any, ...]]]:
    """Columns in the order of the class body, bases first; `Column` attributes and annotations may mix."""
    seen: set[str] = set()
    for owner in reversed(cls.__mro__):
        if owner in (object, ManagedTable):
            continue
        annotations = owner.__dict__.get("__annotations__") or getattr(owner, "__annotations__", {})
        written = list(annotations) + [n for n, v in vars(owner).items() if isinstance(v, Column)]
        for name in written:
            if name in seen or name.startswith("__"):
                continue
            value = vars(owner).get(name)
            if isinstance(value, Column):
                seen.add(name)
                yield ColumnSpec(value.name or name, value.type, value.nullable, value.primary_key), ()
            elif name in annotations:
                hint = _evaluated(annotations[name], owner, frame_names, name)
                if typing.get_origin(hint) is ClassVar or hint is ClassVar:
                    continue
                seen.add(name)
                yield _annotated_column(cls, name, hint)


def _annotated_column(cls: type, name: str, hint: Any) -> tuple[ColumnSpec, tuple[Any, ...]]:
    markers: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *extra = typing.get_args(hint)
        markers = tuple(extra)
    may_be_null = any(isinstance(marker, Nullable) for marker in markers)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        may_be_null = may_be_null or len(members) < len(typing.get_args(hint))
        if len(members) != 1:
            raise WrongDeclarationType(f"Column '{name}' of '{cls.__name__}' has several types.", fix="declare one")
        hint = members[0]
        if typing.get_origin(hint) is Annotated:  # Annotated[T, pk()] | None
            hint, *extra = typing.get_args(hint)
            markers = (*extra, *markers)
    for marker in markers:
        if isinstance(marker, type) or (callable(marker) and not isinstance(marker, Normalizer)):
            shown = getattr(marker, "__name__", repr(marker))
            raise WrongDeclarationType(
                f"Column '{name}' of '{cls.__name__}': marker {shown} is not called.", fix=f"write {shown}()"
            )
    try:
        column_type = to_column_type(hint)
    except FlowError as exc:
        raise exc.at(f"column '{name}' of '{cls.__name__}'") from None
    normalizers = tuple(marker for marker in markers if isinstance(marker, Normalizer))
    if any(n.kind == "derive" for n in normalizers[1:]):
        raise InvalidDeclaration(
            f"Column '{name}' of '{cls.__name__}': derive() must be the first marker.",
            fix="move derive(...) in front; the markers after it are applied to what it computes",
        )
    spec = ColumnSpec(
        name=name,
        type=column_type,
        nullable=may_be_null,
        primary_key=any(isinstance(marker, PrimaryKey) for marker in markers),
        normalizers=normalizers,
    )
    return spec, markers


def _evaluated(annotation: Any, owner: type, frame_names: Mapping[str, Any], column: str) -> Any:
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(owner.__module__)
    scope = {**(vars(module) if module else {}), **frame_names}
    try:
        return eval(annotation, scope)
    except NameError as exc:
        raise WrongDeclarationType(
            f"Column '{column}' of '{owner.__name__}': '{exc.name}' is not known where the table is declared.",
            fix=f"import {exc.name} before the class",
        ) from None


def _names_around(depth: int) -> dict[str, Any]:
    """Names visible where a class statement stands, local ones included, for annotations kept as strings."""
    return dict(sys._getframe(depth).f_locals)
