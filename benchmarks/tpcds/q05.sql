-- Sales, returns and profit of a fortnight by outlet, rolled up to channel and all.
WITH ssr AS (
    SELECT
        s_store_id,
        sum(sales_price) AS sales,
        sum(profit) AS profit,
        sum(return_amt) AS returns,
        sum(net_loss) AS profit_loss
    FROM (
        SELECT
            ss_store_sk AS store_sk,
            ss_sold_date_sk AS date_sk,
            ss_ext_sales_price AS sales_price,
            ss_net_profit AS profit,
            CAST(0 AS DECIMAL(7, 2)) AS return_amt,
            CAST(0 AS DECIMAL(7, 2)) AS net_loss
        FROM store_sales
        UNION ALL
        SELECT
            sr_store_sk,
            sr_returned_date_sk,
            CAST(0 AS DECIMAL(7, 2)),
            CAST(0 AS DECIMAL(7, 2)),
            sr_return_amt,
            sr_net_loss
        FROM store_returns
    ) AS sales_and_returns
    JOIN date_dim ON d_date_sk = date_sk
    JOIN store ON s_store_sk = store_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
    GROUP BY s_store_id
),
csr AS (
    SELECT
        cp_catalog_page_id,
        sum(sales_price) AS sales,
        sum(profit) AS profit,
        sum(return_amt) AS returns,
        sum(net_loss) AS profit_loss
    FROM (
        SELECT
            cs_catalog_page_sk AS page_sk,
            cs_sold_date_sk AS date_sk,
            cs_ext_sales_price AS sales_price,
            cs_net_profit AS profit,
            CAST(0 AS DECIMAL(7, 2)) AS return_amt,
            CAST(0 AS DECIMAL(7, 2)) AS net_loss
        FROM catalog_sales
        UNION ALL
        SELECT
            cr_catalog_page_sk,
            cr_returned_date_sk,
            CAST(0 AS DECIMAL(7, 2)),
            CAST(0 AS DECIMAL(7, 2)),
            cr_return_amount,
            cr_net_loss
        FROM catalog_returns
    ) AS sales_and_returns
    JOIN date_dim ON d_date_sk = date_sk
    JOIN catalog_page ON cp_catalog_page_sk = page_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
    GROUP BY cp_catalog_page_id
),
wsr AS (
    SELECT
        web_site_id,
        sum(sales_price) AS sales,
        sum(profit) AS profit,
        sum(return_amt) AS returns,
        sum(net_loss) AS profit_loss
    FROM (
        SELECT
            ws_web_site_sk AS site_sk,
            ws_sold_date_sk AS date_sk,
            ws_ext_sales_price AS sales_price,
            ws_net_profit AS profit,
            CAST(0 AS DECIMAL(7, 2)) AS return_amt,
            CAST(0 AS DECIMAL(7, 2)) AS net_loss
        FROM web_sales
        UNION ALL
        SELECT
            ws_web_site_sk,
            wr_returned_date_sk,
            CAST(0 AS DECIMAL(7, 2)),
            CAST(0 AS DECIMAL(7, 2)),
            wr_return_amt,
            wr_net_loss
        FROM web_returns
        LEFT JOIN web_sales ON ws_item_sk = wr_item_sk AND ws_order_number = wr_order_number
    ) AS sales_and_returns
    JOIN date_dim ON d_date_sk = date_sk
    JOIN web_site ON web_site_sk = site_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
    GROUP BY web_site_id
)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (
    SELECT
        'store channel' AS channel,
        'store' || s_store_id AS id,
        sales,
        returns,
        profit - profit_loss AS profit
    FROM ssr
    UNION ALL
    SELECT 'catalog channel', 'catalog_page' || cp_catalog_page_id, sales, returns, profit - profit_loss FROM csr
    UNION ALL
    SELECT 'web channel', 'web_site' || web_site_id, sales, returns, profit - profit_loss FROM wsr
) AS outlets
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id
LIMIT 100
