-- Months of a brand in a store that differ from the average month by more than a tenth, with their neighbours.
WITH v1 AS (
    SELECT
        i_category,
        i_brand,
        s_store_name,
        s_company_name,
        d_year,
        d_moy,
        sum(ss_sales_price) AS sum_sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name, d_year)
            AS avg_monthly_sales,
        rank() OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name ORDER BY d_year, d_moy) AS rn
    FROM item
    JOIN store_sales ON ss_item_sk = i_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_year = 1999
       OR (d_year = 1999 - 1 AND d_moy = 12)
       OR (d_year = 1999 + 1 AND d_moy = 1)
    GROUP BY i_category, i_brand, s_store_name, s_company_name, d_year, d_moy
),
v2 AS (
    SELECT
        v1.i_category,
        v1.i_brand,
        v1.s_store_name,
        v1.s_company_name,
        v1.d_year,
        v1.d_moy,
        v1.avg_monthly_sales,
        v1.sum_sales,
        before.sum_sales AS psum,
        after.sum_sales AS nsum
    FROM v1
    JOIN v1 AS before
        ON before.i_category = v1.i_category
        AND before.i_brand = v1.i_brand
        AND before.s_store_name = v1.s_store_name
        AND before.s_company_name = v1.s_company_name
        AND before.rn = v1.rn - 1
    JOIN v1 AS after
        ON after.i_category = v1.i_category
        AND after.i_brand = v1.i_brand
        AND after.s_store_name = v1.s_store_name
        AND after.s_company_name = v1.s_company_name
        AND after.rn = v1.rn + 1
)
SELECT *
FROM v2
WHERE d_year = 1999
  AND avg_monthly_sales > 0
  AND CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, s_store_name, i_category, i_brand, d_moy
LIMIT 100
