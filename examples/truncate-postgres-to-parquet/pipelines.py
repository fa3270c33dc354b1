"""The product list, published as Parquet: every time anew."""

from __future__ import annotations

from ematix_flow import BigInt, Boolean, Numeric, Text, ematix


@ematix.connection
class shop:
    kind = "postgres"
    url = "${SHOP_URL}"


@ematix.connection
class lake:
    kind = "object_store_local"
    format = "parquet"
    path = "lake"


@ematix.table(schema="catalogue")
class Products:
    product_id: BigInt
    title: Text
    price: Numeric[10, 2]
    in_stock: Boolean


@ematix.pipeline(source_connection="shop", target=Products, target_connection="lake", mode="truncate")
def publish_products(conn):
    return "SELECT product_id, title, price, stock > 0 AS in_stock FROM products"
