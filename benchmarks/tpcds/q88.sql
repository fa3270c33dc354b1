-- Visitors of stores by half hour.
SELECT *
FROM
    (SELECT count(*) AS h8_30_to_9 FROM store_sales JOIN time_dim ON t_time_sk = ss_sold_time_sk
     WHERE t_hour = 8 AND t_minute >= 30) AS s_h8_30_to_9,
    (SELECT count(*) AS h9_to_9_30 FROM store_sales JOIN time_dim ON t_time_sk = ss_sold_time_sk
     WHERE t_hour = 9 AND t_minute < 30) AS s_h9_to_9_30,
    (SELECT count(*) AS h9_30_to_10 FROM store_sales JOIN time_dim ON t_time_sk = ss_sold_time_sk
     WHERE t_hour = 9 AND t_minute >= 30) AS s_h9_30_to_10,
    (SELECT count(*) AS h10_to_10_30 FROM store_sales JOIN time_dim ON t_time_sk = ss_sold_time_sk
     WHERE t_hour = 10 AND t_minute < 30) AS s_h10_to_10_30
