-- Web orders shipped from more than one warehouse, with something returned.
WITH ws_wh AS (
    SELECT ws1.ws_order_number, ws1.ws_warehouse_sk AS wh1, ws2.ws_warehouse_sk AS wh2
    FROM web_sales AS ws1
    JOIN web_sales AS ws2
        ON ws2.ws_order_number = ws1.ws_order_number AND ws2.ws_warehouse_sk <> ws1.ws_warehouse_sk
)
SELECT
    count(DISTINCT ws_order_number) AS order_count,
    sum(ws_ext_ship_cost) AS total_shipping_cost,
    sum(ws_net_profit) AS total_net_profit
FROM web_sales AS mine
JOIN date_dim ON d_date_sk = mine.ws_ship_date_sk
JOIN customer_address ON ca_address_sk = mine.ws_ship_addr_sk
JOIN web_site ON web_site_sk = mine.ws_web_site_sk
WHERE d_date BETWEEN DATE '1999-02-01' AND DATE '1999-02-01' + INTERVAL '60' DAY
  AND ca_state = 'IL'
  AND web_company_name = 'pri'
  AND mine.ws_order_number IN (SELECT ws_order_number FROM ws_wh)
  AND mine.ws_order_number IN (
      SELECT wr_order_number
      FROM web_returns
      JOIN ws_wh ON ws_wh.ws_order_number = wr_order_number
  )
ORDER BY order_count
LIMIT 100
