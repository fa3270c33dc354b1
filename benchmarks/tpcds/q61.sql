-- The share of promoted sales of jewelry in one month, in one time zone.
SELECT
    promotions,
    total,
    CAST(promotions AS DECIMAL(15, 4)) / CAST(total AS DECIMAL(15, 4)) * 100 AS share
FROM (
    SELECT sum(ss_ext_sales_price) AS promotions
    FROM store_sales
    JOIN store ON s_store_sk = ss_store_sk
    JOIN promotion ON p_promo_sk = ss_promo_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE ca_gmt_offset = -5
      AND i_category = 'Jewelry'
      AND (p_channel_dmail = 'Y' OR p_channel_email = 'Y' OR p_channel_tv = 'Y')
      AND s_gmt_offset = -5
      AND d_year = 1998
      AND d_moy = 11
) AS promotional_sales
CROSS JOIN (
    SELECT sum(ss_ext_sales_price) AS total
    FROM store_sales
    JOIN store ON s_store_sk = ss_store_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE ca_gmt_offset = -5
      AND i_category = 'Jewelry'
      AND s_gmt_offset = -5
      AND d_year = 1998
      AND d_moy = 11
) AS all_sales
ORDER BY promotions, total
LIMIT 100
