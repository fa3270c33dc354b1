-- How long web orders waited to be shipped, by warehouse, way of shipping and site.
SELECT
    substring(w_warehouse_name, 1, 20) AS warehouse,
    sm_type,
    web_name,
    sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS "30 days",
    sum(
        CASE
            WHEN ws_ship_date_sk - ws_sold_date_sk > 30 AND ws_ship_date_sk - ws_sold_date_sk <= 60 THEN 1
            ELSE 0
        END
    ) AS "31-60 days",
    sum(
        CASE
            WHEN ws_ship_date_sk - ws_sold_date_sk > 60 AND ws_ship_date_sk - ws_sold_date_sk <= 90 THEN 1
            ELSE 0
        END
    ) AS "61-90 days",
    sum(
        CASE
            WHEN ws_ship_date_sk - ws_sold_date_sk > 90 AND ws_ship_date_sk - ws_sold_date_sk <= 120 THEN 1
            ELSE 0
        END
    ) AS "91-120 days",
    sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 120 THEN 1 ELSE 0 END) AS ">120 days"
FROM web_sales
JOIN warehouse ON w_warehouse_sk = ws_warehouse_sk
JOIN ship_mode ON sm_ship_mode_sk = ws_ship_mode_sk
JOIN web_site ON web_site_sk = ws_web_site_sk
JOIN date_dim ON d_date_sk = ws_ship_date_sk
WHERE d_month_seq BETWEEN 1200 AND 1200 + 11
GROUP BY substring(w_warehouse_name, 1, 20), sm_type, web_name
ORDER BY warehouse, sm_type, web_name
LIMIT 100
