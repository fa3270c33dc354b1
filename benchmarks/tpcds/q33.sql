-- Revenue of manufacturers of a category, over all three channels.
WITH makers AS (SELECT DISTINCT i_manufact_id AS maker FROM item WHERE i_category = 'Electronics'),
sold AS (
    SELECT ss_item_sk AS item_sk, ss_sold_date_sk AS date_sk, ss_ext_sales_price AS price FROM store_sales
    UNION ALL
    SELECT cs_item_sk, cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales
    UNION ALL
    SELECT ws_item_sk, ws_sold_date_sk, ws_ext_sales_price FROM web_sales
)
SELECT i_manufact_id, sum(price) AS total_sales
FROM sold
JOIN item ON i_item_sk = item_sk
JOIN date_dim ON d_date_sk = date_sk
WHERE i_manufact_id IN (SELECT maker FROM makers)
  AND d_year = 1998
  AND d_moy = 5
GROUP BY i_manufact_id
ORDER BY total_sales, i_manufact_id
LIMIT 100
