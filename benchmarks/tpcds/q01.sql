-- Customers who returned far more than is usual for their store.
WITH returned AS (
    SELECT sr_customer_sk AS customer_sk, sr_store_sk AS store_sk, sum(sr_return_amt) AS total
    FROM store_returns
    JOIN date_dim ON d_date_sk = sr_returned_date_sk
    WHERE d_year = 2000
    GROUP BY sr_customer_sk, sr_store_sk
)
SELECT c_customer_id
FROM returned AS r
JOIN store ON s_store_sk = r.store_sk
JOIN customer ON c_customer_sk = r.customer_sk
WHERE s_state = 'TN'
  AND r.total > (SELECT avg(o.total) * 1.2 FROM returned AS o WHERE o.store_sk = r.store_sk)
ORDER BY c_customer_id
LIMIT 100
