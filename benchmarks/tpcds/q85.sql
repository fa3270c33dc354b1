-- Why some groups of people in some states returned what they bought on the web.
SELECT
    substring(r_reason_desc, 1, 20) AS reason,
    avg(ws_quantity) AS average_quantity,
    avg(wr_refunded_cash) AS average_refund,
    avg(wr_fee) AS average_fee
FROM web_sales
JOIN web_returns ON wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number
JOIN web_page ON wp_web_page_sk = ws_web_page_sk
JOIN customer_demographics AS cd1 ON cd1.cd_demo_sk = wr_refunded_cdemo_sk
JOIN customer_demographics AS cd2 ON cd2.cd_demo_sk = wr_returning_cdemo_sk
JOIN customer_address ON ca_address_sk = wr_refunded_addr_sk
JOIN date_dim ON d_date_sk = ws_sold_date_sk
JOIN reason ON r_reason_sk = wr_reason_sk
WHERE d_year = 2000
  AND cd1.cd_marital_status = cd2.cd_marital_status
  AND cd1.cd_education_status = cd2.cd_education_status
  AND (
      (
          cd1.cd_marital_status = 'M'
          AND cd1.cd_education_status = 'Advanced Degree'
          AND ws_sales_price BETWEEN 100.00 AND 150.00
      )
      OR (
          cd1.cd_marital_status = 'S'
          AND cd1.cd_education_status = 'College'
          AND ws_sales_price BETWEEN 50.00 AND 100.00
      )
      OR (
          cd1.cd_marital_status = 'W'
          AND cd1.cd_education_status = '2 yr Degree'
          AND ws_sales_price BETWEEN 150.00 AND 200.00
      )
  )
  AND ca_country = 'United States'
  AND (
      (ca_state IN ('IN', 'OH', 'NJ') AND ws_net_profit BETWEEN 100 AND 200)
      OR (ca_state IN ('WI', 'CT', 'KY') AND ws_net_profit BETWEEN 150 AND 300)
      OR (ca_state IN ('LA', 'IA', 'AR') AND ws_net_profit BETWEEN 50 AND 250)
  )
GROUP BY r_reason_desc
ORDER BY reason, average_quantity, average_refund, average_fee
LIMIT 100
