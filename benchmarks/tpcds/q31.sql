-- Counties where sales grew faster on the web than in stores, from quarter to quarter.
WITH ss AS (
    SELECT ca_county, d_qoy, d_year, sum(ss_ext_sales_price) AS store_sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    GROUP BY ca_county, d_qoy, d_year
),
ws AS (
    SELECT ca_county, d_qoy, d_year, sum(ws_ext_sales_price) AS web_sales
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer_address ON ca_address_sk = ws_bill_addr_sk
    GROUP BY ca_county, d_qoy, d_year
)
SELECT
    ss1.ca_county,
    ss1.d_year,
    ws2.web_sales / ws1.web_sales AS web_q1_q2_increase,
    ss2.store_sales / ss1.store_sales AS store_q1_q2_increase,
    ws3.web_sales / ws2.web_sales AS web_q2_q3_increase,
    ss3.store_sales / ss2.store_sales AS store_q2_q3_increase
FROM ss AS ss1
JOIN ss AS ss2 ON ss2.ca_county = ss1.ca_county
JOIN ss AS ss3 ON ss3.ca_county = ss1.ca_county
JOIN ws AS ws1 ON ws1.ca_county = ss1.ca_county
JOIN ws AS ws2 ON ws2.ca_county = ss1.ca_county
JOIN ws AS ws3 ON ws3.ca_county = ss1.ca_county
WHERE ss1.d_qoy = 1
  AND ss1.d_year = 2000
  AND ss2.d_qoy = 2
  AND ss2.d_year = 2000
  AND ss3.d_qoy = 3
  AND ss3.d_year = 2000
  AND ws1.d_qoy = 1
  AND ws1.d_year = 2000
  AND ws2.d_qoy = 2
  AND ws2.d_year = 2000
  AND ws3.d_qoy = 3
  AND ws3.d_year = 2000
  AND CASE WHEN ws1.web_sales > 0 THEN ws2.web_sales / ws1.web_sales END
    > CASE WHEN ss1.store_sales > 0 THEN ss2.store_sales / ss1.store_sales END
  AND CASE WHEN ws2.web_sales > 0 THEN ws3.web_sales / ws2.web_sales END
    > CASE WHEN ss2.store_sales > 0 THEN ss3.store_sales / ss2.store_sales END
ORDER BY ss1.ca_county
