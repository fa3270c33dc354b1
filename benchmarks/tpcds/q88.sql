-- How many sales a store made to some households in each half hour of the morning.
SELECT *
FROM (
    SELECT count(*) AS h8_30_to_9
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 8
      AND t_minute >= 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s1
CROSS JOIN (
    SELECT count(*) AS h9_to_9_30
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 9
      AND t_minute < 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s2
CROSS JOIN (
    SELECT count(*) AS h9_30_to_10
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 9
      AND t_minute >= 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s3
CROSS JOIN (
    SELECT count(*) AS h10_to_10_30
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 10
      AND t_minute < 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s4
CROSS JOIN (
    SELECT count(*) AS h10_30_to_11
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 10
      AND t_minute >= 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s5
CROSS JOIN (
    SELECT count(*) AS h11_to_11_30
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 11
      AND t_minute < 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s6
CROSS JOIN (
    SELECT count(*) AS h11_30_to_12
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 11
      AND t_minute >= 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s7
CROSS JOIN (
    SELECT count(*) AS h12_to_12_30
    FROM store_sales
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN time_dim ON t_time_sk = ss_sold_time_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 12
      AND t_minute < 30
      AND (
          (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2)
          OR (hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2)
          OR (hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)
      )
      AND s_store_name = 'ese'
) AS s8
