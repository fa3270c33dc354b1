-- Items returned in all three channels in the same three weeks, and the share of each channel.
WITH sr_items AS (
    SELECT i_item_id AS item_id, sum(sr_return_quantity) AS sr_item_qty
    FROM store_returns
    JOIN item ON i_item_sk = sr_item_sk
    JOIN date_dim ON d_date_sk = sr_returned_date_sk
    WHERE d_date IN (
        SELECT d_date
        FROM date_dim
        WHERE d_week_seq IN (
            SELECT d_week_seq
            FROM date_dim
            WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')
        )
    )
    GROUP BY i_item_id
),
cr_items AS (
    SELECT i_item_id AS item_id, sum(cr_return_quantity) AS cr_item_qty
    FROM catalog_returns
    JOIN item ON i_item_sk = cr_item_sk
    JOIN date_dim ON d_date_sk = cr_returned_date_sk
    WHERE d_date IN (
        SELECT d_date
        FROM date_dim
        WHERE d_week_seq IN (
            SELECT d_week_seq
            FROM date_dim
            WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')
        )
    )
    GROUP BY i_item_id
),
wr_items AS (
    SELECT i_item_id AS item_id, sum(wr_return_quantity) AS wr_item_qty
    FROM web_returns
    JOIN item ON i_item_sk = wr_item_sk
    JOIN date_dim ON d_date_sk = wr_returned_date_sk
    WHERE d_date IN (
        SELECT d_date
        FROM date_dim
        WHERE d_week_seq IN (
            SELECT d_week_seq
            FROM date_dim
            WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')
        )
    )
    GROUP BY i_item_id
)
SELECT
    sr_items.item_id,
    sr_item_qty,
    sr_item_qty * 1.0000 / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS sr_dev,
    cr_item_qty,
    cr_item_qty * 1.0000 / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS cr_dev,
    wr_item_qty,
    wr_item_qty * 1.0000 / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS wr_dev,
    (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 AS average
FROM sr_items
JOIN cr_items ON cr_items.item_id = sr_items.item_id
JOIN wr_items ON wr_items.item_id = sr_items.item_id
ORDER BY sr_items.item_id, sr_item_qty
LIMIT 100
