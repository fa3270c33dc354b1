-- Customers and items found in stores, in the catalog, or in both.
WITH shop AS (
    SELECT ss_customer_sk AS customer_sk, ss_item_sk AS item_sk
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
    GROUP BY ss_customer_sk, ss_item_sk
),
post AS (
    SELECT cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk
    FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
    GROUP BY cs_bill_customer_sk, cs_item_sk
)
SELECT
    sum(CASE WHEN shop.customer_sk IS NOT NULL AND post.customer_sk IS NULL THEN 1 ELSE 0 END) AS store_only,
    sum(CASE WHEN shop.customer_sk IS NULL AND post.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS catalog_only,
    sum(CASE WHEN shop.customer_sk IS NOT NULL AND post.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS store_and_catalog
FROM shop
FULL JOIN post ON post.customer_sk = shop.customer_sk AND post.item_sk = shop.item_sk
