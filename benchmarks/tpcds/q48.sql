-- Quantity sold to some groups of people.
SELECT sum(ss_quantity) AS quantity
FROM store_sales
JOIN store ON s_store_sk = ss_store_sk
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN customer_address ON ca_address_sk = ss_addr_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
WHERE d_year = 2000
  AND ((cd_marital_status = 'M' AND ss_sales_price BETWEEN 10 AND 150)
    OR (cd_marital_status = 'D' AND ss_sales_price BETWEEN 5 AND 100))
  AND ca_country = 'United States'
  AND ss_net_profit BETWEEN -10000 AND 25000
