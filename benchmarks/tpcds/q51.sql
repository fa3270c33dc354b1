-- Days on which the running total of the web was above that of stores.
WITH web AS (
    SELECT ws_item_sk AS item_sk, d_date, sum(sum(ws_sales_price)) OVER (PARTITION BY ws_item_sk ORDER BY d_date) AS cume
    FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211 AND ws_item_sk IS NOT NULL
    GROUP BY ws_item_sk, d_date
),
shop AS (
    SELECT ss_item_sk AS item_sk, d_date, sum(sum(ss_sales_price)) OVER (PARTITION BY ss_item_sk ORDER BY d_date) AS cume
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1200 AND 1211 AND ss_item_sk IS NOT NULL
    GROUP BY ss_item_sk, d_date
)
SELECT *
FROM (
    SELECT
        item_sk,
        d_date,
        max(web_sales) OVER (PARTITION BY item_sk ORDER BY d_date) AS web_cumulative,
        max(store_sales) OVER (PARTITION BY item_sk ORDER BY d_date) AS store_cumulative
    FROM (
        SELECT
            coalesce(web.item_sk, shop.item_sk) AS item_sk,
            coalesce(web.d_date, shop.d_date) AS d_date,
            web.cume AS web_sales,
            shop.cume AS store_sales
        FROM web FULL JOIN shop ON shop.item_sk = web.item_sk AND shop.d_date = web.d_date
    ) AS x
) AS y
WHERE web_cumulative > store_cumulative
ORDER BY item_sk, d_date
LIMIT 100
