-- How long orders of the web waited before they were shipped.
SELECT
    substring(w_warehouse_name, 1, 20) AS warehouse,
    sm_type,
    web_name,
    sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS days_30,
    sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 30 AND ws_ship_date_sk - ws_sold_date_sk <= 60 THEN 1 ELSE 0 END) AS days_60,
    sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 60 THEN 1 ELSE 0 END) AS days_more
FROM web_sales
JOIN warehouse ON w_warehouse_sk = ws_warehouse_sk
JOIN ship_mode ON sm_ship_mode_sk = ws_ship_mode_sk
JOIN web_site ON web_site_sk = ws_web_site_sk
JOIN date_dim ON d_date_sk = ws_ship_date_sk
WHERE d_month_seq BETWEEN 1200 AND 1211
GROUP BY substring(w_warehouse_name, 1, 20), sm_type, web_name
ORDER BY warehouse, sm_type, web_name
LIMIT 100
