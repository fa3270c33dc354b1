-- Months of a brand in a call center that differ from the average month by more than a tenth, with their neighbours.
WITH v1 AS (
    SELECT
        i_category,
        i_brand,
        cc_name,
        d_year,
        d_moy,
        sum(cs_sales_price) AS sum_sales,
        avg(sum(cs_sales_price)) OVER (PARTITION BY i_category, i_brand, cc_name, d_year) AS avg_monthly_sales,
        rank() OVER (PARTITION BY i_category, i_brand, cc_name ORDER BY d_year, d_moy) AS rn
    FROM item
    JOIN catalog_sales ON cs_item_sk = i_item_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN call_center ON cc_call_center_sk = cs_call_center_sk
    WHERE d_year = 1999
       OR (d_year = 1999 - 1 AND d_moy = 12)
       OR (d_year = 1999 + 1 AND d_moy = 1)
    GROUP BY i_category, i_brand, cc_name, d_year, d_moy
),
v2 AS (
    SELECT
        v1.i_category,
        v1.i_brand,
        v1.cc_name,
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
        AND before.cc_name = v1.cc_name
        AND before.rn = v1.rn - 1
    JOIN v1 AS after
        ON after.i_category = v1.i_category
        AND after.i_brand = v1.i_brand
        AND after.cc_name = v1.cc_name
        AND after.rn = v1.rn + 1
)
SELECT *
FROM v2
WHERE d_year = 1999
  AND avg_monthly_sales > 0
  AND CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, cc_name, i_category, i_brand, d_moy
LIMIT 100
