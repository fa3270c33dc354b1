-- Sales with something missing in each channel, by quarter and category.
SELECT channel, col_name, d_year, d_qoy, i_category, count(*) AS sales_cnt, sum(ext_sales_price) AS sales_amt
FROM (
    SELECT
        'store' AS channel,
        'ss_store_sk' AS col_name,
        d_year,
        d_qoy,
        i_category,
        ss_ext_sales_price AS ext_sales_price
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE ss_store_sk IS NULL
    UNION ALL
    SELECT 'web', 'ws_ship_customer_sk', d_year, d_qoy, i_category, ws_ext_sales_price
    FROM web_sales
    JOIN item ON i_item_sk = ws_item_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE ws_ship_customer_sk IS NULL
    UNION ALL
    SELECT 'catalog', 'cs_ship_addr_sk', d_year, d_qoy, i_category, cs_ext_sales_price
    FROM catalog_sales
    JOIN item ON i_item_sk = cs_item_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE cs_ship_addr_sk IS NULL
) AS incomplete
GROUP BY channel, col_name, d_year, d_qoy, i_category
ORDER BY channel, col_name, d_year, d_qoy, i_category
LIMIT 100
