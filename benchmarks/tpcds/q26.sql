-- What items not promoted by mail, or not at events, sold like to one group of people by catalog.
SELECT
    i_item_id,
    avg(cs_quantity) AS agg1,
    avg(cs_list_price) AS agg2,
    avg(cs_coupon_amt) AS agg3,
    avg(cs_sales_price) AS agg4
FROM catalog_sales
JOIN customer_demographics ON cd_demo_sk = cs_bill_cdemo_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN promotion ON p_promo_sk = cs_promo_sk
WHERE cd_gender = 'M'
  AND cd_marital_status = 'S'
  AND cd_education_status = 'College'
  AND (p_channel_email = 'N' OR p_channel_event = 'N')
  AND d_year = 2000
GROUP BY i_item_id
ORDER BY i_item_id
LIMIT 100
