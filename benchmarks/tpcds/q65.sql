-- Items that sell for a tenth of the average or less in their store.
WITH revenue AS (
    SELECT ss_store_sk AS store_sk, ss_item_sk AS item_sk, sum(ss_sales_price) AS revenue
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1176 AND 1187
    GROUP BY ss_store_sk, ss_item_sk
)
SELECT s_store_name, i_item_desc, r.revenue, i_current_price, i_wholesale_cost, i_brand
FROM revenue AS r
JOIN (SELECT store_sk, avg(revenue) AS ave FROM revenue GROUP BY store_sk) AS usual ON usual.store_sk = r.store_sk
JOIN store ON s_store_sk = r.store_sk
JOIN item ON i_item_sk = r.item_sk
WHERE r.revenue <= 0.1 * usual.ave
ORDER BY s_store_name, i_item_desc, r.revenue, i_item_sk
LIMIT 100
