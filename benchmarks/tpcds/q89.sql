-- Classes whose month differs from the average month of their brand in a store by more than a tenth.
SELECT *
FROM (
    SELECT
        i_category,
        i_class,
        i_brand,
        s_store_name,
        s_company_name,
        d_moy,
        sum(ss_sales_price) AS sum_sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name)
            AS avg_monthly_sales
    FROM item
    JOIN store_sales ON ss_item_sk = i_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_year = 1999
      AND (
          (i_category IN ('Books', 'Electronics', 'Sports') AND i_class IN ('computers', 'stereo', 'football'))
          OR (i_category IN ('Men', 'Jewelry', 'Women') AND i_class IN ('shirts', 'birdal', 'dresses'))
      )
    GROUP BY i_category, i_class, i_brand, s_store_name, s_company_name, d_moy
) AS months
WHERE CASE WHEN avg_monthly_sales <> 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, s_store_name, i_category, i_class, i_brand, d_moy
LIMIT 100
