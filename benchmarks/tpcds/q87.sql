-- How many people bought in stores on a day on which they bought neither by catalog nor on the web.
SELECT count(*) AS number_of_customers
FROM (
    SELECT DISTINCT c_last_name, c_first_name, d_date
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1200 + 11
    EXCEPT
    SELECT DISTINCT c_last_name, c_first_name, d_date
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN customer ON c_customer_sk = cs_bill_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1200 + 11
    EXCEPT
    SELECT DISTINCT c_last_name, c_first_name, d_date
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer ON c_customer_sk = ws_bill_customer_sk
    WHERE d_month_seq BETWEEN 1200 AND 1200 + 11
) AS cool_customers
