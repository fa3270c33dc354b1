-- Morning against evening visitors of the web.
SELECT CAST(amc AS DECIMAL(15, 4)) / CAST(pmc AS DECIMAL(15, 4)) AS am_pm_ratio
FROM (
    SELECT count(*) AS amc
    FROM web_sales JOIN time_dim ON t_time_sk = ws_sold_time_sk
    WHERE t_hour BETWEEN 8 AND 9
) AS am
CROSS JOIN (
    SELECT count(*) AS pmc
    FROM web_sales JOIN time_dim ON t_time_sk = ws_sold_time_sk
    WHERE t_hour BETWEEN 19 AND 20
) AS pm
