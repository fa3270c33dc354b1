-- Brands of one manager bought by people who live elsewhere than the store stands.
SELECT
    i_brand_id AS brand_id,
    i_brand AS brand,
    i_manufact_id,
    i_manufact,
    sum(ss_ext_sales_price) AS ext_price
FROM date_dim
JOIN store_sales ON ss_sold_date_sk = d_date_sk
JOIN item ON i_item_sk = ss_item_sk
JOIN customer ON c_customer_sk = ss_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN store ON s_store_sk = ss_store_sk
WHERE i_manager_id = 8
  AND d_moy = 11
  AND d_year = 1998
  AND substring(ca_zip, 1, 5) <> substring(s_zip, 1, 5)
GROUP BY i_brand, i_brand_id, i_manufact_id, i_manufact
ORDER BY ext_price DESC, i_brand, i_brand_id, i_manufact_id, i_manufact
LIMIT 100
