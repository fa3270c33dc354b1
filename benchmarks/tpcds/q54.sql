-- Customers of a class of catalog or web, by what they spent in stores near home in the three months after, in fifties.
WITH my_customers AS (
    SELECT DISTINCT c_customer_sk, c_current_addr_sk
    FROM (
        SELECT cs_sold_date_sk AS sold_date_sk, cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk
        FROM catalog_sales
        UNION ALL
        SELECT ws_sold_date_sk, ws_bill_customer_sk, ws_item_sk
        FROM web_sales
    ) AS sold
    JOIN item ON i_item_sk = item_sk
    JOIN date_dim ON d_date_sk = sold_date_sk
    JOIN customer ON c_customer_sk = customer_sk
    WHERE i_category = 'Women'
      AND i_class = 'maternity'
      AND d_moy = 12
      AND d_year = 1998
),
my_revenue AS (
    SELECT c_customer_sk, sum(ss_ext_sales_price) AS revenue
    FROM my_customers
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk
    JOIN store ON s_county = ca_county AND s_state = ca_state
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq
        BETWEEN (SELECT DISTINCT d_month_seq + 1 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
        AND (SELECT DISTINCT d_month_seq + 3 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
    GROUP BY c_customer_sk
),
segments AS (
    SELECT CAST(revenue / 50 AS INT) AS segment FROM my_revenue
)
SELECT segment, count(*) AS num_customers, segment * 50 AS segment_base
FROM segments
GROUP BY segment
ORDER BY segment, num_customers
LIMIT 100
