-- Purchases on Mondays in stores of a middling size, by people with a large household.
SELECT c_last_name, c_first_name, substring(s_city, 1, 30) AS city, ss_ticket_number, amt, profit
FROM (
    SELECT
        ss_ticket_number,
        ss_customer_sk,
        s_city,
        sum(ss_coupon_amt) AS amt,
        sum(ss_net_profit) AS profit
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    WHERE (hd_dep_count = 6 OR hd_vehicle_count > 2)
      AND d_dow = 1
      AND d_year IN (1999, 1999 + 1, 1999 + 2)
      AND s_number_employees BETWEEN 200 AND 295
    GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, s_city
) AS tickets
JOIN customer ON c_customer_sk = ss_customer_sk
ORDER BY c_last_name, c_first_name, city, profit, ss_ticket_number
LIMIT 100
