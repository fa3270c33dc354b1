-- What people born abroad paid, in stores of their own postal code, for peach-coloured items they returned.
WITH ssales AS (
    SELECT
        c_last_name,
        c_first_name,
        s_store_name,
        ca_state,
        s_state,
        i_color,
        i_current_price,
        i_manager_id,
        i_units,
        i_size,
        sum(ss_net_paid) AS netpaid
    FROM store_sales
    JOIN store_returns ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN item ON i_item_sk = ss_item_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk AND ca_zip = s_zip
    WHERE c_birth_country <> upper(ca_country)
      AND s_market_id = 8
    GROUP BY
        c_last_name,
        c_first_name,
        s_store_name,
        ca_state,
        s_state,
        i_color,
        i_current_price,
        i_manager_id,
        i_units,
        i_size
)
SELECT c_last_name, c_first_name, s_store_name, sum(netpaid) AS paid
FROM ssales
WHERE i_color = 'peach'
GROUP BY c_last_name, c_first_name, s_store_name
HAVING sum(netpaid) > (SELECT 0.05 * avg(netpaid) FROM ssales)
ORDER BY c_last_name, c_first_name, s_store_name
