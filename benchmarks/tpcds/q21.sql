-- Stock of cheap items thirty days before and after a date, where it stayed within two thirds and three halves.
SELECT *
FROM (
    SELECT
        w_warehouse_name,
        i_item_id,
        sum(CASE WHEN d_date < DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_before,
        sum(CASE WHEN d_date >= DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_after
    FROM inventory
    JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
    JOIN item ON i_item_sk = inv_item_sk
    JOIN date_dim ON d_date_sk = inv_date_sk
    WHERE i_current_price BETWEEN 0.99 AND 1.49
      AND d_date BETWEEN DATE '2000-03-11' - INTERVAL '30' DAY AND DATE '2000-03-11' + INTERVAL '30' DAY
    GROUP BY w_warehouse_name, i_item_id
) AS stock
WHERE CASE WHEN inv_before > 0 THEN inv_after * 1.000 / inv_before END BETWEEN 2.0 / 3.0 AND 3.0 / 2.0
ORDER BY w_warehouse_name, i_item_id
LIMIT 100
