-- Customers of one state who returned by catalog more than a fifth above what is usual where they returned it.
WITH customer_total_return AS (
    SELECT
        cr_returning_customer_sk AS ctr_customer_sk,
        ca_state AS ctr_state,
        sum(cr_return_amt_inc_tax) AS ctr_total_return
    FROM catalog_returns
    JOIN date_dim ON d_date_sk = cr_returned_date_sk
    JOIN customer_address ON ca_address_sk = cr_returning_addr_sk
    WHERE d_year = 2000
    GROUP BY cr_returning_customer_sk, ca_state
)
SELECT
    c_customer_id,
    c_salutation,
    c_first_name,
    c_last_name,
    ca_street_number,
    ca_street_name,
    ca_street_type,
    ca_suite_number,
    ca_city,
    ca_county,
    ca_state,
    ca_zip,
    ca_country,
    ca_gmt_offset,
    ca_location_type,
    ctr_total_return
FROM customer_total_return AS mine
JOIN customer ON c_customer_sk = mine.ctr_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
WHERE ca_state = 'GA'
  AND mine.ctr_total_return > (
      SELECT avg(theirs.ctr_total_return) * 1.2
      FROM customer_total_return AS theirs
      WHERE theirs.ctr_state = mine.ctr_state
  )
ORDER BY
    c_customer_id,
    c_salutation,
    c_first_name,
    c_last_name,
    ca_street_number,
    ca_street_name,
    ca_street_type,
    ca_suite_number,
    ca_city,
    ca_county,
    ca_state,
    ca_zip,
    ca_country,
    ca_gmt_offset,
    ca_location_type,
    ctr_total_return
LIMIT 100
