-- How many sales a store made in one half hour to households of one size.
SELECT count(*) AS number_of_sales
FROM store_sales
JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
JOIN time_dim ON t_time_sk = ss_sold_time_sk
JOIN store ON s_store_sk = ss_store_sk
WHERE t_hour = 20
  AND t_minute >= 30
  AND hd_dep_count = 7
  AND s_store_name = 'ese'
ORDER BY number_of_sales
LIMIT 100
