-- Catalog sales by postal code, where the code, the state or the price stands out.
SELECT ca_zip, sum(cs_sales_price) AS total
FROM catalog_sales
JOIN customer ON c_customer_sk = cs_bill_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE (
      substring(ca_zip, 1, 5) IN ('85669', '86197', '88274', '83405', '86475', '85392', '85460', '80348', '81792')
      OR ca_state IN ('CA', 'WA', 'GA')
      OR cs_sales_price > 500
  )
  AND d_qoy = 2
  AND d_year = 2001
GROUP BY ca_zip
ORDER BY ca_zip
LIMIT 100
