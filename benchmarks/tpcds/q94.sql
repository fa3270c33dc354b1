-- Web orders shipped from more than one warehouse, with nothing returned.
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
  AND EXISTS (
      SELECT *
      FROM web_sales AS beside
      WHERE beside.ws_order_number = mine.ws_order_number AND beside.ws_warehouse_sk <> mine.ws_warehouse_sk
  )
  AND NOT EXISTS (SELECT * FROM web_returns WHERE wr_order_number = mine.ws_order_number)
ORDER BY order_count
LIMIT 100
