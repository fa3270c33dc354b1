-- Catalog orders shipped from more than one warehouse, with nothing returned.
SELECT
    count(DISTINCT cs_order_number) AS order_count,
    sum(cs_ext_ship_cost) AS total_shipping_cost,
    sum(cs_net_profit) AS total_net_profit
FROM catalog_sales AS mine
JOIN date_dim ON d_date_sk = mine.cs_ship_date_sk
JOIN customer_address ON ca_address_sk = mine.cs_ship_addr_sk
JOIN call_center ON cc_call_center_sk = mine.cs_call_center_sk
WHERE d_date BETWEEN DATE '2002-02-01' AND DATE '2002-02-01' + INTERVAL '60' DAY
  AND ca_state = 'GA'
  AND cc_county IN (
      'Williamson County', 'Williamson County', 'Williamson County', 'Williamson County', 'Williamson County'
  )
  AND EXISTS (
      SELECT *
      FROM catalog_sales AS beside
      WHERE beside.cs_order_number = mine.cs_order_number AND beside.cs_warehouse_sk <> mine.cs_warehouse_sk
  )
  AND NOT EXISTS (SELECT * FROM catalog_returns WHERE cr_order_number = mine.cs_order_number)
ORDER BY order_count
LIMIT 100
