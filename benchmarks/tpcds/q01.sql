-- Customers who returned more than a fifth above what is usual in their store.
WITH customer_total_return AS (
    SELECT sr_customer_sk AS ctr_customer_sk, sr_store_sk AS ctr_store_sk, sum(sr_return_amt) AS ctr_total_return
    FROM store_returns
    JOIN date_dim ON d_date_sk = sr_returned_date_sk
    WHERE d_year = 2000
    GROUP BY sr_customer_sk, sr_store_sk
)
SELECT c_customer_id
FROM customer_total_return AS mine
JOIN store ON s_store_sk = mine.ctr_store_sk
JOIN customer ON c_customer_sk = mine.ctr_customer_sk
WHERE s_state = 'TN'
  AND mine.ctr_total_return > (
      SELECT avg(theirs.ctr_total_return) * 1.2
      FROM customer_total_return AS theirs
      WHERE theirs.ctr_store_sk = mine.ctr_store_sk
  )
ORDER BY c_customer_id
LIMIT 100
