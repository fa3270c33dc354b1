-- Web sales in the morning for each in the evening, on pages of a certain length.
SELECT CAST(amc AS DECIMAL(15, 4)) / CAST(pmc AS DECIMAL(15, 4)) AS am_pm_ratio
FROM (
    SELECT count(*) AS amc
    FROM web_sales
    JOIN household_demographics ON hd_demo_sk = ws_ship_hdemo_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE t_hour BETWEEN 8 AND 8 + 1
      AND hd_dep_count = 6
      AND wp_char_count BETWEEN 5000 AND 5200
) AS morning
CROSS JOIN (
    SELECT count(*) AS pmc
    FROM web_sales
    JOIN household_demographics ON hd_demo_sk = ws_ship_hdemo_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE t_hour BETWEEN 19 AND 19 + 1
      AND hd_dep_count = 6
      AND wp_char_count BETWEEN 5000 AND 5200
) AS evening
ORDER BY am_pm_ratio
LIMIT 100
