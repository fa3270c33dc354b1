-- Customers whose payments on the web grew faster than in stores.
WITH year_total AS (
    SELECT
        c_customer_id AS customer_id,
        c_first_name AS customer_first_name,
        c_last_name AS customer_last_name,
        d_year AS dyear,
        sum(ss_net_paid) AS year_total,
        's' AS sale_type
    FROM customer
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_year IN (2001, 2001 + 1)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, d_year, sum(ws_net_paid), 'w'
    FROM customer
    JOIN web_sales ON ws_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_year IN (2001, 2001 + 1)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year
)
SELECT store_second.customer_id, store_second.customer_first_name, store_second.customer_last_name
FROM year_total AS store_first
JOIN year_total AS store_second ON store_second.customer_id = store_first.customer_id
JOIN year_total AS web_first ON web_first.customer_id = store_first.customer_id
JOIN year_total AS web_second ON web_second.customer_id = store_first.customer_id
WHERE store_first.sale_type = 's'
  AND web_first.sale_type = 'w'
  AND store_second.sale_type = 's'
  AND web_second.sale_type = 'w'
  AND store_first.dyear = 2001
  AND store_second.dyear = 2001 + 1
  AND web_first.dyear = 2001
  AND web_second.dyear = 2001 + 1
  AND store_first.year_total > 0
  AND web_first.year_total > 0
  AND CASE WHEN web_first.year_total > 0 THEN web_second.year_total / web_first.year_total END
    > CASE WHEN store_first.year_total > 0 THEN store_second.year_total / store_first.year_total END
ORDER BY customer_id, customer_first_name, customer_last_name
LIMIT 100
