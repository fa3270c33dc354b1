-- Customers whose spending on the web grew faster than in stores.
WITH year_total AS (
    SELECT
        c_customer_id AS customer_id,
        c_first_name AS customer_first_name,
        c_last_name AS customer_last_name,
        c_preferred_cust_flag AS customer_preferred_cust_flag,
        c_birth_country AS customer_birth_country,
        c_login AS customer_login,
        c_email_address AS customer_email_address,
        d_year AS dyear,
        sum(ss_ext_list_price - ss_ext_discount_amt) AS year_total,
        's' AS sale_type
    FROM customer
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    GROUP BY
        c_customer_id,
        c_first_name,
        c_last_name,
        c_preferred_cust_flag,
        c_birth_country,
        c_login,
        c_email_address,
        d_year
    UNION ALL
    SELECT
        c_customer_id,
        c_first_name,
        c_last_name,
        c_preferred_cust_flag,
        c_birth_country,
        c_login,
        c_email_address,
        d_year,
        sum(ws_ext_list_price - ws_ext_discount_amt),
        'w'
    FROM customer
    JOIN web_sales ON ws_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    GROUP BY
        c_customer_id,
        c_first_name,
        c_last_name,
        c_preferred_cust_flag,
        c_birth_country,
        c_login,
        c_email_address,
        d_year
)
SELECT
    store_second.customer_id,
    store_second.customer_first_name,
    store_second.customer_last_name,
    store_second.customer_preferred_cust_flag
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
  AND CASE WHEN web_first.year_total > 0 THEN web_second.year_total / web_first.year_total ELSE 0.0 END
    > CASE WHEN store_first.year_total > 0 THEN store_second.year_total / store_first.year_total ELSE 0.0 END
ORDER BY
    store_second.customer_id,
    store_second.customer_first_name,
    store_second.customer_last_name,
    store_second.customer_preferred_cust_flag
LIMIT 100
