-- Web sales by postal code and city, where the code is one of some or the item one of some.
SELECT ca_zip, ca_city, sum(ws_sales_price) AS total
FROM web_sales
JOIN customer ON c_customer_sk = ws_bill_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN date_dim ON d_date_sk = ws_sold_date_sk
JOIN item ON i_item_sk = ws_item_sk
WHERE (
      substring(ca_zip, 1, 5) IN ('85669', '86197', '88274', '83405', '86475', '85392', '85460', '80348', '81792')
      OR i_item_id IN (SELECT i_item_id FROM item WHERE i_item_sk IN (2, 3, 5, 7, 11, 13, 17, 19, 23, 29))
  )
  AND d_qoy = 2
  AND d_year = 2001
GROUP BY ca_zip, ca_city
ORDER BY ca_zip, ca_city
LIMIT 100
