-- Manufacturers whose quarterly sales differ from their yearly average by more than a tenth.
SELECT *
FROM (
    SELECT
        i_manufact_id,
        sum(ss_sales_price) AS sum_sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_manufact_id) AS avg_quarterly_sales
    FROM item
    JOIN store_sales ON ss_item_sk = i_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211
      AND i_category IN ('Books', 'Children', 'Electronics', 'Women', 'Music', 'Men')
    GROUP BY i_manufact_id, d_qoy
) AS x
WHERE CASE WHEN avg_quarterly_sales > 0 THEN abs(sum_sales - avg_quarterly_sales) / avg_quarterly_sales ELSE NULL END > 0.1
ORDER BY avg_quarterly_sales, sum_sales, i_manufact_id
LIMIT 100
