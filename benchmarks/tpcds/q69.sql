-- Groups of people in some states who bought in stores and neither on the web nor by catalog.
SELECT
    cd_gender,
    cd_marital_status,
    cd_education_status,
    count(*) AS cnt1,
    cd_purchase_estimate,
    count(*) AS cnt2,
    cd_credit_rating,
    count(*) AS cnt3
FROM customer AS c
JOIN customer_address AS ca ON ca.ca_address_sk = c.c_current_addr_sk
JOIN customer_demographics ON cd_demo_sk = c.c_current_cdemo_sk
WHERE ca_state IN ('KY', 'GA', 'NM')
  AND EXISTS (
      SELECT *
      FROM store_sales
      JOIN date_dim ON d_date_sk = ss_sold_date_sk
      WHERE ss_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 4 AND 4 + 2
  )
  AND NOT EXISTS (
      SELECT *
      FROM web_sales
      JOIN date_dim ON d_date_sk = ws_sold_date_sk
      WHERE ws_bill_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 4 AND 4 + 2
  )
  AND NOT EXISTS (
      SELECT *
      FROM catalog_sales
      JOIN date_dim ON d_date_sk = cs_sold_date_sk
      WHERE cs_ship_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 4 AND 4 + 2
  )
GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
LIMIT 100
