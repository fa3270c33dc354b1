-- Customers of one state who returned on the web more than a fifth above what is usual where they returned it.
WITH customer_total_return AS (
    SELECT wr_returning_customer_sk AS ctr_customer_sk, ca_state AS ctr_state, sum(wr_return_amt) AS ctr_total_return
    FROM web_returns
    JOIN date_dim ON d_date_sk = wr_returned_date_sk
    JOIN customer_address ON ca_address_sk = wr_returning_addr_sk
    WHERE d_year = 2002
    GROUP BY wr_returning_customer_sk, ca_state
)
SELECT
    c_customer_id,
    c_salutation,
    c_first_name,
    c_last_name,
    c_preferred_cust_flag,
    c_birth_day,
    c_birth_month,
    c_birth_year,
    c_birth_country,
    c_login,
    c_email_address,
    c_last_review_date_sk,
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
    c_preferred_cust_flag,
    c_birth_day,
    c_birth_month,
    c_birth_year,
    c_birth_country,
    c_login,
    c_email_address,
    c_last_review_date_sk,
    ctr_total_return
LIMIT 100
