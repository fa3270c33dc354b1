-- Sales of the web and the catalog by weekday, each week beside the one 53 weeks later.
WITH sold AS (
    SELECT ws_sold_date_sk AS sold_date_sk, ws_ext_sales_price AS sales_price FROM web_sales
    UNION ALL
    SELECT cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales
),
weeks AS (
    SELECT
        d_week_seq,
        sum(CASE WHEN d_day_name = 'Sunday' THEN sales_price END) AS sun_sales,
        sum(CASE WHEN d_day_name = 'Monday' THEN sales_price END) AS mon_sales,
        sum(CASE WHEN d_day_name = 'Tuesday' THEN sales_price END) AS tue_sales,
        sum(CASE WHEN d_day_name = 'Wednesday' THEN sales_price END) AS wed_sales,
        sum(CASE WHEN d_day_name = 'Thursday' THEN sales_price END) AS thu_sales,
        sum(CASE WHEN d_day_name = 'Friday' THEN sales_price END) AS fri_sales,
        sum(CASE WHEN d_day_name = 'Saturday' THEN sales_price END) AS sat_sales
    FROM sold
    JOIN date_dim ON d_date_sk = sold_date_sk
    GROUP BY d_week_seq
),
this_year AS (
    SELECT weeks.*
    FROM weeks
    JOIN date_dim AS d ON d.d_week_seq = weeks.d_week_seq
    WHERE d.d_year = 2001
),
next_year AS (
    SELECT weeks.*
    FROM weeks
    JOIN date_dim AS d ON d.d_week_seq = weeks.d_week_seq
    WHERE d.d_year = 2001 + 1
)
SELECT
    y.d_week_seq AS d_week_seq1,
    round(y.sun_sales / z.sun_sales, 2) AS sun_ratio,
    round(y.mon_sales / z.mon_sales, 2) AS mon_ratio,
    round(y.tue_sales / z.tue_sales, 2) AS tue_ratio,
    round(y.wed_sales / z.wed_sales, 2) AS wed_ratio,
    round(y.thu_sales / z.thu_sales, 2) AS thu_ratio,
    round(y.fri_sales / z.fri_sales, 2) AS fri_ratio,
    round(y.sat_sales / z.sat_sales, 2) AS sat_ratio
FROM this_year AS y
JOIN next_year AS z ON y.d_week_seq = z.d_week_seq - 53
ORDER BY d_week_seq1
