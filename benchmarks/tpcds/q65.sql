-- Items that brought a store no more than a tenth of what its items bring on average.
SELECT s_store_name, i_item_desc, sc.revenue, i_current_price, i_wholesale_cost, i_brand
FROM store
JOIN (
    SELECT ss_store_sk, avg(revenue) AS ave
    FROM (
        SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue
        FROM store_sales
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_month_seq BETWEEN 1176 AND 1176 + 11
        GROUP BY ss_store_sk, ss_item_sk
    ) AS sa
    GROUP BY ss_store_sk
) AS sb ON sb.ss_store_sk = s_store_sk
JOIN (
    SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1176 AND 1176 + 11
    GROUP BY ss_store_sk, ss_item_sk
) AS sc ON sc.ss_store_sk = s_store_sk
JOIN item ON i_item_sk = sc.ss_item_sk
WHERE sc.revenue <= 0.1 * sb.ave
ORDER BY s_store_name, i_item_desc, sc.revenue
LIMIT 100
