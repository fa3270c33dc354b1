-- Catalog sales of cheap items less refunds, thirty days before and after a date.
SELECT
    w_state,
    i_item_id,
    sum(CASE WHEN d_date < DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END)
        AS sales_before,
    sum(CASE WHEN d_date >= DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END)
        AS sales_after
FROM catalog_sales
LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
JOIN warehouse ON w_warehouse_sk = cs_warehouse_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE i_current_price BETWEEN 0.99 AND 1.49
  AND d_date BETWEEN DATE '2000-03-11' - INTERVAL '30' DAY AND DATE '2000-03-11' + INTERVAL '30' DAY
GROUP BY w_state, i_item_id
ORDER BY w_state, i_item_id
LIMIT 100
