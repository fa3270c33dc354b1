-- Customers with large baskets at the start or the end of a month.
SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
FROM (
    SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    WHERE (d_dom BETWEEN 1 AND 3 OR d_dom BETWEEN 25 AND 28)
      AND (hd_buy_potential = '>10000' OR hd_buy_potential = 'Unknown')
      AND hd_vehicle_count > 0
      AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.000 / hd_vehicle_count END > 1.2
      AND d_year IN (1999, 1999 + 1, 1999 + 2)
      AND s_county IN (
          'Williamson County', 'Williamson County', 'Williamson County', 'Williamson County',
          'Williamson County', 'Williamson County', 'Williamson County', 'Williamson County'
      )
    GROUP BY ss_ticket_number, ss_customer_sk
) AS baskets
JOIN customer ON c_customer_sk = ss_customer_sk
WHERE cnt BETWEEN 15 AND 20
ORDER BY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag DESC NULLS LAST, ss_ticket_number
