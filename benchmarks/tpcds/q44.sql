-- The ten least and the ten most profitable items of a store, side by side.
SELECT ascending.rnk, i1.i_product_name AS best_performing, i2.i_product_name AS worst_performing
FROM (
    SELECT item_sk, rnk
    FROM (
        SELECT item_sk, rank() OVER (ORDER BY rank_col) AS rnk
        FROM (
            SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col
            FROM store_sales
            WHERE ss_store_sk = 4
            GROUP BY ss_item_sk
            HAVING avg(ss_net_profit) > 0.9 * (
                SELECT avg(ss_net_profit)
                FROM store_sales
                WHERE ss_store_sk = 4 AND ss_addr_sk IS NULL
                GROUP BY ss_store_sk
            )
        ) AS averages
    ) AS ranked
    WHERE rnk < 11
) AS ascending
JOIN (
    SELECT item_sk, rnk
    FROM (
        SELECT item_sk, rank() OVER (ORDER BY rank_col DESC) AS rnk
        FROM (
            SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col
            FROM store_sales
            WHERE ss_store_sk = 4
            GROUP BY ss_item_sk
            HAVING avg(ss_net_profit) > 0.9 * (
                SELECT avg(ss_net_profit)
                FROM store_sales
                WHERE ss_store_sk = 4 AND ss_addr_sk IS NULL
                GROUP BY ss_store_sk
            )
        ) AS averages
    ) AS ranked
    WHERE rnk < 11
) AS descending ON descending.rnk = ascending.rnk
JOIN item AS i1 ON i1.i_item_sk = ascending.item_sk
JOIN item AS i2 ON i2.i_item_sk = descending.item_sk
ORDER BY ascending.rnk, best_performing, worst_performing
LIMIT 100
