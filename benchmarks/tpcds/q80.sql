-- Promoted sales of costly items within thirty days, by outlet, rolled up to channel and all.
WITH ssr AS (
    SELECT
        s_store_id AS store_id,
        sum(ss_ext_sales_price) AS sales,
        sum(coalesce(sr_return_amt, 0)) AS returns,
        sum(ss_net_profit - coalesce(sr_net_loss, 0)) AS profit
    FROM store_sales
    LEFT JOIN store_returns ON sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN item ON i_item_sk = ss_item_sk
    JOIN promotion ON p_promo_sk = ss_promo_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND i_current_price > 50
      AND p_channel_tv = 'N'
    GROUP BY s_store_id
),
csr AS (
    SELECT
        cp_catalog_page_id AS catalog_page_id,
        sum(cs_ext_sales_price) AS sales,
        sum(coalesce(cr_return_amount, 0)) AS returns,
        sum(cs_net_profit - coalesce(cr_net_loss, 0)) AS profit
    FROM catalog_sales
    LEFT JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN catalog_page ON cp_catalog_page_sk = cs_catalog_page_sk
    JOIN item ON i_item_sk = cs_item_sk
    JOIN promotion ON p_promo_sk = cs_promo_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND i_current_price > 50
      AND p_channel_tv = 'N'
    GROUP BY cp_catalog_page_id
),
wsr AS (
    SELECT
        web_site_id,
        sum(ws_ext_sales_price) AS sales,
        sum(coalesce(wr_return_amt, 0)) AS returns,
        sum(ws_net_profit - coalesce(wr_net_loss, 0)) AS profit
    FROM web_sales
    LEFT JOIN web_returns ON wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN web_site ON web_site_sk = ws_web_site_sk
    JOIN item ON i_item_sk = ws_item_sk
    JOIN promotion ON p_promo_sk = ws_promo_sk
    WHERE d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND i_current_price > 50
      AND p_channel_tv = 'N'
    GROUP BY web_site_id
)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (
    SELECT 'store channel' AS channel, 'store' || store_id AS id, sales, returns, profit FROM ssr
    UNION ALL
    SELECT 'catalog channel', 'catalog_page' || catalog_page_id, sales, returns, profit FROM csr
    UNION ALL
    SELECT 'web channel', 'web_site' || web_site_id, sales, returns, profit FROM wsr
) AS outlets
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id
LIMIT 100
