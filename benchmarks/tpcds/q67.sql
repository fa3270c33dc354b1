-- The best hundred of each category over every level of a rollup.
SELECT *
FROM (
    SELECT *, rank() OVER (PARTITION BY i_category ORDER BY sumsales DESC) AS rk
    FROM (
        SELECT i_category, i_class, i_brand, d_year, d_qoy, sum(coalesce(ss_sales_price * ss_quantity, 0)) AS sumsales
        FROM store_sales
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        JOIN item ON i_item_sk = ss_item_sk
        WHERE d_month_seq BETWEEN 1200 AND 1211
        GROUP BY ROLLUP (i_category, i_class, i_brand, d_year, d_qoy)
    ) AS dw1
) AS dw2
WHERE rk <= 100
ORDER BY i_category, i_class, i_brand, d_year, d_qoy, sumsales, rk
LIMIT 100
