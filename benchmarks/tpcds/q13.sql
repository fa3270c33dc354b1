-- Averages over some groups of people in some states.
SELECT
    avg(ss_quantity) AS quantity,
    avg(ss_ext_sales_price) AS sales_price,
    avg(ss_ext_wholesale_cost) AS wholesale_cost,
    sum(ss_ext_wholesale_cost) AS total_cost
FROM store_sales
JOIN store ON s_store_sk = ss_store_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
JOIN customer_address ON ca_address_sk = ss_addr_sk
WHERE d_year = 2001
  AND ca_country = 'United States'
  AND (
      (cd_marital_status = 'M' AND ss_sales_price BETWEEN 50 AND 200 AND hd_dep_count = 3)
      OR (cd_marital_status = 'S' AND ss_sales_price BETWEEN 10 AND 150 AND hd_dep_count = 1)
      OR (cd_marital_status = 'W' AND ss_sales_price BETWEEN 10 AND 200 AND hd_dep_count = 1)
  )
