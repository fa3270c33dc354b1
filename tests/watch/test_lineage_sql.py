"""Column lineage read from SQL: what comes from where, and what only decides."""

from __future__ import annotations

import pytest

from ematix_flow.watch.column_lineage import QueryLineage, named_columns


def of(sql: str, column: str, dialect: str = "postgres", **options) -> set[str]:
    """`table.column how`, with a star for what is masked."""
    query = QueryLineage(sql, dialect, **options)
    return {f"{o.table}.{o.column} {o.how}{'*' if o.masked else ''}" for o in query.of(column)}


def deciding(sql: str, dialect: str = "postgres") -> set[str]:
    return {f"{o.table}.{o.column} {o.how}" for o in QueryLineage(sql, dialect).influences()}


@pytest.mark.parametrize(
    ("expression", "origins"),
    [
        ("c.email", {"crm.c.email IDENTITY"}),
        ("email", {"crm.c.email IDENTITY"}),
        ("lower(email)", {"crm.c.email TRANSFORMATION"}),
        ("first || ' ' || last", {"crm.c.first TRANSFORMATION", "crm.c.last TRANSFORMATION"}),
        ("md5(email)", {"crm.c.email TRANSFORMATION*"}),
        ("sum(amount) + 1", {"crm.c.amount AGGREGATION"}),
        ("CASE WHEN vip THEN name ELSE 'x' END", {"crm.c.vip CONDITIONAL", "crm.c.name TRANSFORMATION"}),
        ("row_number() OVER (PARTITION BY area ORDER BY at)", {"crm.c.area WINDOW", "crm.c.at WINDOW"}),
        ("count(*) FILTER (WHERE vip)", {"crm.c.vip CONDITIONAL"}),
        ("42", set()),
        ("count(*)", set()),
        ("(SELECT max(o.total) FROM shop.o WHERE o.id = c.id)", {"shop.o.total AGGREGATION"}),
    ],
)
def test_an_expression_keeps_what_it_is_made_of(expression: str, origins: set[str]) -> None:
    assert of(f"SELECT {expression} AS x FROM crm.c AS c", "x") == origins


def test_a_column_is_followed_through_queries_inside() -> None:
    sql = """
        WITH totals (customer, spent) AS (SELECT customer_id, sum(amount) FROM orders GROUP BY customer_id),
             named AS (SELECT t.*, upper(c.name) AS name FROM totals t JOIN customers c ON c.id = t.customer)
        SELECT name, spent FROM (SELECT * FROM named) AS all_of_them
    """
    assert of(sql, "name") == {"customers.name TRANSFORMATION"}
    # `t.*` and a join: which of the two has 'spent' is known, because one of them is spelled out.
    assert of(sql, "spent") == {"orders.amount AGGREGATION"}
    assert deciding(sql) == {"orders.customer_id GROUP_BY", "orders.customer_id JOIN", "customers.id JOIN"}


def test_branches_of_a_union_are_matched_by_place() -> None:
    assert of("SELECT id, a FROM t UNION ALL SELECT k, b FROM u", "a") == {"t.a IDENTITY", "u.b IDENTITY"}


def test_a_recursive_query_ends() -> None:
    sql = """
        WITH RECURSIVE tree AS (
            SELECT id, boss FROM staff WHERE boss IS NULL
            UNION ALL SELECT s.id, s.boss FROM staff s JOIN tree ON tree.id = s.boss
        ) SELECT id FROM tree
    """
    assert of(sql, "id") == {"staff.id IDENTITY"}


def test_what_only_decides_is_told_apart() -> None:
    sql = """SELECT o.id AS n FROM o JOIN c USING (customer) WHERE o.total > 3 AND c.area IN (SELECT area FROM open)
             GROUP BY 1 HAVING max(o.at) > now() ORDER BY n"""
    assert deciding(sql) == {
        *("o.customer JOIN", "c.customer JOIN", "o.total FILTER", "c.area FILTER", "open.area FILTER"),
        *("o.id GROUP_BY", "o.at FILTER", "o.id SORT"),
    }


def test_a_star_over_one_table_gives_any_column() -> None:
    assert of("SELECT * FROM raw.events", "payload", "spark") == {"raw.events.payload IDENTITY"}


def test_a_star_over_two_tables_needs_to_know_them_and_never_guesses() -> None:
    sql = "SELECT * FROM a JOIN b ON a.id = b.id"
    assert of(sql, "x") == set()
    query = QueryLineage(sql, "postgres")
    assert query.of("x") == () and query.unknown == {"x"}
    known = {"a": ("id", "x"), "b": ("id", "y")}
    assert of(sql, "x", columns=lambda table: known[table.name]) == {"a.x IDENTITY"}


def test_names_are_those_of_the_system() -> None:
    assert of('SELECT Name FROM Sales."Orders"', "name") == {"sales.Orders.name IDENTITY"}
    assert of("SELECT name FROM sales.orders", "NAME", "snowflake") == {"SALES.ORDERS.NAME IDENTITY"}
    assert of("SELECT Name FROM Orders", "name", "sqlite") == {"Orders.Name IDENTITY"}


def test_the_watermark_is_a_constant() -> None:
    assert deciding("SELECT id FROM t WHERE at > $watermark") == {"t.at FILTER"}


def test_text_that_is_no_query_is_refused() -> None:
    with pytest.raises(ValueError):
        QueryLineage("SELEC id FORM t WHERE", "postgres")
    with pytest.raises(ValueError):
        QueryLineage("CREATE TABLE t (id int)", "postgres")


def test_the_columns_that_an_expression_names() -> None:
    assert named_columns("coalesce(a, b) > 3", "sqlite") == ("a", "b")
