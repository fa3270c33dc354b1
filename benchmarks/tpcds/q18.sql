-- Catalog averages for one group of people, rolled up from county to country by item.
SELECT
    i_item_id,
    ca_country,
    ca_state,
    ca_county,
    avg(CAST(cs_quantity AS DECIMAL(12, 2))) AS agg1,
    avg(CAST(cs_list_price AS DECIMAL(12, 2))) AS agg2,
    avg(CAST(cs_coupon_amt AS DECIMAL(12, 2))) AS agg3,
    avg(CAST(cs_sales_price AS DECIMAL(12, 2))) AS agg4,
    avg(CAST(cs_net_profit AS DECIMAL(12, 2))) AS agg5,
    avg(CAST(c_birth_year AS DECIMAL(12, 2))) AS agg6,
    avg(CAST(buyer.cd_dep_count AS DECIMAL(12, 2))) AS agg7
FROM catalog_sales
JOIN customer_demographics AS buyer ON buyer.cd_demo_sk = cs_bill_cdemo_sk
JOIN customer ON c_customer_sk = cs_bill_customer_sk
JOIN customer_demographics AS today ON today.cd_demo_sk = c_current_cdemo_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
JOIN item ON i_item_sk = cs_item_sk
WHERE buyer.cd_gender = 'F'
  AND buyer.cd_education_status = 'Unknown'
  AND c_birth_month IN (1, 6, 8, 9, 12, 2)
  AND d_year = 1998
  AND ca_state IN ('MS', 'IN', 'ND', 'OK', 'NM', 'VA', 'MS')
GROUP BY ROLLUP (i_item_id, ca_country, ca_state, ca_county)
ORDER BY ca_country, ca_state, ca_county, i_item_id
LIMIT 100
