-- Sales of music in one month, in one time zone, over all three channels.
WITH ss AS (
    SELECT i_item_id, sum(ss_ext_sales_price) AS total_sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND d_year = 1998
      AND d_moy = 9
      AND ca_gmt_offset = -5
    GROUP BY i_item_id
),
cs AS (
    SELECT i_item_id, sum(cs_ext_sales_price) AS total_sales
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN customer_address ON ca_address_sk = cs_bill_addr_sk
    JOIN item ON i_item_sk = cs_item_sk
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND d_year = 1998
      AND d_moy = 9
      AND ca_gmt_offset = -5
    GROUP BY i_item_id
),
ws AS (
    SELECT i_item_id, sum(ws_ext_sales_price) AS total_sales
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer_address ON ca_address_sk = ws_bill_addr_sk
    JOIN item ON i_item_sk = ws_item_sk
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND d_year = 1998
      AND d_moy = 9
      AND ca_gmt_offset = -5
    GROUP BY i_item_id
)
SELECT i_item_id, sum(total_sales) AS total_sales
FROM (
    SELECT * FROM ss
    UNION ALL
    SELECT * FROM cs
    UNION ALL
    SELECT * FROM ws
) AS channels
GROUP BY i_item_id
ORDER BY i_item_id, total_sales
LIMIT 100
