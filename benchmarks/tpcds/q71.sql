-- Revenue of one manager's brands at breakfast and dinner, by the minute, over all three channels.
SELECT i_brand_id AS brand_id, i_brand AS brand, t_hour, t_minute, sum(ext_price) AS ext_price
FROM item
JOIN (
    SELECT ws_ext_sales_price AS ext_price, ws_item_sk AS sold_item_sk, ws_sold_time_sk AS time_sk
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_moy = 11 AND d_year = 1999
    UNION ALL
    SELECT cs_ext_sales_price, cs_item_sk, cs_sold_time_sk
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_moy = 11 AND d_year = 1999
    UNION ALL
    SELECT ss_ext_sales_price, ss_item_sk, ss_sold_time_sk
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_moy = 11 AND d_year = 1999
) AS sold ON sold_item_sk = i_item_sk
JOIN time_dim ON t_time_sk = time_sk
WHERE i_manager_id = 1
  AND (t_meal_time = 'breakfast' OR t_meal_time = 'dinner')
GROUP BY i_brand, i_brand_id, t_hour, t_minute
ORDER BY ext_price DESC NULLS LAST, brand_id, t_hour, t_minute
