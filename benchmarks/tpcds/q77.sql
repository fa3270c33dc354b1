-- Sales, returns and profit of thirty days by outlet, rolled up to channel and all.
WITH ss AS (
    SELECT s_store_sk, sum(ss_ext_sales_price) AS sales, sum(ss_net_profit) AS profit
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY s_store_sk
),
sr AS (
    SELECT s_store_sk, sum(sr_return_amt) AS returns, sum(sr_net_loss) AS profit_loss
    FROM store_returns
    JOIN date_dim ON d_date_sk = sr_returned_date_sk
    JOIN store ON s_store_sk = sr_store_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY s_store_sk
),
cs AS (
    SELECT cs_call_center_sk, sum(cs_ext_sales_price) AS sales, sum(cs_net_profit) AS profit
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY cs_call_center_sk
),
cr AS (
    SELECT cr_call_center_sk, sum(cr_return_amount) AS returns, sum(cr_net_loss) AS profit_loss
    FROM catalog_returns
    JOIN date_dim ON d_date_sk = cr_returned_date_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY cr_call_center_sk
),
ws AS (
    SELECT wp_web_page_sk, sum(ws_ext_sales_price) AS sales, sum(ws_net_profit) AS profit
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY wp_web_page_sk
),
wr AS (
    SELECT wp_web_page_sk, sum(wr_return_amt) AS returns, sum(wr_net_loss) AS profit_loss
    FROM web_returns
    JOIN date_dim ON d_date_sk = wr_returned_date_sk
    JOIN web_page ON wp_web_page_sk = wr_web_page_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY wp_web_page_sk
)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (
    SELECT
        'store channel' AS channel,
        ss.s_store_sk AS id,
        sales,
        coalesce(returns, 0) AS returns,
        profit - coalesce(profit_loss, 0) AS profit
    FROM ss
    LEFT JOIN sr ON sr.s_store_sk = ss.s_store_sk
    UNION ALL
    SELECT 'catalog channel', cs_call_center_sk, sales, returns, profit - profit_loss
    FROM cs
    CROSS JOIN cr
    UNION ALL
    SELECT 'web channel', ws.wp_web_page_sk, sales, coalesce(returns, 0), profit - coalesce(profit_loss, 0)
    FROM ws
    LEFT JOIN wr ON wr.wp_web_page_sk = ws.wp_web_page_sk
) AS outlets
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id, returns DESC
LIMIT 100
