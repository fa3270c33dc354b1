-- Items whose stock varied widely in January, beside February.
WITH inv AS (
    SELECT
        w_warehouse_name,
        w_warehouse_sk,
        i_item_sk,
        d_moy,
        stdev,
        mean,
        CASE WHEN mean = 0 THEN NULL ELSE stdev / mean END AS cov
    FROM (
        SELECT
            w_warehouse_name,
            w_warehouse_sk,
            i_item_sk,
            d_moy,
            stddev_samp(inv_quantity_on_hand) AS stdev,
            avg(inv_quantity_on_hand) AS mean
        FROM inventory
        JOIN item ON i_item_sk = inv_item_sk
        JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
        JOIN date_dim ON d_date_sk = inv_date_sk
        WHERE d_year = 2001
        GROUP BY w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy
    ) AS months
    WHERE CASE WHEN mean = 0 THEN 0 ELSE stdev / mean END > 1
)
SELECT
    inv1.w_warehouse_sk AS warehouse1,
    inv1.i_item_sk AS item1,
    inv1.d_moy AS month1,
    inv1.mean AS mean1,
    inv1.cov AS cov1,
    inv2.w_warehouse_sk AS warehouse2,
    inv2.i_item_sk AS item2,
    inv2.d_moy AS month2,
    inv2.mean AS mean2,
    inv2.cov AS cov2
FROM inv AS inv1
JOIN inv AS inv2 ON inv2.i_item_sk = inv1.i_item_sk AND inv2.w_warehouse_sk = inv1.w_warehouse_sk
WHERE inv1.d_moy = 1
  AND inv2.d_moy = 1 + 1
ORDER BY warehouse1, item1, month1, mean1, cov1, month2, mean2, cov2
