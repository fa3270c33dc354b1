-- How many customers bought on the same day in all three channels, or nearly: names and days in common.
SELECT count(*) AS customers
FROM (
    SELECT DISTINCT c_last_name, c_first_name
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk JOIN customer ON c_customer_sk = ss_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
    INTERSECT
    SELECT DISTINCT c_last_name, c_first_name
    FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk JOIN customer ON c_customer_sk = cs_bill_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
    INTERSECT
    SELECT DISTINCT c_last_name, c_first_name
    FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk JOIN customer ON c_customer_sk = ws_bill_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
) AS hot_customers
