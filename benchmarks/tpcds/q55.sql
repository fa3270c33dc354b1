-- Revenue of one manager's brands in one month.
SELECT i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS ext_price
FROM date_dim
JOIN store_sales ON ss_sold_date_sk = d_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manager_id = 28
  AND d_moy = 11
  AND d_year = 1999
GROUP BY i_brand, i_brand_id
ORDER BY ext_price DESC, brand_id
LIMIT 100
