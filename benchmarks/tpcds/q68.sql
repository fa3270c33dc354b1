-- Purchases at the start of a month by people who bought away from the city they live in.
SELECT
    c_last_name,
    c_first_name,
    ca_city,
    bought_city,
    ss_ticket_number,
    extended_price,
    extended_tax,
    list_price
FROM (
    SELECT
        ss_ticket_number,
        ss_customer_sk,
        ca_city AS bought_city,
        sum(ss_ext_sales_price) AS extended_price,
        sum(ss_ext_list_price) AS list_price,
        sum(ss_ext_tax) AS extended_tax
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    WHERE d_dom BETWEEN 1 AND 2
      AND (hd_dep_count = 4 OR hd_vehicle_count = 3)
      AND d_year IN (1999, 1999 + 1, 1999 + 2)
      AND s_city IN ('Fairview', 'Midway')
    GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city
) AS tickets
JOIN customer ON c_customer_sk = ss_customer_sk
JOIN customer_address AS home ON home.ca_address_sk = c_current_addr_sk
WHERE home.ca_city <> bought_city
ORDER BY c_last_name, ss_ticket_number
LIMIT 100
