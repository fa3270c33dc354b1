-- The ten items of each channel that were returned least, by quantity and by amount, among costly returns of a month.
SELECT channel, item, return_ratio, return_rank, currency_rank
FROM (
    SELECT 'web' AS channel, item, return_ratio, return_rank, currency_rank
    FROM (
        SELECT
            item,
            return_ratio,
            currency_ratio,
            rank() OVER (ORDER BY return_ratio) AS return_rank,
            rank() OVER (ORDER BY currency_ratio) AS currency_rank
        FROM (
            SELECT
                ws_item_sk AS item,
                CAST(sum(coalesce(wr_return_quantity, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(ws_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                CAST(sum(coalesce(wr_return_amt, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(ws_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
            FROM web_sales
            LEFT JOIN web_returns ON wr_order_number = ws_order_number AND wr_item_sk = ws_item_sk
            JOIN date_dim ON d_date_sk = ws_sold_date_sk
            WHERE wr_return_amt > 10000
              AND ws_net_profit > 1
              AND ws_net_paid > 0
              AND ws_quantity > 0
              AND d_year = 2001
              AND d_moy = 12
            GROUP BY ws_item_sk
        ) AS ratios
    ) AS ranks
    WHERE return_rank <= 10 OR currency_rank <= 10
    UNION
    SELECT 'catalog', item, return_ratio, return_rank, currency_rank
    FROM (
        SELECT
            item,
            return_ratio,
            currency_ratio,
            rank() OVER (ORDER BY return_ratio) AS return_rank,
            rank() OVER (ORDER BY currency_ratio) AS currency_rank
        FROM (
            SELECT
                cs_item_sk AS item,
                CAST(sum(coalesce(cr_return_quantity, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(cs_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                CAST(sum(coalesce(cr_return_amount, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(cs_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
            FROM catalog_sales
            LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
            JOIN date_dim ON d_date_sk = cs_sold_date_sk
            WHERE cr_return_amount > 10000
              AND cs_net_profit > 1
              AND cs_net_paid > 0
              AND cs_quantity > 0
              AND d_year = 2001
              AND d_moy = 12
            GROUP BY cs_item_sk
        ) AS ratios
    ) AS ranks
    WHERE return_rank <= 10 OR currency_rank <= 10
    UNION
    SELECT 'store', item, return_ratio, return_rank, currency_rank
    FROM (
        SELECT
            item,
            return_ratio,
            currency_ratio,
            rank() OVER (ORDER BY return_ratio) AS return_rank,
            rank() OVER (ORDER BY currency_ratio) AS currency_rank
        FROM (
            SELECT
                ss_item_sk AS item,
                CAST(sum(coalesce(sr_return_quantity, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(ss_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                CAST(sum(coalesce(sr_return_amt, 0)) AS DECIMAL(15, 4))
                    / CAST(sum(coalesce(ss_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
            FROM store_sales
            LEFT JOIN store_returns ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk
            JOIN date_dim ON d_date_sk = ss_sold_date_sk
            WHERE sr_return_amt > 10000
              AND ss_net_profit > 1
              AND ss_net_paid > 0
              AND ss_quantity > 0
              AND d_year = 2001
              AND d_moy = 12
            GROUP BY ss_item_sk
        ) AS ratios
    ) AS ranks
    WHERE return_rank <= 10 OR currency_rank <= 10
) AS channels
ORDER BY channel, return_rank, currency_rank, item
LIMIT 100
