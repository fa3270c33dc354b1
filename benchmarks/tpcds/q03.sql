-- Revenue of a manufacturer's brands in the Novembers, year by year.
SELECT d_year, i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS sum_agg
FROM date_dim
JOIN store_sales ON ss_sold_date_sk = d_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manufact_id = 128
  AND d_moy = 11
GROUP BY d_year, i_brand, i_brand_id
ORDER BY d_year, sum_agg DESC, brand_id
LIMIT 100
