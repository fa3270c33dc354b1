-- Revenue of one manager's items in one month, by category.
SELECT d_year, i_category_id, i_category, sum(ss_ext_sales_price) AS total_sales
FROM date_dim
JOIN store_sales ON ss_sold_date_sk = d_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manager_id = 1
  AND d_moy = 11
  AND d_year = 2000
GROUP BY d_year, i_category_id, i_category
ORDER BY total_sales DESC, d_year, i_category_id, i_category
LIMIT 100
