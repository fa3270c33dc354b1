-- What each of the best store customers spent by catalog and on the web, in one month, on items frequent in stores.
WITH frequent_ss_items AS (
    SELECT itemdesc, i_item_sk AS item_sk, d_date AS solddate, count(*) AS cnt
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN (SELECT i_item_sk, substring(i_item_desc, 1, 30) AS itemdesc FROM item) AS described ON i_item_sk = ss_item_sk
    WHERE d_year IN (2000, 2000 + 1, 2000 + 2, 2000 + 3)
    GROUP BY itemdesc, i_item_sk, d_date
    HAVING count(*) > 4
),
max_store_sales AS (
    SELECT max(csales) AS tpcds_cmax
    FROM (
        SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS csales
        FROM store_sales
        JOIN customer ON c_customer_sk = ss_customer_sk
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_year IN (2000, 2000 + 1, 2000 + 2, 2000 + 3)
        GROUP BY c_customer_sk
    ) AS spent
),
best_ss_customer AS (
    SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS ssales
    FROM store_sales
    JOIN customer ON c_customer_sk = ss_customer_sk
    GROUP BY c_customer_sk
    HAVING sum(ss_quantity * ss_sales_price) > (50 / 100.0) * (SELECT tpcds_cmax FROM max_store_sales)
)
SELECT c_last_name, c_first_name, sales
FROM (
    SELECT c_last_name, c_first_name, sum(cs_quantity * cs_list_price) AS sales
    FROM catalog_sales
    JOIN customer ON c_customer_sk = cs_bill_customer_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_year = 2000
      AND d_moy = 2
      AND cs_item_sk IN (SELECT item_sk FROM frequent_ss_items)
      AND cs_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)
    GROUP BY c_last_name, c_first_name
    UNION ALL
    SELECT c_last_name, c_first_name, sum(ws_quantity * ws_list_price)
    FROM web_sales
    JOIN customer ON c_customer_sk = ws_bill_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_year = 2000
      AND d_moy = 2
      AND ws_item_sk IN (SELECT item_sk FROM frequent_ss_items)
      AND ws_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)
    GROUP BY c_last_name, c_first_name
) AS both_channels
ORDER BY c_last_name, c_first_name, sales
LIMIT 100
