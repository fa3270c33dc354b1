-- Quantity sold to some groups of people, at some prices, in some states.
SELECT sum(ss_quantity) AS quantity
FROM store_sales
JOIN store ON s_store_sk = ss_store_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN customer_address ON ca_address_sk = ss_addr_sk
WHERE d_year = 2000
  AND (
      (cd_marital_status = 'M' AND cd_education_status = '4 yr Degree' AND ss_sales_price BETWEEN 100.00 AND 150.00)
      OR (cd_marital_status = 'D' AND cd_education_status = '2 yr Degree' AND ss_sales_price BETWEEN 50.00 AND 100.00)
      OR (cd_marital_status = 'S' AND cd_education_status = 'College' AND ss_sales_price BETWEEN 150.00 AND 200.00)
  )
  AND ca_country = 'United States'
  AND (
      (ca_state IN ('CO', 'OH', 'TX') AND ss_net_profit BETWEEN 0 AND 2000)
      OR (ca_state IN ('OR', 'MN', 'KY') AND ss_net_profit BETWEEN 150 AND 3000)
      OR (ca_state IN ('VA', 'CA', 'MS') AND ss_net_profit BETWEEN 50 AND 25000)
  )
