-- The best hundred of each category over every level of a rollup from store to category.
SELECT *
FROM (
    SELECT
        i_category,
        i_class,
        i_brand,
        i_product_name,
        d_year,
        d_qoy,
        d_moy,
        s_store_id,
        sumsales,
        rank() OVER (PARTITION BY i_category ORDER BY sumsales DESC) AS rk
    FROM (
        SELECT
            i_category,
            i_class,
            i_brand,
            i_product_name,
            d_year,
            d_qoy,
            d_moy,
            s_store_id,
            sum(coalesce(ss_sales_price * ss_quantity, 0)) AS sumsales
        FROM store_sales
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        JOIN store ON s_store_sk = ss_store_sk
        JOIN item ON i_item_sk = ss_item_sk
        WHERE d_month_seq BETWEEN 1200 AND 1200 + 11
        GROUP BY ROLLUP (i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id)
    ) AS dw1
) AS dw2
WHERE rk <= 100
ORDER BY i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id, sumsales, rk
LIMIT 100
