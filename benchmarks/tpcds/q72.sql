-- Catalog orders in weeks when the stock was lower than what was ordered, with and without a promotion.
SELECT
    i_item_desc,
    w_warehouse_name,
    d1.d_week_seq,
    sum(CASE WHEN p_promo_sk IS NULL THEN 1 ELSE 0 END) AS no_promo,
    sum(CASE WHEN p_promo_sk IS NOT NULL THEN 1 ELSE 0 END) AS promo,
    count(*) AS total_cnt
FROM catalog_sales
JOIN inventory ON inv_item_sk = cs_item_sk
JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN customer_demographics ON cd_demo_sk = cs_bill_cdemo_sk
JOIN household_demographics ON hd_demo_sk = cs_bill_hdemo_sk
JOIN date_dim AS d1 ON d1.d_date_sk = cs_sold_date_sk
JOIN date_dim AS d2 ON d2.d_date_sk = inv_date_sk
JOIN date_dim AS d3 ON d3.d_date_sk = cs_ship_date_sk
LEFT JOIN promotion ON p_promo_sk = cs_promo_sk
LEFT JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
WHERE d1.d_week_seq = d2.d_week_seq
  AND inv_quantity_on_hand < cs_quantity
  AND d3.d_date > d1.d_date + 5
  AND hd_buy_potential = '>10000'
  AND d1.d_year = 1999
  AND cd_marital_status = 'D'
GROUP BY i_item_desc, w_warehouse_name, d1.d_week_seq
ORDER BY total_cnt DESC, i_item_desc, w_warehouse_name, d_week_seq
LIMIT 100
