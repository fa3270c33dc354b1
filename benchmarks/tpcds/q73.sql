-- Customers with small baskets at the start of a month.
SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
FROM (
    SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    WHERE d_dom BETWEEN 1 AND 2
      AND (hd_buy_potential = 'Unknown' OR hd_buy_potential = '>10000')
      AND hd_vehicle_count > 0
      AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.000 / hd_vehicle_count END > 1
      AND d_year IN (1999, 1999 + 1, 1999 + 2)
      AND s_county IN ('Orange County', 'Bronx County', 'Franklin Parish', 'Williamson County')
    GROUP BY ss_ticket_number, ss_customer_sk
) AS baskets
JOIN customer ON c_customer_sk = ss_customer_sk
WHERE cnt BETWEEN 1 AND 5
ORDER BY cnt DESC, c_last_name, ss_ticket_number
